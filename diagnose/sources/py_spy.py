"""`py-spy dump` and `py-spy top` as text: what the threads of a server do, as supporting evidence.

A dump is one moment, and of a moment no share can be said; the table of `top` has shares.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass

from diagnose.observation import SPIN_EVENT, STACK_EVENT, Event, Span
from diagnose.signals import STACKS, Signals
from diagnose.sources.engine_log import UNTIMED
from probes.stack_patterns import Activity, Role, activity_of, role_of

_THREAD = re.compile(r'^Thread (?P<id>0x[0-9a-fA-F]+|\d+) \((?P<state>[\w+]+)\)(?:: "(?P<name>[^"]*)")?')
_FRAME = re.compile(r"^ +(?P<function>\S.*) \((?P<where>[^()]+:\d+)\)$")
_TOP_HEAD = re.compile(r"^\s*%Own\s+%Total\s+OwnTime\s+TotalTime\s+Function", re.MULTILINE)
_TOP_ROW = re.compile(
    r"^\s*(?P<own>[\d.]+)%\s+(?P<total>[\d.]+)%\s+[\d.]+s\s+[\d.]+s\s+(?P<function>\S+) \((?P<file>[^():]+)(?::\d+)?\)"
)
_SPINS = 0.5
"""A wait that holds half of what a thread on a core does is a loop, not a sleep: sleepers are on no core."""


@dataclass(frozen=True, slots=True)
class StackEvidence:
    name: str
    form: str
    told: tuple[Event, ...]

    @property
    def origin(self) -> str:
        return f"{self.name}: {self.form}, {len(self.told)} line(s) about the server's threads"

    def events(self, span: Span | None) -> Iterable[Event]:
        return self.told

    def signals(self, span: Span | None) -> Signals:
        return Signals(STACKS, None, 0)


def is_py_spy(text: str) -> bool:
    return bool(
        _TOP_HEAD.search(text) or re.search(r"^Thread (?:0x[0-9a-fA-F]+|\d+) \((?:active|idle)", text, re.MULTILINE)
    )


def read_py_spy(name: str, text: str) -> StackEvidence | None:
    """None when no stack is in it."""
    is_top = _TOP_HEAD.search(text) is not None
    told = _top(text) if is_top else _dump(text)
    return StackEvidence(name, "py-spy top" if is_top else "py-spy dump", tuple(told)) if told else None


def _top(text: str) -> list[Event]:
    rows = [found for line in text.split("\n") if (found := _TOP_ROW.match(line)) is not None]
    told: list[Event] = []
    waits = [row for row in rows if activity_of([f"{row['function']} ({row['file']}:0)"]) is Activity.WAITING]
    if waits:
        widest = max(waits, key=lambda row: float(row["total"]))
        share = float(widest["total"])
        kind = SPIN_EVENT if share >= 100 * _SPINS else STACK_EVENT
        told.append(
            Event(UNTIMED, kind, f"{share:.0f} % of the samples are in {widest['function']} ({widest['file']}), a wait")
        )
    busiest = sorted(rows, key=lambda row: -float(row["own"]))[:3]
    ends = (f"{float(row['own']):.0f} % of the samples end in {row['function']} ({row['file']})" for row in busiest)
    told += [Event(UNTIMED, STACK_EVENT, text) for text in ends]
    return told


def _dump(text: str) -> list[Event]:
    """Threads of the engine, of workers and of the frontend; others only when no thread of these is known."""
    threads: list[tuple[str, str, list[str]]] = []
    for line in text.split("\n"):
        if (head := _THREAD.match(line)) is not None:
            threads.append((head["name"] or head["id"], head["state"], []))
        elif threads and (frame := _FRAME.match(line)) is not None:
            threads[-1][2].insert(0, f"{frame['function']} ({frame['where']})")
    known = [(role_of(frames), *thread) for thread in threads if (frames := thread[2])]
    chosen = [found for found in known if found[0] is not Role.OTHER] or known
    return [Event(UNTIMED, STACK_EVENT, _in_words(*found)) for found in chosen]


def _in_words(role: Role, name: str, state: str, frames: list[str]) -> str:
    known = "" if role is Role.OTHER else f", {role.value}"
    return f"thread {name} ({state}{known}) is {activity_of(frames).value}: {frames[-1]}"
