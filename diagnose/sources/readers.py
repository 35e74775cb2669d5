"""The table of readers: each kind of evidence is recognised by its content and read by its own reader.

What a reader needs is imported when it is asked: the tables of all engines' logs cost more than a diagnosis of a recording.
"""

import json
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from diagnose.errors import SourceError
from diagnose.kernel_profile import KernelProfile
from diagnose.observation import OtherSource
from diagnose.sources.content import Content
from diagnose.sources.log_lines import message_of, unwrapped
from diagnose.sources.pages import TimedPage, is_metrics_json, pages_of_json, read_pages_of
from diagnose.sources.trace_head import is_trace
from diagnose.units import printable
from probes.recording import Entry, is_recording, read_recording
from probes.wire import WireError, is_steps_header

UNKNOWN_TIME = -1.0


@dataclass(slots=True)
class Reading:
    """What one file holds. Which fields are filled depends on its kind."""

    recognised: str = ""
    """What it was taken for, in one line."""
    target: str = ""
    """Where the evidence came from, if it says so."""
    entries: list[Entry] = field(default_factory=list)
    steps: str | None = None
    pages: list[TimedPage] = field(default_factory=list)
    others: list[OtherSource] = field(default_factory=list)
    profiles: list[KernelProfile] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Reader:
    kind: str
    recognises: Callable[[Content], bool]
    """By the head alone."""
    read: Callable[[Content], Reading]
    is_long: bool = False
    """It tells how far it is."""


def choose_reader(content: Content) -> Reader:
    """The first reader that recognises it. Raises SourceError that says what it looks like, and what would do."""
    for reader in READERS:
        if reader.recognises(content):
            return reader
    kinds = ", ".join(reader.kind for reader in READERS)
    raise SourceError(f"{content.name}: {_looks_like(content)}; what can be read: {kinds}")


def parse_json(text: str) -> Any:
    """None when it is no JSON."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _first_json(content: Content) -> object:
    line = content.head_text.partition("\n")[0]
    return parse_json(line) if line.startswith("{") else None


def _read_recording(content: Content) -> Reading:
    try:
        recording = read_recording(content.data())
    except WireError as error:
        raise SourceError(f"{content.name}: {error}") from None
    except MemoryError:
        raise SourceError(f"{content.name}: its content is larger than the memory that is left") from None
    if not recording.entries:
        raise SourceError(f"{content.name}: the recording holds no answer of {recording.target}")
    reading = Reading(f"{content.name}: a recording of {recording.target}", recording.target, list(recording.entries))
    if recording.torn:
        reading.warnings.append(
            f"{content.name}: its end was cut off in a write ({recording.torn} bytes left out), the rest is used"
        )
    if recording.damaged:
        reading.warnings.append(
            f"{content.name}: {recording.damaged} bytes within it cannot be read and were left out, the rest is used"
        )
    return reading


def _read_steps(content: Content) -> Reading:
    return Reading(f"{content.name}: step records", steps=content.text())


_SAMPLE = re.compile(
    r"[a-zA-Z_:][a-zA-Z0-9_:]*(?:\{[^}]*\}?.*)?[ \t]+[-+]?(?:\d|\.\d|nan|inf)\S*(?:[ \t]+-?\d+)?[ \t]*(?:#.*)?",
    re.IGNORECASE,
)
_METADATA = re.compile(r"#[ \t]+(?:HELP|TYPE|UNIT|EOF)\b")


def _is_page(content: Content) -> bool:
    """At least half of the first lines are samples or metadata."""
    lines = [line.strip() for line in content.head_text.split("\n")[:60]]
    lines = [line for line in lines if line and (not line.startswith("#") or _METADATA.match(line))][:40]
    good = sum(bool(_METADATA.match(line) or _SAMPLE.fullmatch(line)) for line in lines)
    return good > 0 and good * 2 >= len(lines)


def _read_page(content: Content) -> Reading:
    return Reading(pages=read_pages_of(content.name, content.text()))


def _is_metrics_json(content: Content) -> bool:
    text = content.head_text.lstrip()
    mark = {"[": '"metrics"', "{": '"resultType"'}.get(text[:1])
    return mark is not None and mark in text and is_metrics_json(parse_json(content.text()))


def _read_metrics_json(content: Content) -> Reading:
    pages, warnings = pages_of_json(content.name, parse_json(content.text()))
    recognised = f"{content.name}: metrics as JSON, {len(pages):,} moments"
    return Reading(recognised, pages=pages, warnings=[f"{content.name}: {text}" for text in warnings])


def _read_trace(content: Content) -> Reading:
    if content.name == "-":
        raise SourceError("-: a trace is read from a file, more than once")
    from diagnose.sources.trace import read_trace

    profile = read_trace(Path(content.name), content.on_progress)
    return Reading(f"{content.name}: a trace, {profile.num_events:,} events", profiles=[profile])


def _is_bench(content: Content) -> bool:
    from diagnose.sources.bench import is_bench

    return is_bench(content.head_text)


def _read_bench(content: Content) -> Reading:
    from diagnose.sources.bench import read_bench

    found = read_bench(content.name, content.text())
    if found is None:
        raise SourceError(f"{content.name}: a benchmark result without a latency in it")
    # A terminal in which a server and its load ran holds both.
    log = _read_log(content) if _is_log(content) else Reading()
    log.others.insert(0, found)
    return log


def _is_nvidia_smi(content: Content) -> bool:
    from diagnose.sources.nvidia_smi import is_nvidia_smi

    return is_nvidia_smi(content.head_text)


def _read_nvidia_smi(content: Content) -> Reading:
    from diagnose.sources.nvidia_smi import read_nvidia_smi

    found = read_nvidia_smi(content.name, content.text())
    if found is None:
        raise SourceError(f"{content.name}: output of nvidia-smi without a GPU in it")
    return Reading(others=[found])


def _is_py_spy(content: Content) -> bool:
    from diagnose.sources.py_spy import is_py_spy

    return is_py_spy(content.head_text)


def _read_py_spy(content: Content) -> Reading:
    from diagnose.sources.py_spy import read_py_spy

    found = read_py_spy(content.name, content.text())
    if found is None:
        raise SourceError(f"{content.name}: output of py-spy without a stack in it")
    return Reading(others=[found])


def _is_state(content: Content) -> bool:
    """One JSON document; lines of JSON are a log's."""
    text = content.head_text.lstrip()
    first, _, rest = text.partition("\n")
    if text[:1] not in ("{", "[") or (rest.strip() and parse_json(first) is not None):
        return False
    from diagnose.sources.state import shape_of

    return shape_of(parse_json(content.text())) is not None


def _read_state(content: Content) -> Reading:
    from diagnose.sources.state import StateEvidence, shape_of

    answer = parse_json(content.text())
    shape = shape_of(answer)
    assert shape is not None, "recognised before"
    evidence = StateEvidence(shape, content.name, [answer])
    return Reading(others=[evidence], warnings=evidence.warnings)


def _is_log(content: Content) -> bool:
    from diagnose.sources.engine_log import looks_like_log

    text = content.head_text.lstrip()
    if b"\x00" in content.head or _TABLE.match(text):
        return False
    whole = parse_json(text) if text.startswith("{") else None
    if whole is not None and message_of(whole) is None:
        return False
    if _ENTRIES.match(text):
        return looks_like_log("\n".join(_entries(content)))
    return looks_like_log(text)


_ENTRIES = re.compile(r"\[\s*\{")


def _entries(content: Content) -> list[str]:
    """Of an array of log entries, as a collector's export has them, the oldest first; empty for another array."""
    answer = parse_json(content.text())
    if not isinstance(answer, list) or not all(message_of(entry) is not None for entry in answer):
        return []
    lines = [json.dumps(entry) for entry in answer]
    first, last = (next(unwrapped(iter([line]))).unix for line in (lines[0], lines[-1]))
    return lines[::-1] if first is not None and last is not None and last < first else lines


def _read_log(content: Content) -> Reading:
    from diagnose.dialects.logs import ENGINE_LOGS
    from diagnose.sources.engine_log import read_log
    from diagnose.sources.log_signals import LogEvidence

    is_array = _ENTRIES.match(content.head_text.lstrip()) is not None
    lines = iter(_entries(content)) if is_array else content.lines()
    log = read_log(content.name, lines, content.modified_unix, content.within)
    if not log.num_read:
        raise SourceError(
            f"{content.name}: a log ({log.num_lines:,} lines), but none of them is one that this version reads; it reads logs of "
            + ", ".join(table.engine for table in ENGINE_LOGS)
        )
    reading = Reading(others=[LogEvidence(log)])
    dropped = log.num_samples - len(log.samples) + log.num_steps - len(log.steps)
    if dropped:
        reading.warnings.append(f"{content.name}: the oldest {dropped:,} periodic and step lines were left out")
    return reading


def _is_kernel_table(content: Content) -> bool:
    from diagnose.sources.kernel_table import is_kernel_table

    return is_kernel_table(content.head_text)


def _read_kernel_table(content: Content) -> Reading:
    from diagnose.sources.kernel_table import read_kernel_table

    found = read_kernel_table(content.name, content.text())
    if found is None:
        raise SourceError(f"{content.name}: a profiler's table without a device kernel in it: profile the device, too")
    return Reading(others=[found])


def _is_step_runs(content: Content) -> bool:
    from diagnose.sources.step_runs import is_step_runs

    return is_step_runs(content.head_text)


def _read_step_runs(content: Content) -> Reading:
    from diagnose.sources.step_runs import read_step_runs

    return Reading(others=[read_step_runs(content.name, content.text())])


_TABLE = re.compile(r'(?:sep=.\s+)?"?(?:time|timestamp|date)"?\s*[,;\t]', re.IGNORECASE)
"""How a table that a dashboard exports begins."""


_NSIGHT = (".nsys-rep", ".qdrep", ".sqlite")
"""What Nsight Systems writes: its own form, and a database that each of its versions lays out otherwise."""
_SQLITE = b"SQLite format 3\x00"


def _looks_like(content: Content) -> str:
    """What was given instead of evidence, in a few words."""
    if content.head.startswith(_SQLITE) or content.name.endswith(_NSIGHT):
        return f"is not text; of a profile by Nsight Systems, give what `nsys stats {printable(content.name)}` prints"
    try:
        content.head.decode("utf-8")
    except UnicodeDecodeError as error:
        if error.reason != "unexpected end of data":  # else the cut went through a character
            return "is not text"
    if b"\x00" in content.head:
        return "is not text"
    text = content.head_text.lstrip()
    if _TABLE.match(text):
        return (
            "a table of a dashboard, whose columns say what was asked of the metrics and not what they are; give the metrics "
            "themselves (two scrapes, or --prometheus URL --match SELECTOR)"
        )
    status = re.search(r"<title>\s*([^<]{1,60}?)\s*</title>", text, re.IGNORECASE)
    if text[:1] == "<":
        return f"an HTML page ({printable(status[1])})" if status is not None else "an HTML or XML page"
    if text[:1] in "{[":
        return "JSON of no kind this version knows"
    first = printable(text.partition("\n")[0][:60])
    return f"text of no kind this version knows (it begins with {first!r})"


READERS: tuple[Reader, ...] = (
    Reader("a recording", lambda content: is_recording(content.head), _read_recording),
    Reader("step records", lambda content: is_steps_header(_first_json(content)), _read_steps),
    Reader("a torch profiler's trace", lambda content: is_trace(content.head), _read_trace, is_long=True),
    Reader("a metrics page", _is_page, _read_page),
    Reader("metrics as JSON (Prometheus's query API, prom2json)", _is_metrics_json, _read_metrics_json),
    Reader("a benchmark result", _is_bench, _read_bench),
    Reader("output of nvidia-smi", _is_nvidia_smi, _read_nvidia_smi),
    Reader("output of py-spy", _is_py_spy, _read_py_spy),
    Reader("a server's state in JSON", _is_state, _read_state),
    Reader("an engine's log", _is_log, _read_log),
    Reader("a profiler's table of kernels", _is_kernel_table, _read_kernel_table),
    Reader("a summary of steps by phase", _is_step_runs, _read_step_runs),
)
