"""The table that `python -m tests.accuracy` prints, as Markdown."""

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from diagnose.stats import median
from tests.accuracy.accounts import AccountCheck
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
    lines = [heading, "", *summary(answers)]
    lines += ["", "Of the held-out third only (a shape and every third seed, kept from any tuning):", ""]
    lines += summary([a for a in answers if a.held_out])
    lines += ["", "## Right answers by what is seen", "", *_by_view(ours)]
    for view in (View.RECORDS, View.SCRAPE):
        seen = [a for a in ours if a.view is view]
        lines += ["", f"## By condition: {view.value}", "", *_by_condition(seen)]
        lines += ["", f"## Confusion: {view.value}", "", *_confusion(seen)]
    lines += ["", "## Masked twins", "", *_masked([a for a in ours if a.view is View.MASKED])]
    lines += ["", "## Time to the right answer", "", *_times(ours)]
    lines += ["", "## The latency account against the truth", "", *_accounts(ours)]
    lines += ["", _OF_ACCOUNTS]
    lines += ["", "## What went wrong", "", *_failures(ours)]
    return "\n".join(lines) + "\n"


_OF_ACCOUNTS = (
    "In the truth a step that something else disturbs (one of 500 takes half as long again) takes its time for what it "
    "computed; the account calls that time other. It is most of what is in a wrong part at p99 where no prompt is in the "
    "slow gaps."
)


def put_section(path: Path, section: str) -> None:
    """In place of the section of the same title, up to its colon or end, or behind all others."""
    title = _title(section)
    text = path.read_text() if path.exists() else ""
    sections = [f"# {part.rstrip()}\n" for part in ("\n" + text).split("\n# ")[1:]]
    place = next((i for i, old in enumerate(sections) if _title(old) == title), len(sections))
    sections[place : place + 1] = [section]
    path.write_text("\n".join(sections))


def _title(section: str) -> str:
    return section.split("\n", 1)[0].split(":", 1)[0]


def summary(answers: Sequence[Answer]) -> Iterator[str]:
    yield (
        "| tool | sees | right | wrong and confident | false supported | false kv_exhaustion | abstention precision "
        "| not right: honest `undetermined` |"
    )
    yield "|---|---|---|---|---|---|---|---|"
    groups: dict[tuple[str, View], list[Answer]] = {}
    for a in answers:
        groups.setdefault((a.tool, a.view), []).append(a)
    for (tool, view), group in groups.items():
        abstained = "-" if view is View.MASKED else abstention_precision(group)
        missed = [a for a in group if a.truth.primary and not a.is_right]
        honest = rate(missed, lambda a: a.is_honest) if tool == "stallscope" else "-"
        yield (
            f"| {tool} | {view.value} | {rate(group, lambda a: a.is_right)} "
            f"| {rate(group, lambda a: a.is_wrong_and_confident)} | {rate(group, lambda a: bool(a.false_supported))} "
            f"| {rate(group, lambda a: 'kv_exhaustion' in a.false_supported)} | {abstained} | {honest} |"
        )


def _by_view(answers: Sequence[Answer]) -> Iterator[str]:
    """Counts: a view that cannot see a cause should have few, and none that is wrong."""
    views = [view for view in View if view is not View.MASKED]
    yield f"| induced | {' | '.join(view.value for view in views)} |"
    yield f"|---|{'---|' * len(views)}"
    for label in sorted({_label(a) for a in answers}):
        cells = []
        for view in views:
            group = [a for a in answers if a.view is view and _label(a) == label]
            wrong = sum(a.is_wrong_and_confident for a in group)
            right = f"{sum(a.is_right for a in group)}/{len(group)}"
            cells.append(f"{right}, {wrong} wrong" if wrong else right)
        yield f"| {label} | {' | '.join(cells)} |"


def _label(answer: Answer) -> str:
    return answer.case if answer.moved else f"{answer.case} (unmoved)"


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


def _times(answers: Sequence[Answer]) -> Iterator[str]:
    """Of the right answers, in seconds of watching; a scrape comes every 3.5 s."""
    yield "| induced | scrape + records: median, longest | scrape only: median, longest |"
    yield "|---|---|---|"
    timed = [a for a in answers if a.seconds is not None]
    for name in sorted({a.case for a in timed}):
        cells = []
        for view in (View.RECORDS, View.SCRAPE):
            found = [a.seconds for a in timed if a.case == name and a.view is view and a.seconds is not None]
            cells.append(f"{median(found):.1f} s, {max(found):.1f} s" if found else "-")
        yield f"| {name} | {' | '.join(cells)} |"


def _accounts(answers: Sequence[Answer]) -> Iterator[str]:
    """The part that the condition lengthens: what the server spent there, and what the account says."""
    yield (
        "| induced, part | sees | gaps | cases | truly | said | error of the part: median, p90 "
        "| in a wrong part: median, p90 | truth within the bounds |"
    )
    yield "|---|---|---|---|---|---|---|---|---|"
    groups: dict[tuple[str, str, str], list[AccountCheck]] = {}
    for view in (View.RECORDS, View.SCRAPE):
        for a in (a for a in answers if a.view is view):
            for check in a.checks:
                groups.setdefault((f"{a.case}, {check.part}", view.value, check.quantile), []).append(check)
    for (what, sees, quantile), checks in sorted(groups.items()):
        bounded = [check.within for check in checks if check.within is not None]
        yield (
            f"| {what} | {sees} | {quantile} | {len(checks)} | {_ms([c.true_seconds for c in checks])} "
            f"| {_ms([c.said_seconds for c in checks])} | {_shares([c.error for c in checks])} "
            f"| {_shares([c.misplaced for c in checks])} | {f'{sum(bounded)}/{len(bounded)}' if bounded else '-'} |"
        )


def _ms(values: Sequence[float]) -> str:
    return f"{median(values) * 1e3:.1f} ms"


def _shares(values: Sequence[float]) -> str:
    high = sorted(values)[min(len(values) - 1, int(0.9 * len(values)))]
    return f"{100 * median(values):.1f} %, {100 * high:.1f} %"


def _failures(answers: Sequence[Answer]) -> Iterator[str]:
    """Every answer that names a wrong cause or supports what is not so, to be looked at again by its seed."""
    wrong = [a for a in answers if a.is_wrong_and_confident or a.false_supported]
    if not wrong:
        yield "No wrong primary cause, and nothing supported that is not so."
        return
    yield "| case | sees | primary | false supported |"
    yield "|---|---|---|---|"
    for a in (a for a in wrong if not a.held_out):
        mark = "" if a.moved else " (unmoved)"
        yield f"| {a.case}/{a.shape}/{a.seed}{mark} | {a.view.value} | {a.primary or NONE} | {_false(a)} |"
    kept = Counter((a.view.value, a.primary or NONE, _false(a)) for a in wrong if a.held_out)
    for (view, primary, false), count in sorted(kept.items()):
        yield f"| {count} held out, not named | {view} | {primary} | {false} |"


def _false(answer: Answer) -> str:
    return ", ".join(sorted(answer.false_supported)) or "-"
