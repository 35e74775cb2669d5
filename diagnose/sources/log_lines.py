"""Log lines as the engine wrote them: what a container runtime, a journal, a terminal or a prefix put around them is taken off.

docker       {"log":"text\n","stream":"stderr","time":"2026-11-30T04:11:14.123Z"}
CRI          2026-11-30T04:11:14.123456789Z stderr F text        (P: the line goes on in the next one)
journald     {"MESSAGE":"text","__REALTIME_TIMESTAMP":"1796011269059724",...}, or `Nov 30 04:11:14 host unit[1]: text`
others       JSON with a message and a time, ANSI colours; kubectl's `[pod/a/b] text`, compose's `a-1  | text`, stern's `a b text`
"""

import json
import re
import time
from collections.abc import Iterator
from datetime import datetime
from typing import NamedTuple

_ANSI = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]|\x1b\][^\x07]*\x07")
_CRI = re.compile(
    r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?(?:Z|[+-]\d\d:\d\d)) (?:stdout|stderr) ([FP]) (.*)", re.DOTALL
)
_LEADING_ISO = re.compile(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?(?:Z|[+-]\d\d:?\d\d)) ")
_ORIGINS = (
    re.compile(r"\[pod/([\w.-]+)/[\w.-]+\] "),
    re.compile(r"([\w.-]+) +\| "),
    # Stern's names look like words: only those of a pod of a deployment or a stateful set are taken for one.
    re.compile(r"([a-z0-9][a-z0-9-]*-(?:\d{1,3}|[a-z0-9]{5})) [a-z0-9][a-z0-9-]* (?=[\[({]|\d{4}-|INFO|WARN|ERROR)"),
)
"""What kubectl --prefix, docker compose and stern put before a line: its first group names the pod or container."""
_POD_KEYS = (
    ("kubernetes", "pod_name"),
    ("kubernetes", "pod", "name"),
    ("resource", "labels", "pod_name"),
    ("labels", "pod"),
)
_TEXT_KEYS = ("log", "MESSAGE", "message", "msg", "textPayload", "body", "line")
_TIME_KEYS = ("time", "__REALTIME_TIMESTAMP", "timestamp", "ts", "@timestamp")


class Line(NamedTuple):
    unix: float | None
    text: str
    origin: str = ""
    """The pod or container that wrote it, where the log is of several and says so."""


def unwrapped(lines: Iterator[str]) -> Iterator[Line]:
    """Parts of a line that a runtime had split are put together again."""
    pending = ""
    for raw in lines:
        line, goes_on = _unwrap(raw)
        if goes_on:
            pending += line.text
            continue
        yield _bare(line._replace(text=pending + line.text) if pending else line)
        pending = ""
    if pending:
        yield _bare(Line(None, pending))


def _bare(line: Line) -> Line:
    text = line.text
    if "\x1b" in text:
        text = _ANSI.sub("", text)
    named = _origin(text)
    if named is None:
        return line if text is line.text and text[-1:] > " " else line._replace(text=text.rstrip())
    inner, _ = _unwrap(text[named.end() :])
    unix = inner.unix if inner.unix is not None else line.unix
    return Line(unix, inner.text.rstrip(), named[1])


def _origin(text: str) -> re.Match[str] | None:
    """Of the few lines that begin as such a prefix does, the match."""
    head = text[:64]
    if head.startswith("[pod/"):
        return _ORIGINS[0].match(text)
    if " | " in head:
        return _ORIGINS[1].match(text)
    return _ORIGINS[2].match(text) if "a" <= text[:1] <= "z" else None


def _unwrap(raw: str) -> tuple[Line, bool]:
    """The line within, and whether it goes on in the next one."""
    if raw[:1] == "{":
        return _from_json(raw)
    if raw[:2] == "20":
        cri = _CRI.match(raw)
        if cri is not None:
            return Line(_iso_unix(cri[1]), cri[3]), cri[2] == "P"
        stamped = _LEADING_ISO.match(raw)
        if stamped is not None:
            return Line(_iso_unix(stamped[1]), raw[stamped.end() :]), False
    return Line(None, raw), False


def _from_json(raw: str) -> tuple[Line, bool]:
    try:
        value = json.loads(raw)
    except (ValueError, RecursionError):
        return Line(None, raw), False
    text = message_of(value)
    if text is None:
        return Line(None, raw), False
    if isinstance(value.get("span"), dict):  # Rust's tracing writes a request's figures beside its message
        text = " ".join([text, *(f'{key}="{figure}"' for key, figure in value["span"].items())])
    docker = "log" in value and isinstance(value["log"], str)
    return Line(_json_time(value), text.rstrip("\n"), _pod(value)), docker and not text.endswith("\n")


def _pod(value: object) -> str:
    """As a collector of logs names it; empty when it does not."""
    for path in _POD_KEYS:
        found = value
        for key in path:
            found = found.get(key) if isinstance(found, dict) else None
        if isinstance(found, str):
            return found
    return ""


def message_of(value: object) -> str | None:
    """The text of a JSON log line; None when it is no log line."""
    if not isinstance(value, dict):
        return None
    found = next((value[key] for key in _TEXT_KEYS if isinstance(value.get(key), str)), None)
    if found is None and isinstance(value.get("fields"), dict):  # Rust's tracing: TGI, Dynamo
        return message_of(value["fields"])
    return found if isinstance(found, str) else None


def _json_time(value: dict[str, object]) -> float | None:
    stamp = next((value[key] for key in _TIME_KEYS if key in value), None)
    if isinstance(stamp, str):
        return int(stamp) / 1e6 if stamp.isdecimal() else _iso_unix(stamp)
    return float(stamp) if isinstance(stamp, int | float) and 1e9 <= stamp < 1e10 else None


_FRACTION = re.compile(r"(\.\d{6})\d+")


def _iso_unix(text: str) -> float | None:
    try:
        return datetime.fromisoformat(_FRACTION.sub(r"\1", text.replace("Z", "+00:00"))).timestamp()
    except ValueError:
        return None


_STAMPS = (
    re.compile(r"(?P<y>\d{4})-(?P<mo>\d\d)-(?P<d>\d\d)[ T](?P<h>\d\d):(?P<mi>\d\d):(?P<s>\d\d(?:[.,]\d+)?)"),
    re.compile(r"(?P<mo>\d\d)-(?P<d>\d\d) (?P<h>\d\d):(?P<mi>\d\d):(?P<s>\d\d(?:[.,]\d+)?)"),
    re.compile(r"\[(?P<h>\d\d):(?P<mi>\d\d):(?P<s>\d\d(?:[.,]\d+)?)[\] ]"),
    re.compile(r"^(?P<mon>[A-Z][a-z]{2}) +(?P<d>\d{1,2}) (?P<h>\d\d):(?P<mi>\d\d):(?P<s>\d\d)"),
    re.compile(r"^(?:\[\d+\] )?(?P<mi>\d+)\.(?P<s>\d\d\.\d{3})\.\d{3} [A-Z] "),
)
"""vLLM, SGLang, LMDeploy and TensorRT-LLM; vLLM (no year); SGLang when shortened; syslog; llama.cpp (since its start)."""
_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
_STAMP_WITHIN = 80


class LineClock:
    """Places the stamps of one log in time. A stamp without a year is of the latest year that is not after `newest_unix`."""

    def __init__(self, newest_unix: float | None) -> None:
        self._newest = time.localtime(newest_unix)
        self._date = (self._newest.tm_year, self._newest.tm_mon, self._newest.tm_mday)
        self._known: tuple[str, float] = ("", 0.0)

    def unix(self, text: str) -> float | None:
        """Of the stamp near the line's start, as local time of this machine; None when there is none."""
        head = text[:_STAMP_WITHIN]
        for pattern in _STAMPS:
            found = pattern.search(head)
            if found is not None:
                return self._place(found)
        return None

    def _place(self, found: re.Match[str]) -> float | None:
        if found[0] == self._known[0]:
            return self._known[1]
        parts = found.groupdict()
        seconds = float(parts["s"].replace(",", "."))
        year, month, day = self._date
        if "h" not in parts:  # time since the start of the process
            return int(parts["mi"]) * 60 + seconds
        month = _MONTHS.index(parts["mon"]) + 1 if parts.get("mon") in _MONTHS else int(parts.get("mo") or month)
        day = int(parts.get("d") or day)
        if parts.get("y"):
            year = int(parts["y"])
        elif (month, day) > (self._newest.tm_mon, self._newest.tm_mday):
            year = self._newest.tm_year - 1
        else:
            year = self._newest.tm_year
        self._date = (year, month, day)
        try:
            stamp = datetime(year, month, day, int(parts["h"]), int(parts["mi"]), int(seconds))
        except ValueError:
            return None
        unix = stamp.timestamp() + seconds % 1
        self._known = (found[0], unix)
        return unix


_STARTS = re.compile(
    r"(?:\([\w-]+(?: [^)]*)?\) ?)*(?:INFO|WARNING|ERROR|DEBUG|CRITICAL|WARN|FATAL|TRACE)\b"
    r"|\[?\d{4}-\d\d-\d\d[ T]|\[\d\d:\d\d:\d\d|\d\d-\d\d \d\d:\d\d:\d\d|[A-Z][a-z]{2} +\d+ \d\d:\d\d:\d\d"
    r"|\[TRT-LLM\]|\[\d+\] \d+\.\d\d\.|\d+\.\d\d\.\d{3}\.\d{3} |(?:slot|srv|que|main|llama_\w+|decode|common_\w+)[ :]"
    r"|\[rank\d+\]|Traceback |\w+(?:\.\w+)*(?:Error|Exception): "
)


def starts_record(text: str) -> bool:
    """Whether a line begins one of its own; else it is the rest of the line before it, cut by a terminal or a traceback."""
    return _STARTS.match(text) is not None
