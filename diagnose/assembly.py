"""From an observation to one set of signals: every dialect of every page, then what else was given, in order of precedence.

The first source that states a signal gives it. Where two of them state it and disagree, the report says so.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from diagnose.continuity import limit_to_trusted
from diagnose.dialects.bare import HOST, TRACE
from diagnose.dialects.base import Dialect
from diagnose.dialects.dcgm import device_signals, lay_beside
from diagnose.dialects.dcgm import speaks as is_dcgm
from diagnose.dialects.registry import DIALECTS, engine_names, spoken, what_it_is
from diagnose.dialects.stallscope import STALLSCOPE
from diagnose.errors import NotEnough, TargetError
from diagnose.fleet import differing, join
from diagnose.observation import Observation, OtherSource, Scrape, length_of
from diagnose.plausibility import implausible
from diagnose.policy import Policy
from diagnose.signals import BESIDE, Signals
from diagnose.units import seconds
from diagnose.windows import read_host, read_pages

_A_MOMENT = (
    "one scrape is a moment and no window: its levels are shown, counters say nothing of now; give a second scrape, a "
    "recording or a log, or watch the live target"
)


class Assembled(NamedTuple):
    signals: Signals
    contradictions: list[str]


def assemble(observation: Observation, policy: Policy) -> Assembled:
    """Raises NotEnough when nothing has a window, TargetError when no page is an engine's and nothing else speaks."""
    parts, said = _own_parts(observation, policy)
    if observation.extras:
        _add_extras(observation)
    parts += [source.signals(observation.span) for source in observation.others]
    if not parts and (observation.steps or observation.profiles or observation.host is not None):
        alone = STALLSCOPE if observation.steps else TRACE if observation.profiles else HOST
        parts = [_part(observation, alone, [])]
    if not parts:
        raise _nothing_known(observation)
    merged, contradictions = merge(parts, policy)
    merged.steps, merged.steps_lost = tuple(observation.steps), observation.steps_lost
    merged.steps_source = STALLSCOPE.debug_steps_path or ""
    merged.sources = tuple(dict.fromkeys(observation.recognised))
    if observation.host is not None:
        read_host(merged, observation.host)
    device = device_signals([scrape for scrape in observation.scrapes if is_dcgm(scrape.page)])
    lay_beside(merged, device)
    gone = any(event.kind == "gone" for event in observation.events)
    has_window = any(part.num_scrapes != 1 and (part.num_scrapes or part.counters or part.histograms) for part in parts)
    other = observation.steps or observation.profiles or observation.host or gone
    is_moment = not (has_window or other)
    if is_moment and not (observation.scrapes or any(part.dialect in BESIDE for part in parts)):
        raise NotEnough(_too_little(observation))
    return Assembled(
        merged,
        [
            *contradictions,
            *said,
            *(note for part in parts for note in part.notes),
            *device.notes,
            *([_A_MOMENT] if is_moment and observation.scrapes else []),
            *implausible(merged),
            *_hidden_queue(merged),
            *_client_side(merged, policy),
        ],
    )


def _own_parts(observation: Observation, policy: Policy) -> tuple[list[Signals], list[str]]:
    """What the pages say, and what is to be said of them: one part per dialect, or the sum of a service's replicas."""
    if not observation.replicas:
        return [_part(observation, dialect, scrapes) for dialect, scrapes in _by_dialect(observation)], []
    each: dict[str, Signals] = {}
    said: list[str] = []
    for one in observation.replicas:
        if len(one.leading) < 2:
            said.append(f"{one.target}: left out, {len(one.leading)} scrape has no window")
            continue
        each[one.target], notes = assemble(one, policy)
        said += [f"{one.target}: {note}" for note in [*notes, *limit_to_trusted(one, each[one.target], policy)]]
        observation.recognised += [f"{one.target}: {line}" for line in one.recognised]
    if len(each) < 2:
        return list(each.values()), said
    if any(signals.steps for signals in each.values()):
        said.append("step records are of one replica each and are left out here: diagnose its URL alone for them")
    return [join(each)], [*said, *differing(each)]


def _add_extras(observation: Observation) -> None:
    # Not at the top: their tables cost more than a diagnosis of pages alone.
    from diagnose.sources.log_signals import logs_of
    from diagnose.sources.state import states_of

    extras: list[OtherSource] = [*states_of(observation.extras), *logs_of(observation.extras)]
    for extra in extras:
        observation.add_source(extra)
    observation.extras = []


def _hidden_queue(signals: Signals) -> list[str]:
    """A limit before the engine keeps overload out of its sight."""
    upstream, waiting = signals.gauges.get("waiting_upstream"), signals.peak("waiting")
    if upstream is None or not upstream.peak or waiting:
        return []
    return [
        f"up to {upstream.peak:.0f} requests waited before the engine ({upstream.source}), whose own queue was empty or not "
        "measured: a limit in front of it hides overload from it"
    ]


def _client_side(signals: Signals, policy: Policy) -> list[str]:
    """What the clients saw, where it is not what the engine says."""
    found: list[str] = []
    client, engine = signals.last("client_ttft_mean"), signals.histograms.get("time_to_first_token")
    if client is not None and engine is not None and engine.mean and client > policy.shift_ratio * engine.mean:
        found.append(
            f"clients waited {seconds(client)} for the first token on average, the engine says {seconds(engine.mean)}: the "
            "rest was lost before or behind the engine"
        )
    per_message, per_token = signals.last("client_itl_mean"), signals.last("client_tpot_mean")
    if per_message and per_token and per_message > policy.shift_ratio * per_token:
        found.append(
            f"messages to clients carry about {per_message / per_token:.1f} tokens each: the clients' inter-token latency is "
            "one per message, and no stall"
        )
    return found


def _by_dialect(observation: Observation) -> list[tuple[Dialect, list[Scrape]]]:
    """Each dialect with the pages that speak it: pages of an engine and of a device exporter may alternate."""
    found: dict[str, tuple[Dialect, list[Scrape]]] = {}
    for scrape in observation.scrapes:
        for dialect in spoken(scrape.view):
            found.setdefault(dialect.name, (dialect, []))[1].append(scrape)
    order = {dialect.name: index for index, dialect in enumerate(DIALECTS)}
    return sorted(found.values(), key=lambda pair: (not pair[0].is_engine, order.get(pair[0].name, len(order))))


def _part(observation: Observation, dialect: Dialect, scrapes: Sequence[Scrape]) -> Signals:
    if scrapes:
        count = "1 metrics page" if len(scrapes) == 1 else f"{len(scrapes)} metrics pages"
        versions = dialect.versions(scrapes[-1].view)
        line = f"{count} of {dialect.name}" + (f" ({versions}, by their names)" if versions else "")
        if line not in observation.recognised:
            observation.recognised.append(line)
    return read_pages([scrape.view for scrape in scrapes], dialect, length_of(scrapes))


def _nothing_known(observation: Observation) -> NotEnough | TargetError:
    if not observation.scrapes:
        return NotEnough(_too_little(observation))
    what = what_it_is(observation.scrapes[0].view)
    return TargetError(f"{observation.target}: {what}; it needs the metrics of an engine ({engine_names()})")


def _too_little(observation: Observation) -> str:
    known = f" ({'; '.join(observation.recognised)})" if observation.recognised else ""
    if not observation.scrapes and known:
        return (
            f"{observation.target}: one moment or settings, and no window{known}; give it beside a log, two scrapes of /metrics, "
            "a recording or the live target"
        )
    return (
        f"{observation.target}: {len(observation.scrapes)} scrape has no window; counters need two. "
        f"Give a second file, a recording, a log, or watch the live target{known}"
    )


_COMPARED = (
    "running", "waiting", "pool_usage", "pool_blocks", "pool_tokens", "block_size", "max_batched_tokens", "max_sequences",
)  # fmt: skip
"""Gauges that mean the same whoever states them, all of them at least 0."""
_IDENTITY = ("version", "model", "max_model_len", "dtype")


def merge(parts: Sequence[Signals], policy: Policy) -> Assembled:
    """Parts in order of precedence; at least one."""
    first = parts[0]
    merged = replace(
        first,
        counters=dict(first.counters),
        gauges=dict(first.gauges),
        histograms=dict(first.histograms),
        failures=dict(first.failures),
        info=dict(first.info),
        advice=dict(first.advice),
    )
    contradictions: list[str] = []
    for part in parts[1:]:
        contradictions += _contradictions(merged, part, policy)
        _add(merged, part)
    merged.dialect = " + ".join(dict.fromkeys(part.dialect for part in parts))
    return Assembled(merged, contradictions)


def _add(merged: Signals, part: Signals) -> None:
    if merged.usage is None and "pool_usage" not in merged.gauges:
        merged.usage, merged.pool_unit = part.usage, part.pool_unit
    if merged.free_includes_reclaimable is None and "blocks_free" not in merged.gauges:
        merged.free_includes_reclaimable = part.free_includes_reclaimable
    if part.replicas and not merged.replicas:
        merged.replicas, merged.num_replicas = part.replicas, part.num_replicas
    if merged.length_seconds is None and merged.num_scrapes < 2:
        merged.length_seconds = part.length_seconds
    same_window = _same_window(merged, part)
    if same_window:
        merged.counters = {**part.counters, **merged.counters}
        merged.histograms = {**part.histograms, **merged.histograms}
        merged.failures = {**part.failures, **merged.failures}
        merged.load = merged.load or part.load
    merged.gauges = {**part.gauges, **merged.gauges}
    merged.info = {**part.info, **merged.info}
    # How to get what is missing is for the engine to say, not for what stands beside it.
    merged.advice = {**part.advice, **merged.advice}
    if part.dialect in _ENGINES:  # our probes inside another engine know nothing of what that one can do
        merged.features_absent &= part.features_absent
    merged.restarted = merged.restarted or part.restarted


_ENGINES = frozenset(dialect.name for dialect in DIALECTS if dialect.is_engine)


def _same_window(merged: Signals, part: Signals) -> bool:
    """Counters of two windows do not join: rates and ratios would be of neither."""
    if not (merged.counters or merged.histograms) or merged.length_seconds is None or part.length_seconds is None:
        return True
    longer, shorter = max(merged.length_seconds, part.length_seconds), min(merged.length_seconds, part.length_seconds)
    return longer <= 2 * shorter


def _contradictions(merged: Signals, part: Signals, policy: Policy) -> list[str]:
    found: list[str] = []
    for name in _COMPARED:
        ours, theirs = merged.gauges.get(name), part.gauges.get(name)
        if ours is None or theirs is None:
            continue
        # A level moves between the moments at which two sources read it: only ranges that lie apart contradict each other.
        apart = max(min(ours.values), min(theirs.values)) - min(ours.peak, theirs.peak)
        if apart > policy.contradiction_share * max(ours.peak, theirs.peak):
            found.append(
                f"sources disagree on {name}: {ours.mean:.4g} by {ours.source}, {theirs.mean:.4g} by {theirs.source}; "
                "the first is used"
            )
    for name in _IDENTITY:
        ours_said, theirs_said = merged.info.get(name), part.info.get(name)
        if ours_said is not None and theirs_said is not None and ours_said != theirs_said:
            found.append(f"sources disagree on {name}: {ours_said} and {theirs_said}; are they of one server?")
    if not _same_window(merged, part) and part.counters:
        found.append(
            f"{part.dialect} covers {part.length_seconds:.0f} s and the metrics {merged.length_seconds:.0f} s: "
            "its counts are left out, its settings and events are used"
        )
    return found
