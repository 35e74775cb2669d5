"""What the blocks of a comparison show. Pure: blocks in, a verdict with its figures out."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from statistics import fmean, median

from diagnose.policy import DEFAULT_POLICY, Policy
from diagnose.units import percent, seconds
from runbooks.experiments.figures import Block, Lengths, lengths
from runbooks.experiments.metrics import METRICS, Metric
from runbooks.experiments.statistics import LEVEL, Difference, paired_difference


class Outcome(StrEnum):
    CONFIRMED = "confirmed"
    """The knob moved the symptom the way the hypothesis says, beyond chance and noise."""
    REFUTED = "refuted"
    """It moved it the other way, or by no more than would matter."""
    NOT_SHOWN = "not shown"
    """The interval holds both nothing and something that matters."""
    NOT_COMPARABLE = "not comparable"
    """The arms met different conditions, so that no difference means anything."""
    NOISE_FLOOR = "noise floor"
    """Both arms were the same: what differs is noise."""
    INCOMPLETE = "incomplete"
    """Too few pairs were completed to test anything."""


@dataclass(frozen=True, slots=True)
class Question:
    """What the comparison was made for."""

    metric: str = "itl_p99"
    matters: float = 0.10
    """The least effect worth a change, as a share of arm A's figure."""
    hypothesis: str | None = None
    expect_better: bool = True
    """Whether arm B should better the metric."""
    same_arms: bool = False
    """A/A: prints the noise floor."""


@dataclass(frozen=True, slots=True)
class Row:
    metric: Metric
    first: float
    """Mean over arm A's blocks."""
    second: float
    difference: Difference | None
    """None with a single pair."""
    samples: int

    @property
    def noise(self) -> float | None:
        """The larger end of the interval: in an A/A comparison, what differs without a cause."""
        return None if self.difference is None else max(abs(self.difference.low), abs(self.difference.high))


@dataclass(frozen=True, slots=True)
class Result:
    outcome: Outcome
    reading: tuple[str, ...]
    """In sentences, the verdict first."""
    rows: tuple[Row, ...]
    mismatches: tuple[str, ...]
    pairs: int
    level: float
    """The p that counted as shown."""

    @property
    def decided(self) -> bool:
        return self.outcome in (Outcome.CONFIRMED, Outcome.REFUTED)


def analyse(
    blocks: Sequence[Block],
    question: Question,
    *,
    level: float = LEVEL,
    noise: float | None = None,
    policy: Policy = DEFAULT_POLICY,
) -> Result:
    """`noise`: the question's metric in an earlier A/A comparison, in its unit; nothing below it is called an effect."""
    first, second = paired_blocks(blocks)
    rows = tuple(row for metric in METRICS.values() if (row := _row(metric, first, second)) is not None)
    if not first:
        return Result(Outcome.INCOMPLETE, ("No pair of blocks was completed.",), rows, (), 0, level)
    mismatches = tuple(match(first, second, policy))
    outcome, sentence = _outcome(rows, question, mismatches, level, noise)
    return Result(outcome, (sentence, *_trade(rows, question, outcome, level)), rows, mismatches, len(first), level)


def paired_blocks(blocks: Sequence[Block]) -> tuple[list[Block], list[Block]]:
    """Blocks of arm A and of arm B, of the pairs that have both."""
    by_pair: dict[int, dict[str, Block]] = {}
    for block in blocks:
        by_pair.setdefault(block.pair, {})[block.arm] = block
    whole = [by_pair[pair] for pair in sorted(by_pair) if len(by_pair[pair]) == 2]
    return [pair["A"] for pair in whole], [pair["B"] for pair in whole]


def _row(metric: Metric, first: Sequence[Block], second: Sequence[Block]) -> Row | None:
    pairs = [
        (a.figures[metric.name], b.figures[metric.name])
        for a, b in zip(first, second, strict=True)
        if metric.name in a.figures and metric.name in b.figures
    ]
    if not pairs:
        return None
    before, after = [a for a, _ in pairs], [b for _, b in pairs]
    kind = metric.name.split("_")[0]
    return Row(
        metric,
        fmean(before),
        fmean(after),
        paired_difference(before, after) if len(pairs) > 1 else None,
        sum(block.samples[kind] for block in (*first, *second)),
    )


def _outcome(
    rows: Sequence[Row], question: Question, mismatches: Sequence[str], level: float, noise: float | None
) -> tuple[Outcome, str]:
    row = next((row for row in rows if row.metric.name == question.metric), None)
    if question.same_arms:
        floors = [f"{r.metric.text} {_value(r.metric, r.noise)}" for r in rows if r.noise is not None]
        return Outcome.NOISE_FLOOR, f"Noise floor, the arms being the same: {', '.join(floors) or 'unknown'}."
    if mismatches:
        return (
            Outcome.NOT_COMPARABLE,
            "Not comparable, so that no difference is given: the arms met different conditions.",
        )
    if row is None or row.difference is None:
        return Outcome.INCOMPLETE, f"Too few pairs with {METRICS[question.metric].text} to test anything."
    difference, metric = row.difference, row.metric
    better = (difference.mean < 0) == metric.lower_is_better
    shown = difference.p <= level and (noise is None or abs(difference.mean) > noise)
    text = f"{metric.text} {_change(row)} (p = {difference.p:.3g}, {difference.pairs} pairs)"
    if shown and better == question.expect_better:
        return Outcome.CONFIRMED, f"Confirmed for this target under this load: {text}."
    if shown:
        return Outcome.REFUTED, f"Refuted: {text}, the other way than expected."
    bound = question.matters * abs(row.first)
    if max(abs(difference.low), abs(difference.high)) < bound:
        return Outcome.REFUTED, f"Refuted: no effect of {percent(question.matters)} of arm A or more: {text}."
    below = (
        f" (below the noise floor of {_value(metric, noise)})" if difference.p <= level and noise is not None else ""
    )
    return Outcome.NOT_SHOWN, f"Not shown: {text}{below}. More pairs, or longer blocks, would narrow the interval."


def _trade(rows: Sequence[Row], question: Question, outcome: Outcome, level: float) -> list[str]:
    """What else moved: a gain on one side and a loss on the other is a trade, never a win."""
    if outcome in (Outcome.NOT_COMPARABLE, Outcome.NOISE_FLOOR, Outcome.INCOMPLETE):
        return []
    moved = [row for row in rows if row.metric.name != question.metric and row.difference and row.difference.p <= level]
    worse = [row for row in moved if row.difference and (row.difference.mean > 0) == row.metric.lower_is_better]
    better = [row for row in moved if row not in worse]
    lines = []
    if worse:
        lines.append(f"The price in arm B: {'; '.join(f'{r.metric.text} {_change(r)}' for r in worse)}.")
    if better:
        lines.append(f"Better in arm B besides: {'; '.join(f'{r.metric.text} {_change(r)}' for r in better)}.")
    if not moved:
        lines.append("No other figure is shown to differ.")
    return lines


def _change(row: Row) -> str:
    difference = row.difference
    assert difference is not None
    low, high = (_value(row.metric, edge, signed=True) for edge in (difference.low, difference.high))
    return (
        f"{_value(row.metric, row.first)} -> {_value(row.metric, row.second)}, "
        f"{_value(row.metric, difference.mean, signed=True)} [{low}, {high}]"
    )


def _value(metric: Metric, value: float | None, *, signed: bool = False) -> str:
    if value is None:
        return "unknown"
    sign = ("-" if value < 0 else "+") if signed else ""
    size = abs(value) if signed else value
    return f"{sign}{seconds(size)}" if metric.unit == "s" else f"{sign}{size:.3g}/s"


def format_value(metric: Metric, value: float | None, *, signed: bool = False) -> str:
    """For tables: `412 ms`, `-1.2 s`, `8.31/s`."""
    return _value(metric, value, signed=signed)


# ---- whether the arms met the same conditions


def match(first: Sequence[Block], second: Sequence[Block], policy: Policy) -> list[str]:
    """Every condition that differs between the arms, in sentences."""
    found: list[str] = []
    rates = [fmean(block.conditions.arrivals_per_second for block in arm) for arm in (first, second)]
    found += _differ("arrival rate", rates[0], rates[1], policy.matched_arrivals, "/s")
    means = _lengths(first, second)
    if means is not None:
        a, b = means
        found += _differ("prompt length", a.prompt, b.prompt, policy.matched_context, " tokens")
        found += _differ("output length", a.output, b.output, policy.matched_context, " tokens")
        if a.hit_rate is not None and b.hit_rate is not None and abs(b.hit_rate - a.hit_rate) > policy.matched_hit_rate:
            found.append(f"prefix hit rate: {percent(a.hit_rate)} in arm A, {percent(b.hit_rate)} in arm B")
    others = [_mean_condition(arm, "others") for arm in (first, second)]
    if None not in others and abs((others[1] or 0.0) - (others[0] or 0.0)) > policy.matched_others:
        found.append(
            f"traffic of others: {percent(others[0] or 0)} of what was served in arm A, {percent(others[1] or 0)} in arm B"
        )
    errors = [_mean_condition(arm, "error_rate") or 0.0 for arm in (first, second)]
    if abs(errors[1] - errors[0]) > policy.matched_error_rate:
        first_error = next((block.first_error for block in (*first, *second) if block.first_error), "")
        found.append(f"failed requests: {percent(errors[0])} in arm A, {percent(errors[1])} in arm B ({first_error})")
    return found + _client_mismatches(first, second, policy)


def _differ(name: str, before: float | None, after: float | None, tolerance: float, unit: str) -> list[str]:
    if before is None or after is None or abs(after - before) <= tolerance * max(before, after):
        return []
    return [f"{name}: {before:.3g}{unit} in arm A, {after:.3g}{unit} in arm B (allowed: {percent(tolerance)})"]


def _lengths(first: Sequence[Block], second: Sequence[Block]) -> tuple[Lengths, Lengths] | None:
    """Over the arrivals that both blocks of a pair answered: a slower arm answers fewer of them, and not the same mix."""
    both = [
        (a, b)
        for one, other in zip(first, second, strict=True)
        for a, b in zip(one.conditions.answers, other.conditions.answers, strict=True)
        if a is not None and b is not None
    ]
    before, after = lengths([a for a, _ in both]), lengths([b for _, b in both])
    return None if before is None or after is None else (before, after)


def _mean_condition(arm: Sequence[Block], attribute: str) -> float | None:
    values = [getattr(block.conditions, attribute) for block in arm]
    return None if None in values else fmean(values)


def _client_mismatches(first: Sequence[Block], second: Sequence[Block], policy: Policy) -> list[str]:
    found: list[str] = []
    for name, arm in (("A", first), ("B", second)):
        requests = sum(block.samples["goodput"] for block in arm)
        late = sum(block.late_sends for block in arm)
        if late > policy.client_late_sends * max(1, requests):
            found.append(
                f"client: {late} of {requests} requests of arm {name} were sent late; run it elsewhere, or lower the rate"
            )
        gaps = [block.figures["itl_p50"] for block in arm if "itl_p50" in block.figures]
        lag = median(block.lag_p99 for block in arm)
        if gaps and lag > policy.client_lag * median(gaps):
            found.append(
                f"client: its own event loop is {seconds(lag)} late at p99 in arm {name}, gaps are {seconds(median(gaps))}"
            )
    speeds = [median(block.speed for block in arm) for arm in (first, second)]
    if abs(speeds[1] - speeds[0]) > policy.matched_speed * max(speeds):
        found.append(f"machine speed: index {speeds[0]:.0f} before arm A's blocks, {speeds[1]:.0f} before arm B's")
    return found
