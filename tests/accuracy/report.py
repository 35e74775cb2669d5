"""The table that `python -m tests.accuracy` prints, as Markdown."""

from collections.abc import Iterator, Sequence

from tests.accuracy.score import (
    NONE,
    Answer,
    abstention_precision,
    confusion,
    per_condition,
    rate,
)
from tests.accuracy.windows import View


def render(answers: Sequence[Answer], heading: str) -> str:
    ours = [a for a in answers if a.tool == "stallscope"]
    lines = [heading, "", *_summary(answers)]
    lines += ["", "Of the held-out third only (a shape and every third seed, kept from any tuning):", ""]
    lines += _summary([a for a in answers if a.held_out])
    for view in (View.RECORDS, View.SCRAPE):
        seen = [a for a in ours if a.view is view]
        lines += ["", f"## By condition: {view.value}", "", *_by_condition(seen)]
        lines += ["", f"## Confusion: {view.value}", "", *_confusion(seen)]
    lines += ["", "## Masked twins", "", *_masked([a for a in ours if a.view is View.MASKED])]
    lines += ["", "## What went wrong", "", *_failures(ours)]
    return "\n".join(lines) + "\n"


def _summary(answers: Sequence[Answer]) -> Iterator[str]:
    yield "| tool | sees | right | wrong and confident | false supported | false kv_exhaustion | abstention precision |"
    yield "|---|---|---|---|---|---|---|"
    groups: dict[tuple[str, View], list[Answer]] = {}
    for a in answers:
        groups.setdefault((a.tool, a.view), []).append(a)
    for (tool, view), group in groups.items():
        abstained = "-" if view is View.MASKED else abstention_precision(group)
        yield (
            f"| {tool} | {view.value} | {rate(group, lambda a: a.is_right)} "
            f"| {rate(group, lambda a: a.is_wrong_and_confident)} | {rate(group, lambda a: bool(a.false_supported))} "
            f"| {rate(group, lambda a: 'kv_exhaustion' in a.false_supported)} | {abstained} |"
        )


def _by_condition(answers: Sequence[Answer]) -> Iterator[str]:
    yield "| primary cause | precision | recall |"
    yield "|---|---|---|"
    for scores in per_condition(answers):
        yield f"| {scores.name} | {scores.precision} | {scores.recall} |"
    calm = [a for a in answers if not a.truth.primary]
    yield f"| {NONE} | {abstention_precision(answers)} | {rate(calm, lambda a: a.is_right)} |"


def _confusion(answers: Sequence[Answer]) -> Iterator[str]:
    yield "| induced | named primary |"
    yield "|---|---|"
    for induced, named in sorted(confusion(answers).items()):
        yield f"| {induced} | {', '.join(f'{name} {count}' for name, count in named.most_common())} |"


def _masked(answers: Sequence[Answer]) -> Iterator[str]:
    yield "| condition without its deciding signal | undetermined, and says what is missing | wrong and confident |"
    yield "|---|---|---|"
    for name in sorted({a.case for a in answers}):
        group = [a for a in answers if a.case == name]
        yield f"| {name} | {rate(group, lambda a: a.undetermined)} | {rate(group, lambda a: a.is_wrong_and_confident)} |"


def _failures(answers: Sequence[Answer]) -> Iterator[str]:
    """Every answer that names a wrong cause or supports what is not so, to be looked at again by its seed."""
    wrong = [a for a in answers if a.is_wrong_and_confident or a.false_supported]
    if not wrong:
        yield "No wrong primary cause, and nothing supported that is not so."
        return
    yield "| case | sees | primary | false supported |"
    yield "|---|---|---|---|"
    for a in wrong:
        mark = "" if a.moved else " (unmoved)"
        false = ", ".join(sorted(a.false_supported)) or "-"
        yield f"| {a.case}/{a.shape}/{a.seed}{mark} | {a.view.value} | {a.primary or NONE} | {false} |"
