"""The latency account: where the wall time of inter-token gaps went, from step records.

A gap runs from one step's tokens to the next ones'. Its time is split into exclusive parts that add up to it:

    decode_floor      what the decode share of the step costs by the fitted model a + b*sequences + c*context
    prefill           first-time prompt tokens: what a mixed step took beyond the floor, and pure prefill steps that ran
                      between two decode steps while the streams waited (engines that schedule prefill first)
    recompute         the same for tokens computed again after a preemption, split by token count
    collective        time in collectives beyond what steps of the kind usually spend there
    off_cpu           time in which the engine's thread had no core, beyond what is usual in pure decode steps
    schedule, prepare, postprocess, idle, lock_wait     the host's parts
    preempted, deferred      steps that went by without this sequence
    other             what nothing above explains (shown, never hidden)
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from math import inf
from typing import NamedTuple

from diagnose.policy import Policy
from diagnose.stats import Bounds, LinearFit, Ranked, median, robust_fit, weighted_quantile
from probes.records import StepKind, StepRecord

PARTS = (
    "decode_floor",
    "prefill",
    "recompute",
    "collective",
    "off_cpu",
    "schedule",
    "prepare",
    "postprocess",
    "idle",
    "lock_wait",
    "preempted",
    "deferred",
    "other",
)
HOST_PARTS = ("schedule", "prepare", "postprocess", "idle", "lock_wait")

_MAX_FIT_ROWS = 2000


class Gap(NamedTuple):
    """`tokens` equal inter-token gaps that ended in step `step`, one per token. Times in seconds."""

    seconds: float
    tokens: int
    parts: tuple[float, ...]
    """In the order of PARTS; they add up to `seconds`."""
    floor: float
    booked: float
    """What the step's own figures add up to: more than `seconds` when the engine booked time twice."""
    step: StepRecord
    waited_for_prefill: bool = False
    """Pure prefill steps ran in it, while the sequence waited."""


class Inseparable(NamedTuple):
    """Two parts that the evidence cannot tell apart, and the measurement that would."""

    first: str
    second: str
    measurement: str


@dataclass(frozen=True, slots=True)
class Account:
    """Mean split of a group of gaps. `total_seconds` is the sum of the parts."""

    total_seconds: float
    parts: dict[str, float]
    basis: str
    quantile_seconds: float
    """The quantile itself: the gaps of the group lie around it (p50) or at and beyond it (p99). The lower end of its bucket
    where buckets are all that is known."""
    num_gaps: int
    bounds: dict[str, Bounds] = field(default_factory=dict)
    """Of an estimate: between which values each part lies. Empty when the parts are known."""
    total_bounds: Bounds | None = None
    inseparable: tuple[Inseparable, ...] = ()


@dataclass(frozen=True, slots=True)
class DecodeModel:
    """Seconds of a pure decode step from its sequences and the KV positions that they read.

    Where the engine's CPU time is known the fit is made on it, since other processes do not disturb it. `slowdown` is the
    usual elapsed over CPU time of pure decode steps: on a contended machine all compute stretches by about that factor,
    prefill and decode alike, so it belongs to both and is nobody's excess.
    """

    fit: LinearFit
    slowdown: float
    basis: str
    usual_comm: Mapping[StepKind, float]
    """Median ns of collectives by kind of step; 0 where none runs, or device time is not split."""

    def floor(self, record: StepRecord) -> float:
        return self.slowdown * self.fit.predict(_decode_row(record))

    def compute_seconds(self, record: StepRecord) -> float:
        """Elapsed time of forward and sampling at the usual slowdown."""
        return min(elapsed_seconds(record), self.slowdown * running_seconds(record))

    def late_comm_seconds(self, record: StepRecord) -> float:
        """What collectives took beyond the usual."""
        device = record.device_ns
        return 0.0 if device is None else max(0.0, device.comm - self.usual_comm.get(record.kind, 0.0)) / 1e9

    def context_share(self, record: StepRecord) -> float | None:
        """Share of the floor that grows with context; None when the contexts are not known."""
        if record.decode_context_tokens is None:
            return None
        total = self.fit.predict(_decode_row(record))
        return self.fit.coefficients[2] * record.decode_context_tokens / total if total > 0 else 0.0


@dataclass
class StepAnalysis:
    """All that the step records of one window say about gaps. Empty lists when there is too little. It does not change."""

    steps: tuple[StepRecord, ...]
    decode_steps: list[StepRecord]
    mixed_steps: list[StepRecord]
    model: DecodeModel | None
    gaps: list[Gap]
    _accounts: dict[tuple[float, float, float], Account | None] = field(default_factory=dict, init=False, repr=False)

    @property
    def num_gaps(self) -> int:
        return sum(gap.tokens for gap in self.gaps)

    @cached_property
    def _ranked(self) -> Ranked:
        """Many rules ask for quantiles of the same gaps."""
        return Ranked([gap.seconds for gap in self.gaps], [gap.tokens for gap in self.gaps])

    def quantile(self, q: float) -> float:
        """Raises ValueError where there is no gap."""
        return self._ranked.quantile(q)

    def stall_share(self, factor: float) -> float:
        """Share of the streams' decode time that was spent in gaps of at least `factor` times their floor."""
        total = sum(gap.seconds * gap.tokens for gap in self.gaps)
        slow = sum(gap.seconds * gap.tokens for gap in self.gaps if gap.seconds >= factor * gap.floor)
        return slow / total if total else 0.0

    def overbooked_share(self) -> float:
        """Time that the records book beyond the time that went by, as a share of it: nought on a sound engine."""
        total = sum(gap.seconds * gap.tokens for gap in self.gaps)
        extra = sum(max(0.0, gap.booked - gap.seconds) * gap.tokens for gap in self.gaps)
        return extra / total if total else 0.0

    def stalled_tokens_share(self, factor: float) -> float:
        slow = sum(gap.tokens for gap in self.gaps if gap.seconds >= factor * gap.floor)
        return slow / self.num_gaps if self.gaps else 0.0

    def blocked_gaps(self) -> list[Gap]:
        """Gaps of streams that waited for pure prefill steps."""
        return [gap for gap in self.gaps if gap.waited_for_prefill]

    def account_between(self, low: float, high: float, q: float) -> Account | None:
        """Mean split of the gaps with low <= seconds <= high; made once, since many rules ask for the same."""
        asked = (low, high, q)
        if asked not in self._accounts:
            self._accounts[asked] = self._account(q, lambda gap: low <= gap.seconds <= high)
        return self._accounts[asked]

    def account_p50(self) -> Account | None:
        if not self.gaps:
            return None
        return self.account_between(self.quantile(0.45), self.quantile(0.55), 0.5)

    def account_p99(self) -> Account | None:
        if not self.gaps:
            return None
        return self.account_between(self.quantile(0.99), inf, 0.99)

    def account_all(self) -> Account | None:
        return self.account_between(-inf, inf, 0.5)

    def account_stalled(self, factor: float) -> Account | None:
        """Mean split of the stalls alone."""
        return self._account(0.99, lambda gap: gap.seconds >= factor * gap.floor)

    def _account(self, q: float, chosen: Callable[[Gap], bool]) -> Account | None:
        group = [gap for gap in self.gaps if chosen(gap)]
        count = sum(gap.tokens for gap in group)
        if not count or self.model is None:
            return None
        sums = [sum(gap.parts[i] * gap.tokens for gap in group) / count for i in range(len(PARTS))]
        parts = dict(zip(PARTS, sums, strict=True))
        return Account(sum(sums), parts, self.model.basis, self.quantile(q), count)


def analyse_steps(steps: Sequence[StepRecord], policy: Policy) -> StepAnalysis:
    """O(steps). Without enough pure decode steps there is no model, and no gap is split."""
    decode = [record for record in steps if record.kind is StepKind.DECODE]
    mixed = [record for record in steps if record.kind is StepKind.MIXED]
    model = _fit_decode(decode, _usual_comm(steps), policy)
    gaps = list(_gaps(steps, model)) if model is not None else []
    return StepAnalysis(tuple(steps), decode, mixed, model, gaps)


def elapsed_seconds(record: StepRecord) -> float:
    """Forward and sampling time."""
    return (record.forward_ns + (record.sample_ns or 0)) / 1e9


def running_seconds(record: StepRecord) -> float:
    """Forward and sampling time in which the engine's thread really ran; the elapsed time when that is not measured."""
    if record.forward_cpu_ns is None:
        return elapsed_seconds(record)
    return min(record.forward_cpu_ns / 1e9, elapsed_seconds(record))


def _decode_row(record: StepRecord) -> tuple[float, float, float]:
    # Without contexts the column is empty, and the floor is that of the batch alone.
    return 1.0, float(record.num_decode_seqs), float(record.decode_context_tokens or 0)


def _usual_comm(steps: Sequence[StepRecord]) -> dict[StepKind, float]:
    times: dict[StepKind, list[float]] = {}
    for record in steps:
        if record.device_ns is not None:
            times.setdefault(record.kind, []).append(float(record.device_ns.comm))
    return {kind: median(found) for kind, found in times.items()}


def _fit_decode(decode: list[StepRecord], usual_comm: Mapping[StepKind, float], policy: Policy) -> DecodeModel | None:
    if len(decode) < policy.min_decode_steps:
        return None
    stride = -(-len(decode) // _MAX_FIT_ROWS)
    sample = decode[::stride]
    fit = robust_fit([_decode_row(record) for record in sample], [running_seconds(record) for record in sample])
    ratios = [elapsed_seconds(record) / running for record in sample if (running := running_seconds(record)) > 0]
    return DecodeModel(fit, median(ratios) if ratios else 1.0, "fitted", usual_comm)


def _gaps(steps: Sequence[StepRecord], model: DecodeModel) -> Iterable[Gap]:
    prefills: list[StepRecord] = []
    """Pure prefill steps since the last step with decodes."""
    for before, record in pairwise(steps):
        if record.step_id != before.step_id + 1:
            prefills.clear()
            continue  # lost records: what happened in between is unknown
        if before.kind is StepKind.PREFILL:
            prefills.append(before)
        else:
            prefills.clear()
        interval = (record.emit_ns - before.emit_ns) / 1e9
        if interval <= 0:
            continue  # two clocks, or a broken record: no time went by that could be split
        known = _split(before, record, model)
        parts = _fitted_into(known, interval)
        parts[-1] += max(0.0, interval - sum(parts))
        floor, booked = model.floor(record), sum(known)
        if record.num_regular_gaps:
            yield Gap(interval, record.num_regular_gaps, tuple(parts), floor, booked, record)
        for late_ns in record.late_gaps_ns:
            seconds = late_ns / 1e9
            if seconds < interval:
                own = _without_earlier(known, interval - seconds)
                late = _fitted_into(own, seconds)
                late[-1] += max(0.0, seconds - sum(late))
                yield Gap(seconds, 1, tuple(late), floor, sum(own), record)
                continue
            late = _fitted_into(parts, seconds)
            left = max(0.0, seconds - interval)
            waited = 0.0
            if not record.recomputed_tokens:
                waited = min(left, sum(elapsed_seconds(step) for step in prefills))
                late[PARTS.index("prefill")] += waited
            late[PARTS.index("preempted" if record.recomputed_tokens else "deferred")] += left - waited
            yield Gap(seconds, 1, tuple(late), floor, booked, record, waited > 0)


def _split(before: StepRecord, record: StepRecord, model: DecodeModel) -> list[float]:
    """What the records book of the time between two emissions, in the order of PARTS. An engine whose moments are out of
    order books less than nothing of a part: that is nothing here, and what it books beyond the time counts as overbooked."""
    compute, floor = model.compute_seconds(record), model.floor(record)
    decode_part = min(compute, floor)
    collective = min(compute - decode_part, model.late_comm_seconds(record))
    excess = compute - decode_part - collective
    again, computed = record.recomputed_tokens or 0, record.prompt_tokens
    if computed is None:  # how many is not known, but that there were any
        again, computed = 0, int(record.kind is not StepKind.DECODE)
    recompute = excess * again / computed if computed else 0.0
    prefill = excess - recompute if computed else 0.0
    known = {
        "decode_floor": decode_part,
        "prefill": prefill,
        "recompute": recompute,
        "collective": collective,
        "off_cpu": elapsed_seconds(record) - compute,
        "schedule": (record.schedule_ns or 0) / 1e9,
        "prepare": (record.prepare_ns or 0) / 1e9,
        "postprocess": (before.end_ns - before.emit_ns) / 1e9,
        "idle": max(0, record.start_ns - before.end_ns) / 1e9,
        "lock_wait": (record.lock_wait_ns or 0) / 1e9,
    }
    return [max(0.0, known.get(name, 0.0)) for name in PARTS]


def _without_earlier(known: Sequence[float], early: float) -> list[float]:
    """Of a gap that began `early` seconds after the previous step's emission: its first token was a prefill instance's.

    What lay between two steps is the first to have gone by.
    """
    left = list(known)
    for name in ("postprocess", "idle"):
        at = PARTS.index(name)
        cut = min(left[at], early)
        left[at] -= cut
        early -= cut
    return left


def _fitted_into(parts: Sequence[float], seconds: float) -> list[float]:
    """The parts as they are, or shrunk alike where an engine booked more time than went by: no part is ever negative."""
    booked = sum(parts)
    return [part * seconds / booked for part in parts] if booked > seconds else list(parts)


def excess_parts(account: Account, reference_floor: float) -> dict[str, float]:
    """What of an account lies beyond an undisturbed decode step: all but `reference_floor` seconds of decode."""
    excess = dict(account.parts)
    excess["decode_floor"] = max(0.0, excess["decode_floor"] - reference_floor)
    return excess


def typical_floor(analysis: StepAnalysis) -> float | None:
    """Median decode floor over the gaps' steps, seconds."""
    if not analysis.gaps:
        return None
    return weighted_quantile([gap.floor for gap in analysis.gaps], [gap.tokens for gap in analysis.gaps], 0.5)


def mixed_ratio(analysis: StepAnalysis) -> float | None:
    """Median over mixed steps of compute time against a pure decode step of the same batch and context."""
    model = analysis.model
    if model is None:
        return None
    ratios = [
        model.compute_seconds(record) / floor for record in analysis.mixed_steps if (floor := model.floor(record)) > 0
    ]
    return median(ratios) if ratios else None
