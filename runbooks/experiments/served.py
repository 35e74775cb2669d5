"""What a target served during a block by its own counters: traffic of others on one arm is another load there."""

import time
from dataclasses import dataclass

from diagnose.assembly import assemble
from diagnose.errors import DiagnoseError
from diagnose.observation import observe
from diagnose.policy import DEFAULT_POLICY
from diagnose.sources.http import Endpoint
from diagnose.sources.live import first_page
from probes.recording import Entry
from runbooks.experiments.client import Traffic


@dataclass(frozen=True, slots=True)
class Served:
    """None where the target does not count it."""

    requests: float | None
    """Finished ones, aborted ones included."""
    tokens: float | None
    """Generated ones."""


def read_page(url: str) -> Entry | None:
    """The metrics page now; None when it has none that can be had."""
    try:
        body, _ = first_page(Endpoint(url))
    except DiagnoseError:
        return None
    return Entry(time.time(), "exposition", body)


def served_between(url: str, before: Entry | None, after: Entry | None) -> Served:
    """From two pages of one process."""
    if before is None or after is None or after.unix <= before.unix:
        return Served(None, None)
    try:
        signals = assemble(observe(url, [before, after]), DEFAULT_POLICY).signals
    except DiagnoseError:
        return Served(None, None)
    if signals.restarted:
        return Served(None, None)
    return Served(signals.delta("requests_finished"), signals.delta("tokens_decode"))


def share_of_others(traffic: Traffic, served: Served) -> float | None:
    """Share of what was served that was not asked for here: of requests or of tokens, whichever is more.

    What was aborted at the end may be counted by the target later than here, or not at all: that is no negative share.
    """
    requests = sum(stream.sent is not None for stream in traffic.streams)
    tokens = sum(stream.output_tokens or len(stream.tokens) for stream in traffic.streams)
    shares = [
        max(0.0, 1 - ours / theirs) if theirs else 0.0
        for ours, theirs in ((requests, served.requests), (tokens, served.tokens))
        if theirs is not None
    ]
    return max(shares, default=None)
