"""The latency account without step records: an estimate from histograms and counters, each part between bounds.

A group of gaps is a bucket of the inter-token histogram (p50), or all buckets from the one that holds p99. Its mean lies
between what the bucket edges and the histogram's exact sum allow. Which steps can have ended such gaps follows from the
step durations by kind. What this assumes, and no histogram can prove:

- a step holds at most `max_sequences` gaps, and at most twice as many as requests were seen running at once;
- the decode share of a mixed step costs what pure decode steps of the window cost, between their p05 and p95;
- the host's time outside of a step shifts a gap by less than one bucket;
- what a mixed step takes beyond decode and host is prefill: its lower bound counts time off the core, and anything else
  that nothing books, as prefill.
"""

from dataclasses import dataclass
from itertools import pairwise
from math import inf

from diagnose.account import Account, Inseparable
from diagnose.policy import Policy
from diagnose.signals import HistogramWindow, Signals
from diagnose.stats import Bounds

PARTS = ("decode_floor", "prefill", "recompute", "host", "lock_wait", "waiting", "other")
"""As of the exact account, but `host` is schedule, prepare, post-process and idle, and `waiting` is preempted or deferred."""
_BATCH_ALLOWANCE = 2.0
_HOST_ALLOWANCE = 2.0
"""A pure decode step's own host time may be this many times the mean."""


def estimate_account(signals: Signals, q: float, policy: Policy) -> Account | None:
    """None when the histograms that it needs are missing, too small or contradict each other."""
    gaps, decode = signals.histograms.get("inter_token_latency"), signals.histograms.get("step_decode")
    mixed = signals.histograms.get("step_mixed")
    if gaps is None or decode is None or mixed is None or decode.count < policy.min_decode_steps or gaps.count < 1:
        return None
    group = _group(gaps, q, upwards=q > 0.5)
    if group is None:
        return None
    return _Estimate(signals, group, decode, mixed).account()


@dataclass(frozen=True, slots=True)
class _Group:
    low: float
    high: float
    count: float
    mean: Bounds


def _edges(histogram: HistogramWindow) -> list[tuple[float, float, float]]:
    """(low, high, count) of each bucket."""
    edges = pairwise((0.0, *histogram.bounds, inf))
    return [(low, high, count) for (low, high), count in zip(edges, histogram.counts, strict=True)]


def _group(gaps: HistogramWindow, q: float, *, upwards: bool) -> _Group | None:
    found = gaps.quantile(q)
    if found is None:
        return None
    inside: list[tuple[float, float, float]] = []
    outside: list[tuple[float, float, float]] = []
    for low, high, count in _edges(gaps):
        if count:
            chosen = low >= found.low and (upwards or low == found.low)
            (inside if chosen else outside).append((low, high, count))
    number = sum(count for *_, count in inside)
    least = max(_sum(inside, 0), gaps.sum - _sum(outside, 1)) / number
    most = min(_sum(inside, 1), gaps.sum - _sum(outside, 0)) / number
    if not 0 < least <= most < inf:
        return None  # a sum that its own buckets exclude: a reset, or a clock that went backwards
    return _Group(inside[0][0], inside[-1][1], number, Bounds(least, most))


def _sum(buckets: list[tuple[float, float, float]], edge: int) -> float:
    return sum(bucket[edge] * bucket[2] for bucket in buckets)


def _may_lie_in(steps: HistogramWindow, group: _Group) -> float:
    """Steps that may have ended a gap of the group: its buckets and one more on either side."""
    edges = [0.0, *steps.bounds, inf]
    lowest = max([edge for edge in edges if edge < group.low], default=0.0)
    highest = min([edge for edge in edges if edge > group.high], default=inf)
    return sum(count for low, high, count in _edges(steps) if high > lowest and low < highest)


@dataclass(slots=True)
class _Estimate:
    signals: Signals
    group: _Group
    decode: HistogramWindow
    mixed: HistogramWindow

    def account(self) -> Account:
        bounds = self._bounds()
        parts = self._parts(bounds)
        total = (self.group.mean.low + self.group.mean.high) / 2
        return Account(
            total,
            parts,
            "estimated",
            self.group.low,
            round(self.group.count),
            bounds,
            self.group.mean,
            self._inseparable(bounds),
        )

    def _per_gap(self, name: str) -> float | None:
        """Upper bound of a counter's mean over the group: all of it, in steps of as many gaps as a step can hold."""
        total = self.signals.delta(name)
        return None if total is None else total * self._batch / self.group.count

    @property
    def _batch(self) -> float:
        """The most gaps of one step."""
        running = self.signals.peak("running")
        seen = inf if not running else _BATCH_ALLOWANCE * running
        return min(self.signals.peak("max_sequences") or inf, seen, self.group.count)

    def _mean_per_step(self, name: str) -> float:
        return (self.signals.delta(name) or 0.0) / max(1.0, self.decode.count + self.mixed.count)

    def _bounds(self) -> dict[str, Bounds]:
        group, total = self.group, self.group.mean.high
        decodes, mixed = _may_lie_in(self.decode, group), _may_lie_in(self.mixed, group)
        like = self._like_decode()
        floor = Bounds(min(like.low, total), min(total, max(like.high, group.high) if decodes else like.high))
        caps = {
            part: total if (most := self._per_gap(name)) is None else min(total, most)
            for part, name in (
                ("host", "stall_host_seconds"),
                ("lock_wait", "stall_lock_seconds"),
                ("waiting", "stall_waiting_seconds"),
            )
        }
        # Late gaps: each is longer than the group's low end, and all of them together are counted.
        late = caps["waiting"] * group.count / group.low if group.low else group.count
        least = max(0.0, group.count - decodes * self._batch - late) / group.count
        if late:
            mixed = self.mixed.count  # a late gap may end in any step, however short
        most = min(1.0, mixed * self._batch / group.count)
        stalled = self.signals.delta("stall_prefill_seconds")
        booked = inf
        if stalled is not None:  # the engine's own floor may be off by as much as decode steps differ
            booked = (stalled + self.mixed.count * (like.high - like.low)) * self._batch / group.count
        highest = min(total - floor.low, most * group.high if most else 0.0, booked)
        lowest = least * group.low - like.high - sum(caps.values())
        prefill = Bounds(max(0.0, min(lowest, highest)), max(0.0, highest))
        recomputed = self.signals.delta("tokens_recompute") or 0.0
        return {
            "decode_floor": floor,
            "prefill": Bounds(0.0, prefill.high) if recomputed else prefill,
            "recompute": Bounds(0.0, prefill.high if recomputed else 0.0),
            **{part: Bounds(0.0, cap) for part, cap in caps.items()},
            "other": Bounds(0.0, max(0.0, total - floor.low)),
        }

    def _like_decode(self) -> Bounds:
        """What the decode share of a step costs in this window."""
        low, high = self.decode.quantile(0.05), self.decode.quantile(0.95)
        assert low is not None and high is not None
        host = self._mean_per_step("stall_host_seconds") + self._mean_per_step("stall_lock_seconds")
        return Bounds(max(0.0, low.low - _HOST_ALLOWANCE * host), high.high)

    def _parts(self, bounds: dict[str, Bounds]) -> dict[str, float]:
        """The likely value of each part, in turn out of what is left; what nothing takes is other."""
        schedule = self.signals.histograms.get("schedule")
        known_host = "stall_host_seconds" in self.signals.counters
        host = self._mean_per_step("stall_host_seconds") if known_host else (schedule and schedule.mean) or 0.0
        lock = self._mean_per_step("stall_lock_seconds")
        waiting = (self.signals.delta("stall_waiting_seconds") or 0.0) / self.group.count
        like = (self.decode.mean or 0.0) - host - lock
        left = (self.group.mean.low + self.group.mean.high) / 2
        parts = dict.fromkeys(PARTS, 0.0)
        for name, value in (("host", host), ("lock_wait", lock), ("decode_floor", like), ("waiting", waiting)):
            within = min(max(value, bounds[name].low), bounds[name].high)
            parts[name] = min(left, within)
            left -= parts[name]
        computed = min(left, max(bounds["prefill"].high, bounds["recompute"].high))
        tokens = [self.signals.delta(f"tokens_{name}") or 0.0 for name in ("prefill", "recompute")]
        again = tokens[1] / sum(tokens) if sum(tokens) else 0.0
        parts["prefill"], parts["recompute"] = computed * (1 - again), computed * again
        parts["other"] = left - computed
        return parts

    def _inseparable(self, bounds: dict[str, Bounds]) -> tuple[Inseparable, ...]:
        records = "step records"
        pairs: list[Inseparable] = []
        if bounds["prefill"].high > 0:
            if _may_lie_in(self.decode, self.group):
                pairs.append(Inseparable("prefill", "decode_floor", f"{records}, which say in which step a gap ended"))
            pairs.append(Inseparable("prefill", "off_cpu", f"{records} with the CPU time of the engine's thread"))
        else:
            pairs.append(Inseparable("decode_floor", "off_cpu", f"{records} with the CPU time of the engine's thread"))
        if bounds["recompute"].high > 0:
            pairs.append(Inseparable("prefill", "recompute", f"{records}, which count both kinds of tokens by step"))
        if bounds["waiting"].high > 0:
            pairs.append(Inseparable("preempted", "deferred", f"{records}, which keep the late gaps"))
        return tuple(pairs)
