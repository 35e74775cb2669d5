"""Renders the documents that the code is the source of: `python -m tests.docs`. A test fails while one of them is stale."""

import inspect
import re
from collections.abc import Callable
from pathlib import Path

from diagnose.dialects.answers import UNMETERED, answer, reads_log
from diagnose.dialects.base import TOPICS
from diagnose.dialects.registry import DIALECTS
from diagnose.hypotheses.registry import HYPOTHESES
from diagnose.sources.readers import READERS
from diagnose.thresholds import thresholds
from probes.catalog import METRICS, Metric, MetricKind
from tests.docs_reference import answers_page, commands_page, json_page, signals_page

DOCS = Path(__file__).resolve().parent.parent / "docs"
_MADE = "<!-- Rendered by `python -m tests.docs`; edit {source} instead. -->"
HEADINGS = (
    "Symptom",
    "Mechanism",
    "Refuted when",
    "Supported when",
    "Proves nothing",
    "Measure next",
    "Fix and its trade",
)
_PARAGRAPH = re.compile(rf"^({'|'.join(HEADINGS)}): ", re.MULTILINE)


def thresholds_page() -> str:
    rows = [
        f"| `{t.name}` | {t.default:g} | {t.low:g} to {t.high:g}{', whole' if t.whole else ''} | {t.reason} |"
        for t in thresholds()
    ]
    return "\n".join(
        [
            "# Thresholds",
            "",
            _MADE.format(source="diagnose/policy.py"),
            "",
            "Rules hold no numbers of their own. `stallscope explain --thresholds` prints this list; a file overrides it:",
            "",
            "    [thresholds]",
            "    material_stall_share = 0.05",
            "    min_p99_gaps = 500",
            "",
            "    stallscope diagnose incident.rec --policy strict.toml",
            "",
            "Unknown names, wrong types and values out of range are refused, and so are values that cross: a bound from which a "
            "cause is supported",
            "never lies below the one under which it is refuted. Every report says which thresholds were overridden.",
            "",
            "| threshold | value | range | reason |",
            "|---|---|---|---|",
            *rows,
            "",
        ]
    )


def hypotheses_page() -> str:
    lines = [
        "# Hypotheses",
        "",
        _MADE.format(source="the docstrings in diagnose/hypotheses/"),
        "",
        "`stallscope explain NAME` prints one of these.",
    ]
    for hypothesis in HYPOTHESES:
        summary, _, rest = (inspect.getdoc(type(hypothesis)) or "").partition("\n")
        benign = " (benign)" if hypothesis.benign else ""
        body = _PARAGRAPH.sub(r"\n**\1.** ", rest).strip()
        lines += ["", f"## `{hypothesis.name}`{benign}", "", summary, "", body]
    return "\n".join(lines) + "\n"


def sources_page() -> str:
    lines = [
        "# Sources",
        "",
        _MADE.format(source="the tables in diagnose/dialects/"),
        "",
        "`stallscope diagnose` takes any mix of evidence of one target, and says what it took each for: URLs (the engine's, "
        "those of its replicas, and those of exporters beside it), and files that are recognised by what they hold, gzip or "
        "not, `-` for standard input:",
        "",
        *(f"- {reader.kind}" for reader in READERS),
        "",
        "Logs are streamed, whatever their size. What surrounds an engine's line is taken off: a container runtime (docker, CRI, "
        "`kubectl logs --timestamps --prefix`, compose, stern), a journal (text or JSON), ANSI colours, prefixes of processes "
        "and ranks; lines that a terminal has cut are put together. `--since` and `--until` choose a time, `--log FILE` puts a "
        "log beside a URL, and `--setting max_sequences=256` states what nothing on the target does. Several sources of one "
        "signal: the first of the table gives it, and the report says so where they disagree.",
        "",
        "Several replicas of one service, as several URLs, as the ranks or pods of one log, or behind one selector of a "
        "Prometheus, are reported each for itself and as a whole: amounts add up, of shares the highest counts, and uneven load "
        "is a cause of its own (`replica_imbalance`). Step records, traces and stacks are of one process each: give its URL "
        "alone for them.",
        "",
        "What each engine's own metrics answer, as they are or by default. *part*: some of it, or late, or a bound only. "
        "`stallscope sources ENGINE` prints one engine's.",
        "",
        f"| engine | {' | '.join(TOPICS)} | log | pool usage counts |",
        f"|---|{'---|' * (len(TOPICS) + 2)}",
    ]
    for dialect in DIALECTS:
        levels = " | ".join(answer(dialect, topic).level.value for topic in TOPICS)
        usage = dialect.usage.value if dialect.usage is not None else ""
        lines.append(f"| {dialect.name} | {levels} | {'read' if reads_log(dialect) else ''} | {usage} |")
    lines += [f"| {name} | {' | '.join(['no'] * len(TOPICS))} | | |" for name in UNMETERED]
    lines += ["", *(f"- **{topic}**: {meaning}" for topic, meaning in TOPICS.items()), ""]
    for dialect in DIALECTS:
        more = {topic: found.how for topic in TOPICS if (found := answer(dialect, topic)).how}
        if more:
            lines += [f"## {dialect.name}", "", *(f"- **{topic}**: {how}" for topic, how in more.items()), ""]
    for name, text in UNMETERED.items():
        lines += [f"## {name}", "", text, ""]
    return "\n".join(lines)


def metrics_page() -> str:
    return "\n".join(
        [
            "# Metrics",
            "",
            _MADE.format(source="probes/catalog.py"),
            "",
            "Every series of `/metrics` of stallscope's engine, and of engines that embed its probes. Base units throughout. "
            "Counters only grow, so that readers take differences; a figure that is not measured has no series, never a zero.",
            "",
            "| metric | kind | labels | meaning |",
            "|---|---|---|---|",
            *[_metric_row(metric) for metric in METRICS.values()],
            "",
            "## Buckets of the histograms",
            "",
            *[f"- {', '.join(names)}: {bounds}" for bounds, names in _by_bounds().items()],
            "",
        ]
    )


def _metric_row(metric: Metric) -> str:
    labels = "its facts" if metric.kind is MetricKind.INFO else ", ".join(f"`{label}`" for label in metric.labels)
    return f"| `{metric.wire_name}` | {metric.kind} | {labels} | {metric.help} |"


def _by_bounds() -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for metric in METRICS.values():
        if metric.kind is MetricKind.HISTOGRAM:
            found.setdefault(f"{' '.join(f'{bound:g}' for bound in metric.bounds)} s", []).append(
                f"`{metric.wire_name}`"
            )
    return found


PAGES: dict[str, Callable[[], str]] = {
    "thresholds.md": thresholds_page,
    "hypotheses.md": hypotheses_page,
    "sources.md": sources_page,
    "metrics.md": metrics_page,
    "commands.md": lambda: commands_page(_MADE.format(source="the commands")),
    "signals.md": lambda: signals_page(_MADE.format(source="diagnose/signals.py and the tables in diagnose/dialects/")),
    "answers.md": lambda: answers_page(_MADE.format(source="docs/answers.schema.json")),
    "json.md": lambda: json_page(_MADE.format(source="docs/diagnosis.schema.json")),
}


def main() -> None:
    for name, page in PAGES.items():
        (DOCS / name).write_text(page(), encoding="utf-8")
        print(f"docs/{name}")


if __name__ == "__main__":
    main()
