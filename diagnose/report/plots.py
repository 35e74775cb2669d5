"""The four plots of the HTML report, each with a caption that says in words what it shows."""

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import ceil, inf, sqrt

from diagnose.account import Account
from diagnose.case import Window
from diagnose.diagnosis import Diagnosis
from diagnose.report import outline, svg
from diagnose.report.markup import Markup, join
from diagnose.stats import median
from diagnose.units import percent, seconds
from probes.catalog import LATENCY_BOUNDS_SECONDS
from probes.records import StepKind, StepRecord

MAX_MARKS = 2000
"""No plot draws more: a page has to stay small enough to be mailed, and a screen has not more columns to show them."""
_KINDS = {StepKind.DECODE: "pure decode", StepKind.MIXED: "mixed", StepKind.PREFILL: "prefill only"}
_MOST_LABELS = 12


@dataclass(frozen=True, slots=True)
class Figure:
    title: str
    caption: str
    """What the picture shows, in words: the text alternative too."""
    image: Markup
    """Empty when there was nothing to draw; the caption then says why."""


def figures(diagnosis: Diagnosis) -> list[Figure]:
    case = diagnosis.case
    return [
        waterfall(diagnosis.account_p99),
        timeline(case.analysis.steps),
        latency_histogram(case.incident, case.baseline),
        census(case.incident),
    ]


# ---- steps over time


def timeline(steps: Sequence[StepRecord]) -> Figure:
    title = "Engine steps over time, by kind"
    if not steps:
        return Figure(title, "No step records in this window.", Markup(""))
    start = steps[0].start_ns
    shown, size = _longest_of_each_kind(steps)
    longest = max(_length(record) for record in shown)
    area = svg.Area(max((steps[-1].end_ns - start) / 1e9, 1e-9), svg.round_up(longest))
    drawn = []
    for kind in StepKind:
        boxes = [
            (x, area.y(_length(r)), max(0.8, area.x((r.end_ns - start) / 1e9) - x), area.floor)
            for r in shown
            if r.kind is kind
            for x in (area.x((r.start_ns - start) / 1e9),)
        ]
        drawn.append(svg.bars(boxes, f"step-{kind.value}"))
    present = [kind for kind in StepKind if any(record.kind is kind for record in steps)]
    caption = "; ".join(_kind_text(kind, [_length(r) for r in steps if r.kind is kind]) for kind in present) + "."
    if size > 1:
        caption += f" Each bar is the longest of its kind among {size} consecutive steps."
    image = svg.picture(
        "timeline",
        title,
        caption,
        area.height,
        svg.rows(area, svg.ticks(area.y_max), _axis(area.y_max)),
        svg.columns(area, _times(area), "seconds since the first step"),
        *drawn,
        svg.legend([(f"step-{kind.value}", _KINDS[kind]) for kind in present]),
    )
    return Figure(title, caption, image)


def _length(record: StepRecord) -> float:
    return max(0, record.end_ns - record.start_ns) / 1e9


def _longest_of_each_kind(steps: Sequence[StepRecord]) -> tuple[list[StepRecord], int]:
    """At most MAX_MARKS of them, and out of how many consecutive ones each was chosen."""
    if len(steps) <= MAX_MARKS:
        return list(steps), 1
    size = ceil(len(StepKind) * len(steps) / MAX_MARKS)
    chosen: list[StepRecord] = []
    for at in range(0, len(steps), size):
        longest: dict[StepKind, StepRecord] = {}
        for record in steps[at : at + size]:
            if record.kind not in longest or _length(record) > _length(longest[record.kind]):
                longest[record.kind] = record
        chosen += longest.values()
    return chosen, size


def _kind_text(kind: StepKind, lengths: list[float]) -> str:
    plural = "step" if len(lengths) == 1 else "steps"
    return f"{len(lengths)} {_KINDS[kind]} {plural}, median {seconds(median(lengths))}, longest {seconds(max(lengths))}"


def _times(area: svg.Area) -> list[tuple[float, str]]:
    return [(value, f"{value:g}") for value in svg.ticks(area.x_max, 8)]


def _axis(top: float) -> Callable[[float], str]:
    """One unit for a whole axis."""
    return (lambda value: f"{value:.4g} s") if top >= 2 else (lambda value: f"{value * 1e3:.4g} ms")


# ---- inter-token latency


@dataclass(frozen=True, slots=True)
class _Histogram:
    counts: list[float]
    """Per bucket of LATENCY_BOUNDS_SECONDS or of the target's own bounds, the last one beyond the last bound."""
    bounds: tuple[float, ...]

    def shares(self) -> list[float]:
        total = sum(self.counts)
        return [count / total for count in self.counts]


def latency_histogram(incident: Window, baseline: Window | None) -> Figure:
    title = "Inter-token latency, share of the tokens"
    now = _histogram(incident)
    before = None if baseline is None else _histogram(baseline)
    if now is None:
        return Figure(title, "No inter-token gap was observed in this window.", Markup(""))
    if before is not None and before.bounds != now.bounds:
        before = None  # two engines' buckets: shares of unlike ranges would not compare
    caption = f"{sum(now.counts):.0f} gaps"
    if before is not None:
        caption += f" now against {sum(before.counts):.0f} of the baseline"
    elif baseline is not None:
        caption += "; the baseline has none in the same buckets"
    caption += ". Root scale, so that a small tail is seen: " + _tail_text(now, before) + "."
    return Figure(title, caption, _draw_histogram(title, caption, now, before))


def _histogram(window: Window) -> _Histogram | None:
    if window.analysis.gaps:
        counts = [0.0] * (len(LATENCY_BOUNDS_SECONDS) + 1)
        for gap in window.analysis.gaps:
            counts[bisect_left(LATENCY_BOUNDS_SECONDS, gap.seconds)] += gap.tokens
        return _Histogram(counts, LATENCY_BOUNDS_SECONDS)
    found = window.signals.histograms.get("inter_token_latency")
    return None if found is None or not found.count else _Histogram(list(found.counts), found.bounds)


def _tail_text(now: _Histogram, before: _Histogram | None) -> str:
    """The highest bucket in which something lies."""
    last = max(index for index, count in enumerate(now.counts) if count)
    low = now.bounds[last - 1] if last else 0.0
    text = f"{percent(now.shares()[last])} of the tokens came after more than {seconds(low)}"
    if before is not None:
        beyond = sum(before.shares()[last:])
        text += f" (baseline: {percent(beyond)})"
    return text


def _draw_histogram(title: str, caption: str, now: _Histogram, before: _Histogram | None) -> Markup:
    series = [now.shares(), *([before.shares()] if before is not None else [])]
    used = [index for index in range(len(now.counts)) if any(shares[index] for shares in series)]
    first, last = used[0], used[-1]
    area = svg.Area(last - first + 1, 1.0, bend=sqrt)
    width = area.x(1) - area.x(0)
    drawn = []
    for place, (shares, class_) in enumerate(zip(series, ("now", "before"), strict=False)):
        boxes = [
            (area.x(i - first) + width * (0.08 + 0.44 * place), area.y(shares[i]), width * 0.4, area.floor)
            for i in range(first, last + 1)
            if shares[i]
        ]
        drawn.append(svg.bars(boxes, class_))
    stride = ceil((last - first + 2) / _MOST_LABELS)
    edges = [(0.0, *now.bounds, inf)[i] for i in range(first, last + 2)]
    marks = [(float(i), _edge(edge)) for i, edge in enumerate(edges) if i % stride == 0]
    names = [("now", "now"), ("before", "baseline")][: len(series)]
    return svg.picture(
        "latency",
        title,
        caption,
        area.height,
        svg.rows(area, (0, 0.01, 0.05, 0.1, 0.25, 0.5, 1), percent),
        svg.columns(area, marks, "inter-token latency (bucket edges)"),
        *drawn,
        svg.legend(names),
    )


def _edge(value: float) -> str:
    return "inf" if value == inf else f"{value:g} s" if value >= 1 else f"{value * 1e3:g} ms"


# ---- blocks


@dataclass(frozen=True, slots=True)
class _Level:
    at: float
    active: float
    reclaimable: float
    free: float

    @property
    def total(self) -> float:
        return self.active + self.reclaimable + self.free


def census(window: Window) -> Figure:
    title = "KV blocks over time"
    levels, name = _levels(window)
    source = window.signals.steps_source if window.signals.steps else "the scrapes"
    top = max((level.total for level in levels), default=0.0)
    if top <= 0:
        return Figure(title, "Active, reclaimable and free blocks were not measured as disjoint counts.", Markup(""))
    shown, size = _fullest(levels)
    peak = max(level.active for level in levels)
    caption = (
        f"Active blocks peaked at {peak:,.0f} of {top:,.0f} ({percent(peak / top)}); at the end {levels[-1].active:,.0f} active, "
        f"{levels[-1].reclaimable:,.0f} reclaimable, {levels[-1].free:,.0f} free (by {source})."
    )
    if size > 1:
        caption += f" Each point is the fullest of {size} consecutive ones."
    area = svg.Area(max(levels[-1].at, 1e-9), top)
    edges = [(area.x(v.at), area.y(v.active), area.y(v.active + v.reclaimable), area.y(v.total)) for v in shown]
    image = svg.picture(
        "census",
        title,
        caption,
        area.height,
        svg.band([(x, area.floor, active) for x, active, _, _ in edges], "blocks-active"),
        svg.band([(x, active, cached) for x, active, cached, _ in edges], "blocks-reclaimable"),
        svg.band([(x, cached, full) for x, _, cached, full in edges], "blocks-free"),
        svg.rows(area, svg.ticks(area.y_max), lambda value: f"{value:,.0f}"),
        svg.columns(area, _times(area), name),
        svg.legend([(f"blocks-{state}", state) for state in ("active", "reclaimable", "free")]),
    )
    return Figure(title, caption, image)


def _levels(window: Window) -> tuple[list[_Level], str]:
    """From the step records; from the scrapes, whose times no signal keeps, without them. And what x counts."""
    steps = window.signals.steps
    counted = [(r.end_ns - steps[0].end_ns, r.census) for r in steps if r.census is not None]
    if counted:
        return [_Level(ns / 1e9, *map(float, census)) for ns, census in counted], "seconds"
    found = [window.signals.gauges.get(f"blocks_{state}") for state in ("active", "reclaimable", "free")]
    series = [gauge.values for gauge in found if gauge is not None]
    includes = window.signals.free_includes_reclaimable
    if len(series) < 3 or includes is None or len({len(values) for values in series}) > 1:
        return [], ""
    return [
        _Level(float(at), active, cached, max(0.0, free - cached) if includes else free)
        for at, (active, cached, free) in enumerate(zip(*series, strict=True))
    ], "scrape"


def _fullest(levels: list[_Level]) -> tuple[list[_Level], int]:
    size = ceil(3 * len(levels) / MAX_MARKS)
    chunks = [levels[at : at + size] for at in range(0, len(levels), size)]
    return [max(chunk, key=lambda level: level.active) for chunk in chunks], size


# ---- account


def waterfall(account: Account | None) -> Figure:
    title = "Where the time of a slow token goes (p99)"
    if account is None or account.total_seconds <= 0:
        return Figure(title, outline.NO_ACCOUNT.capitalize() + ".", Markup(""))
    rows = outline.part_rows(account)
    caption = outline.account_group("p99", account)
    left, height = 168.0, 26.0
    ends = [0.0, *accumulate(row.seconds for row in rows)]
    highest = [
        start + (row.bounds.high if row.bounds is not None else 0.0) for start, row in zip(ends, rows, strict=False)
    ]
    area = svg.Area(max(ends[-1], *highest), 1, height=height * (len(rows) + 1) + 12, left=left, right=130, top=6)
    drawn: list[Markup] = []
    for index, (start, row) in enumerate(zip(ends, rows, strict=False)):
        y = 6 + index * height
        x, end = area.x(start), area.x(start + row.seconds)
        drawn += [
            svg.label(left - 8, y + 16, row.label, anchor="end"),
            svg.bars([(x, y + 3, max(1.0, end - x), y + height - 5)], "part-other" if row.label == "other" else "part"),
        ]
        if row.bounds is not None:
            low, high = area.x(start + row.bounds.low), area.x(start + row.bounds.high)
            drawn.append(svg.line(low, y + 11, high, y + 11, "whisker"))
            end = max(end, high)
        drawn.append(svg.label(end + 6, y + 16, f"{seconds(row.seconds)}, {percent(row.share)}"))
    y = 6 + len(rows) * height
    x = area.x(ends[-1])
    drawn += [
        svg.label(left - 8, y + 16, "total", anchor="end", class_="strong"),
        svg.bars([(left, y + 3, x - left, y + height - 5)], "total"),
        svg.label(x + 6, y + 16, seconds(account.total_seconds), class_="strong"),
    ]
    sentence = outline.account_sentence("p99", account)
    return Figure(title, caption, svg.picture("waterfall", title, sentence, area.height, join(drawn)))
