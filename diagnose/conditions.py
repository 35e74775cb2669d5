"""Whether two windows were measured under matched conditions: arrivals, lengths, cache warmth, precision and build.

Arrivals are what was offered, not what was finished: a slower server finishes fewer requests of the same load. With
closed-loop clients, who ask again only when they were answered, even arrivals follow the server; such a pair mismatches
as soon as that shows, and the comparison is then refused rather than explained away.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from diagnose.case import Window
from diagnose.policy import Policy
from diagnose.units import percent

_NOT_MEASURED = "not measured"
_NO_PROMPT = "0 tokens"
"""Of a window without a request: its arrivals say so."""
_MEASURED = "measured in both windows"
_SETTING_GAUGES = ("max_batched_tokens", "max_sequences")
_SETTING_LABELS = ("block_size", "kv_blocks", "max_model_len", "prefix_cache", "attention_backend")
_INSTANCE_LABELS = ("engine_id", "debug_url")
"""Labels that tell processes apart and nothing else."""
_PRECISION = "dtype"


@dataclass(frozen=True, slots=True)
class Mismatch:
    name: str
    first: str
    second: str
    allowed: str

    def __str__(self) -> str:
        return f"{self.name}: {self.first} against {self.second} (allowed: {self.allowed})"


def match_conditions(first: Window, second: Window, policy: Policy) -> list[Mismatch]:
    """Every condition that differs, or that one of the windows did not measure."""
    return [
        *_uninterrupted(first, second),
        *_arrivals(first, second, policy),
        *_lengths(first, second, policy),
        *_warmth(first, second, policy),
        *_precision_stated(first, second),
        *build_mismatches(first, second),
        *_settings(first, second, policy),
    ]


def differing_settings(first: Window, second: Window, policy: Policy) -> list[str]:
    """Settings that a comparison may vary, one at a time: `max_batched_tokens 512 -> 64`.

    Pools that an engine sized by the memory it found differ by a few blocks from start to start, which is no setting.
    """
    before, after = _setting_values(first), _setting_values(second)
    differing = [name for name in before if before[name] != after[name]]
    if "kv_blocks" in differing and _alike(before["kv_blocks"], after["kv_blocks"], policy.matched_pool):
        differing.remove("kv_blocks")
    return [f"{name} {before[name]} -> {after[name]}" for name in differing]


def _alike(first: str, second: str, within: float) -> bool:
    """Of numbers, `within` a share of the larger one; False where one is unknown."""
    if not (first.isdecimal() and second.isdecimal()):
        return False
    least, most = sorted((int(first), int(second)))
    return most - least <= within * most


def differing_load(first: Window, second: Window, policy: Policy) -> list[str]:
    """Load that both windows measured and that moved by more than a comparison allows: `prompt length 256 tokens -> ...`."""
    found = [*_arrivals(first, second, policy), *_lengths(first, second, policy), *_warmth(first, second, policy)]
    measured = [m for m in found if m.allowed != _MEASURED and _NO_PROMPT not in (m.first, m.second)]
    return [f"{m.name} {m.first} -> {m.second}" for m in measured]


def arrivals(window: Window) -> float | None:
    """Requests that came in: those that were scheduled for the first time, and the growth of the waiting queue.

    Requests given up while they waited are not seen, and preempted ones that wait again are taken for new: both are rare
    where a comparison makes sense.
    """
    admitted = window.signals.histograms.get("queue_time")
    waiting = window.signals.gauges.get("waiting")
    if admitted is None or waiting is None:
        return None
    return admitted.count + waiting.values[-1] - waiting.values[0]


def _uninterrupted(first: Window, second: Window) -> Iterator[Mismatch]:
    if first.signals.restarted or second.signals.restarted:
        texts = ["restarted" if window.signals.restarted else "ran through" for window in (first, second)]
        yield Mismatch("engine process", texts[0], texts[1], "no restart inside a window")


def _arrivals(first: Window, second: Window, policy: Policy) -> Iterator[Mismatch]:
    before, after = _offered(first), _offered(second)
    texts = [
        _NOT_MEASURED
        if offered is None
        else f"{offered.requests / offered.seconds:.3g}/s ({offered.requests:.0f} requests)"
        for offered in (before, after)
    ]
    if before is None or after is None:
        yield Mismatch("arrival rate", texts[0], texts[1], _MEASURED)
        return
    rates = (before.requests / before.seconds, after.requests / after.seconds)
    edge = policy.edge_arrivals / min(before.seconds, after.seconds)
    if abs(rates[1] - rates[0]) > policy.matched_arrivals * max(rates) + edge:
        allowed = f"{percent(policy.matched_arrivals)} and {policy.edge_arrivals} request at a window's edge"
        yield Mismatch("arrival rate", texts[0], texts[1], allowed)


class _Offered(NamedTuple):
    requests: float
    seconds: float


def _offered(window: Window) -> _Offered | None:
    count, length = arrivals(window), window.signals.length_seconds
    return None if count is None or not length else _Offered(count, length)


def _lengths(first: Window, second: Window, policy: Policy) -> Iterator[Mismatch]:
    allowed = f"{percent(policy.matched_context)} of the larger"
    for name, values in (
        ("context length of decodes", (_decode_context(first), _decode_context(second))),
        ("prompt length", (_prompt_tokens(first), _prompt_tokens(second))),
    ):
        texts = [_NOT_MEASURED if value is None else f"{value:.0f} tokens" for value in values]
        before, after = values
        if before is None or after is None:
            yield Mismatch(name, texts[0], texts[1], _MEASURED)
        elif abs(after - before) > policy.matched_context * max(before, after):
            yield Mismatch(name, texts[0], texts[1], allowed)


def _decode_context(window: Window) -> float | None:
    """Mean KV positions per decode sequence and step."""
    steps = window.analysis.steps
    known = [r for r in steps if r.decode_context_tokens is not None]
    sequences = sum(record.num_decode_seqs for record in known)
    return sum(record.decode_context_tokens or 0 for record in known) / sequences if sequences else None


def _prompt_tokens(window: Window) -> float | None:
    """Mean prompt tokens of the requests that were admitted; 0 when none was.

    Looked up in the prefix index at admission; without an index, what was computed, which lags admission by a prompt.
    """
    admitted = window.signals.histograms.get("queue_time")
    prefill = window.signals.delta("tokens_prefill")
    if admitted is None or prefill is None:
        return None
    offered = window.signals.delta("prefix_query_tokens") or prefill
    return offered / admitted.count if admitted.count else 0.0


def _warmth(first: Window, second: Window, policy: Policy) -> Iterator[Mismatch]:
    rates = [_hit_rate(window) for window in (first, second)]
    texts = [_NOT_MEASURED if rate is None else percent(rate) for rate in rates]
    before, after = rates
    if before is None or after is None:
        yield Mismatch("prefix hit rate", texts[0], texts[1], _MEASURED)
    elif abs(after - before) > policy.matched_hit_rate:
        yield Mismatch("prefix hit rate", texts[0], texts[1], f"{policy.matched_hit_rate * 100:g} points")


def _hit_rate(window: Window) -> float | None:
    """Share of looked-up prompt tokens that were found; 0 when none was looked up."""
    queries, hits = window.signals.delta("prefix_query_tokens"), window.signals.delta("prefix_hit_tokens")
    if queries is None or hits is None:
        return None
    return hits / queries if queries else 0.0


def _precision_stated(first: Window, second: Window) -> Iterator[Mismatch]:
    if _PRECISION not in first.signals.info and _PRECISION not in second.signals.info:
        yield Mismatch("precision", _NOT_MEASURED, _NOT_MEASURED, "stated by the engine in both windows")


def build_mismatches(first: Window, second: Window) -> Iterator[Mismatch]:
    """What the engine says of itself and may not differ: version, model, geometry, precision, device."""
    before, after = first.signals.info, second.signals.info
    for name in sorted({*before, *after} - {*_SETTING_LABELS, *_INSTANCE_LABELS}):
        if before.get(name) != after.get(name):
            label = "precision" if name == _PRECISION else f"build ({name})"
            yield Mismatch(label, before.get(name, "not stated"), after.get(name, "not stated"), "equal")


def _settings(first: Window, second: Window, policy: Policy) -> Iterator[Mismatch]:
    for name in _SETTING_GAUGES:
        gauges = [window.signals.gauges.get(name) for window in (first, second)]
        texts = [
            "not stated" if g is None else " then ".join(f"{v:g}" for v in dict.fromkeys(g.values)) for g in gauges
        ]
        if any(gauge is not None and len(set(gauge.values)) > 1 for gauge in gauges):
            yield Mismatch(name, texts[0], texts[1], "one value throughout a window")
    differing = differing_settings(first, second, policy)
    if len(differing) > 1:
        yield Mismatch("settings", f"{len(differing)} differ", "; ".join(differing), "one")


def _setting_values(window: Window) -> dict[str, str]:
    gauges = {name: window.signals.last(name) for name in _SETTING_GAUGES}
    values = {name: "unknown" if value is None else f"{value:g}" for name, value in gauges.items()}
    return values | {name: window.signals.info.get(name, "unknown") for name in _SETTING_LABELS}
