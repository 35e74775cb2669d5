"""A comparison for people and for programs: text, Markdown, HTML with two plots, and JSON."""

import textwrap
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from statistics import fmean
from typing import Any

from diagnose.report import svg
from diagnose.report.document import document
from diagnose.report.markup import Markup, element, join
from diagnose.units import percent, seconds
from runbooks.experiments.analysis import Outcome, Question, Result, Row, format_value, paired_blocks
from runbooks.experiments.figures import Block, lengths
from runbooks.experiments.metrics import METRICS

SCHEMA = 1
_CURVE_POINTS = 200
_WIDTH = 80
_ARMS = (("A", "before"), ("B", "now"))
"""Arm and the style class of its marks."""


@dataclass(frozen=True, slots=True)
class Report:
    labels: dict[str, str]
    """A and B -> what each is."""
    differences: tuple[str, ...]
    """Of both arms' configuration, as far as it can be read."""
    load: tuple[str, ...]
    question: Question
    result: Result
    blocks: tuple[Block, ...]
    notes: tuple[str, ...]
    """Interruptions, crashes, early stops, confounded arms."""


def text_lines(report: Report) -> list[str]:
    """At most 80 columns, but for what the target itself says."""
    result = report.result
    reading = [line for text in result.reading for line in textwrap.wrap(text, _WIDTH)]
    head = [f"Experiment: {result.outcome.value}", *reading, ""]
    arms = [f"  {name}  {label}" for name, label in report.labels.items()]
    different = [f"  {text}" for text in report.differences] or ["  nothing that can be read of them"]
    return [
        *head,
        "Arms",
        *arms,
        "They differ in",
        *different,
        "Load, the same in both",
        *(f"  {text}" for text in report.load),
        "",
        *_table(result.rows),
        *(
            [
                "",
                "Conditions that did not match",
                *(f"  {line}" for text in result.mismatches for line in textwrap.wrap(text, _WIDTH - 2)),
            ]
            if result.mismatches
            else []
        ),
        *(["", *(line for text in report.notes for line in textwrap.wrap(text, _WIDTH))] if report.notes else []),
        "",
        f"{result.pairs} pairs of blocks in random order; p by sign flips and 95 % intervals over",
        f"pairs; shown means p <= {result.level:g}.",
    ]


def _table(rows: Sequence[Row]) -> list[str]:
    lines = [f"{'mean of blocks':<20}{'A':>10}{'B':>10}{'B - A':>10}  {'95 % interval':<21}{'p':>6}"]
    for row in rows:
        cells = (
            f"{row.metric.text:<20}{format_value(row.metric, row.first):>10}{format_value(row.metric, row.second):>10}"
        )
        if row.difference is None:
            lines.append(f"{cells}{'one pair':>10}")
            continue
        low, high = (format_value(row.metric, edge, signed=True) for edge in (row.difference.low, row.difference.high))
        mean = format_value(row.metric, row.difference.mean, signed=True)
        lines.append(f"{cells}{mean:>10}  {f'[{low}, {high}]':<21}{row.difference.p:>6.3f}")
    return lines


def markdown(report: Report) -> str:
    """The same as the text, with the table as one."""
    lines = text_lines(report)
    start = lines.index(_table(report.result.rows)[0])
    table = lines[start : start + 1 + len(report.result.rows)]
    body = [f"- {line.strip()}" if line.startswith("  ") else line for line in lines]
    body[0] = f"# {body[0]}"
    body[start : start + len(table)] = ["```", *table, "```"]
    return "\n\n".join(_paragraphs(body)) + "\n"


def _paragraphs(lines: Sequence[str]) -> list[str]:
    """Lists and code stay together; every other line is a paragraph."""
    groups: list[list[str]] = []
    fenced = False
    for line in lines:
        joins = groups and (fenced or (line.startswith("- ") and groups[-1][-1].startswith("- ")))
        if line == "```":
            joins = fenced
            fenced = not fenced
        if not line:
            continue
        if joins:
            groups[-1].append(line)
        else:
            groups.append([line])
    return ["\n".join(group) for group in groups]


def to_json(report: Report) -> dict[str, Any]:
    """Schema 1. Times are seconds."""
    result = report.result
    return {
        "stallscope_experiment": SCHEMA,
        "outcome": result.outcome.value,
        "reading": list(result.reading),
        "hypothesis": report.question.hypothesis,
        "metric": report.question.metric,
        "arms": dict(report.labels),
        "differences": list(report.differences),
        "load": list(report.load),
        "pairs": result.pairs,
        "level": result.level,
        "mismatches": list(result.mismatches),
        "notes": list(report.notes),
        "rows": {
            row.metric.name: {
                "first": row.first,
                "second": row.second,
                "difference": None if row.difference is None else asdict(row.difference),
                "samples": row.samples,
            }
            for row in result.rows
        },
        "blocks": [_block_json(block) for block in report.blocks],
    }


def _block_json(block: Block) -> dict[str, Any]:
    """Without the single gaps and answers: their quantiles and means are there."""
    found = {name: value for name, value in asdict(block).items() if name != "gaps"}
    answers = [answer for answer in block.conditions.answers if answer is not None]
    means = lengths(answers)
    found["conditions"] |= {"answers": len(answers), "lengths": None if means is None else asdict(means)}
    return found


def apply_to_diagnosis(diagnosis: dict[str, Any], report: Report) -> dict[str, Any]:
    """A diagnosis as JSON with the comparison's verdict in it: the only way by which a cause becomes `confirmed`.

    Raises KeyError when it does not hold the hypothesis.
    """
    name, outcome = report.question.hypothesis, report.result.outcome
    assert name is not None
    verdict = dict(diagnosis["verdicts"][name])
    if outcome in (Outcome.CONFIRMED, Outcome.REFUTED):
        verdict["verdict"] = outcome.value
    evidence = {
        "text": report.result.reading[0],
        "stance": {Outcome.CONFIRMED: "for", Outcome.REFUTED: "against"}.get(outcome, "context"),
        "value": None,
        "unit": "",
        "compared_with": f"{report.labels['A']} against {report.labels['B']}",
        "source": "stallscope experiment",
        "window": "experiment",
        "samples": report.result.pairs,
    }
    verdict["evidence"] = [*verdict["evidence"], evidence]
    updated = {**diagnosis, "verdicts": {**diagnosis["verdicts"], name: verdict}, "experiment": to_json(report)}
    if outcome is Outcome.CONFIRMED:
        updated["primary"] = name
        updated["decision"] = {
            **diagnosis["decision"],
            "kind": "change",
            "summary": f"{name} is confirmed: apply {report.labels['B']} within the bounds that were tested",
            "steps": [{"text": f"undo: back to {report.labels['A']}", "command": ""}],
            "trade": " ".join(report.result.reading[1:]),
        }
    elif outcome is Outcome.REFUTED and diagnosis["primary"] == name:
        updated["primary"] = None
    return updated


# ---- HTML


def html(report: Report) -> str:
    """One file that needs nothing else."""
    title = f"Experiment: {report.result.outcome.value}"
    lines = text_lines(report)
    table = _table(report.result.rows)
    start = lines.index(table[0])
    facts = [*lines[lines.index("Arms") : start], *lines[start + len(table) :]]
    return document(
        title,
        element("header", element("h1", title), *(element("p", text) for text in report.result.reading)),
        element(
            "main",
            element("section", element("h2", "Figures"), element("pre", "\n".join(table))),
            *(element("section", element("h2", name), image) for name, image in _plots(report)),
            element("section", element("h2", "How it was measured"), element("pre", "\n".join(facts).strip())),
        ),
    )


def _plots(report: Report) -> list[tuple[str, Markup]]:
    first, second = paired_blocks(report.blocks)
    if not first:
        return []
    plots = [(f"{METRICS[report.question.metric].text} per block", _block_plot(report, first, second))]
    gaps = [sorted(gap for block in arm for gap in block.gaps) for arm in (first, second)]
    if all(gaps):
        plots.insert(0, ("Inter-token latency, cumulative share of the tokens", _cdf(gaps)))
    return plots


def _cdf(gaps: Sequence[Sequence[float]]) -> Markup:
    top = max(values[int(0.999 * (len(values) - 1))] for values in gaps)
    area = svg.Area(svg.round_up(top), 1.0)
    curves = []
    for values, (name, class_) in zip(gaps, _ARMS, strict=True):
        points = []
        for index in range(_CURVE_POINTS + 1):
            at = area.x_max * index / _CURVE_POINTS
            share = bisect_right(values, at) / len(values)
            points.append((area.x(at), area.y(share) - 1, area.y(share) + 1))
        curves.append(svg.band(points, class_))
        del name
    text = "; ".join(
        f"arm {name}: {len(values)} gaps, half within {seconds(values[len(values) // 2])}, 99 % within "
        f"{seconds(values[int(0.99 * (len(values) - 1))])}"
        for values, (name, _) in zip(gaps, _ARMS, strict=True)
    )
    return svg.picture(
        "cdf",
        "Inter-token latency per arm",
        text,
        area.height,
        svg.rows(area, (0, 0.25, 0.5, 0.75, 0.95, 1), percent),
        svg.columns(area, [(value, f"{value:g}") for value in svg.ticks(area.x_max, 8)], "seconds between tokens"),
        *curves,
        svg.legend([(class_, f"arm {name}") for name, class_ in _ARMS]),
    )


def _block_plot(report: Report, first: Sequence[Block], second: Sequence[Block]) -> Markup:
    metric = METRICS[report.question.metric]
    values = [[block.figures.get(metric.name, 0.0) for block in arm] for arm in (first, second)]
    top = max(max(column) for column in values)
    area = svg.Area(len(first), svg.round_up(top))
    width = area.x(1) - area.x(0)
    bars = [
        svg.bars(
            [
                (area.x(pair) + width * (0.1 + 0.4 * place), area.y(value), width * 0.36, area.floor)
                for pair, value in enumerate(column)
            ],
            class_,
        )
        for place, (column, (_, class_)) in enumerate(zip(values, _ARMS, strict=True))
    ]
    text = "; ".join(
        f"arm {name}: mean {format_value(metric, fmean(column))}, from {format_value(metric, min(column))} to "
        f"{format_value(metric, max(column))}"
        for column, (name, _) in zip(values, _ARMS, strict=True)
    )
    return svg.picture(
        "blocks",
        f"{metric.text} per pair of blocks",
        text,
        area.height,
        svg.rows(area, svg.ticks(area.y_max), lambda value: format_value(metric, value)),
        svg.columns(area, [(pair + 0.5, str(pair + 1)) for pair in range(len(first))], "pair"),
        join(bars),
        svg.legend([(class_, f"arm {name}") for name, class_ in _ARMS]),
    )
