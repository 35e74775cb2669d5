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

_SETTLE_READS, _SETTLE_SECONDS = 10, 0.3


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


def served_since(url: str, before: Entry | None, asked: int) -> Served:
    """Since the page `before`; waits a little until `asked` requests are booked, as aborted ones are by the next step."""
    for _ in range(_SETTLE_READS):
        served = served_between(url, before, read_page(url))
        if served.requests is None or served.requests >= asked:
            break
        time.sleep(_SETTLE_SECONDS)
    return served


def share_of_others(traffic: Traffic, served: Served) -> float | None:
    """Share of what was served that was not asked for here: of requests or of tokens, whichever is more.

    What was aborted at the end may be counted by the target later than here, or not at all: that is no negative share.
    """
    requests = num_sent(traffic)
    tokens = sum(stream.output_tokens or len(stream.tokens) for stream in traffic.streams)
    shares = [
        max(0.0, 1 - ours / theirs) if theirs else 0.0
        for ours, theirs in ((requests, served.requests), (tokens, served.tokens))
        if theirs is not None
    ]
    return max(shares, default=None)


def num_sent(traffic: Traffic) -> int:
    return sum(stream.sent is not None for stream in traffic.streams)
