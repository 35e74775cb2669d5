"""The journal: incidents, alerts, every step before and after it, approvals. SQLite, on disk before anything is done.

A step is a row that is committed when it begins, with what it will do, and again when it ends, with what came of it. What is
done next follows from the rows alone, so that a process killed at any point is taken up where it was.
"""

import json
import os
import sqlite3
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from runbooks.errors import JournalError, Refused
from runbooks.response.alertmanager import Alert

SCHEMA = 1
_HOUR = 3600.0
_TABLES = f"""
CREATE TABLE IF NOT EXISTS incidents (
    id INTEGER PRIMARY KEY, runbook TEXT NOT NULL, target TEXT NOT NULL, opened REAL NOT NULL, closed REAL, outcome TEXT,
    plan_only INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS alerts (
    fingerprint TEXT NOT NULL, starts_at TEXT NOT NULL, incident INTEGER REFERENCES incidents(id), name TEXT NOT NULL,
    labels TEXT NOT NULL, annotations TEXT NOT NULL, received REAL NOT NULL, resolved REAL,
    PRIMARY KEY (fingerprint, starts_at));
CREATE TABLE IF NOT EXISTS steps (
    id INTEGER PRIMARY KEY, incident INTEGER NOT NULL REFERENCES incidents(id), kind TEXT NOT NULL, began REAL NOT NULL,
    intent TEXT NOT NULL, ended REAL, result TEXT);
CREATE TABLE IF NOT EXISTS answers (
    incident INTEGER PRIMARY KEY REFERENCES incidents(id), approved INTEGER NOT NULL, who TEXT NOT NULL, given REAL NOT NULL);
CREATE INDEX IF NOT EXISTS alerts_of ON alerts(incident);
CREATE INDEX IF NOT EXISTS steps_of ON steps(incident);
PRAGMA user_version = {SCHEMA};
"""


@dataclass(frozen=True, slots=True)
class StepRow:
    step_id: int
    kind: str
    """look, decide, ask, act, verify, undo or note."""
    began: float
    intent: dict[str, Any]
    ended: float | None
    result: dict[str, Any]
    """Empty while it has not ended."""


@dataclass(frozen=True, slots=True)
class AlertRow:
    fingerprint: str
    name: str
    labels: dict[str, str]
    annotations: dict[str, str]
    starts_at: str
    received: float
    resolved: float | None


@dataclass(frozen=True, slots=True)
class Answer:
    approved: bool
    who: str
    given: float


@dataclass(frozen=True, slots=True)
class Incident:
    incident_id: int
    runbook: str
    target: str
    opened: float
    closed: float | None
    outcome: str | None
    plan_only: bool
    alerts: tuple[AlertRow, ...] = ()
    steps: tuple[StepRow, ...] = ()
    answer: Answer | None = None

    def last(self, kind: str) -> StepRow | None:
        return next((step for step in reversed(self.steps) if step.kind == kind), None)

    @property
    def is_resolved(self) -> bool:
        return bool(self.alerts) and all(alert.resolved is not None for alert in self.alerts)


@dataclass(frozen=True, slots=True)
class Limits:
    """What an act must keep to; checked in the transaction that begins it."""

    per_hour: int
    cooldown_seconds: float
    label: str


@dataclass(frozen=True, slots=True)
class Routed:
    """An alert, and the runbook and target it is for; both empty where nothing answers it."""

    alert: Alert
    runbook: str = ""
    target: str = ""
    plan_only: bool = False


@dataclass(slots=True)
class Received:
    """What became of the alerts of a notification."""

    opened: list[int] = field(default_factory=list)
    joined: int = 0
    known: int = 0
    resolved: int = 0
    unanswered: int = 0


class Journal:
    """Thread-safe. Every method raises JournalError when the disk or the file fails, with nothing half done."""

    def __init__(self, path: Path, *, create: bool = True) -> None:
        self.path = path
        if not create and not path.is_file():
            raise JournalError(f"{path}: there is no journal")
        self._lock = threading.Lock()
        with self._failures():
            path.parent.mkdir(parents=True, exist_ok=True)
            # Alerts may hold names that are not for everybody: the file is its owner's.
            os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
            self._connection = sqlite3.connect(path, timeout=10.0, isolation_level=None, check_same_thread=False)
            self._connection.execute("PRAGMA journal_mode = WAL")
            self._connection.execute("PRAGMA synchronous = FULL")
            version = self._connection.execute("PRAGMA user_version").fetchone()[0]
            if version not in (0, SCHEMA):
                raise JournalError(f"{path}: is a journal of schema {version}; this version reads {SCHEMA}")
            if self._connection.execute("PRAGMA quick_check").fetchone()[0] != "ok":
                raise JournalError(
                    f"{path}: is damaged; move it and its -wal file away, and look at what was under way"
                )
            if version == 0:
                self._connection.executescript(f"BEGIN IMMEDIATE; {_TABLES} COMMIT;")

    def close(self) -> None:
        with self._lock:
            self._connection.close()

    # Alerts.

    def receive(self, alerts: Sequence[Routed], now: float) -> Received:
        """On disk when it returns. An alert is known by its fingerprint and start; one that fires again opens nothing twice."""
        received = Received()
        with self._writing() as db:
            for routed in alerts:
                _receive(db, routed, now, received)
        return received

    # Steps.

    def begin(self, incident: int, kind: str, intent: dict[str, Any], now: float) -> int:
        with self._writing() as db:
            return _begin(db, incident, kind, intent, now)

    def begin_act(self, incident: int, intent: dict[str, Any], limits: Limits, now: float) -> int:
        """Raises Refused when it would be one act too many; nothing has begun then."""
        with self._writing() as db:
            _check_limits(db, incident, limits, now)
            return _begin(db, incident, "act", intent, now)

    def end(self, step: int, result: dict[str, Any], now: float) -> None:
        with self._writing() as db:
            db.execute("UPDATE steps SET ended = ?, result = ? WHERE id = ?", (now, json.dumps(result), step))

    def note(self, incident: int, text: str, now: float) -> None:
        """A line of the incident's story that is no step of it."""
        with self._writing() as db:
            step = _begin(db, incident, "note", {"text": text}, now)
            db.execute("UPDATE steps SET ended = ?, result = '{}' WHERE id = ?", (now, step))

    def close_incident(self, incident: int, outcome: str, now: float) -> None:
        with self._writing() as db:
            db.execute("UPDATE incidents SET closed = ?, outcome = ? WHERE id = ?", (now, outcome, incident))

    def answer(self, incident: int, *, approved: bool, who: str, now: float) -> None:
        """The first answer counts. Raises Refused when nothing is asked, or the answer was given already."""
        with self._writing() as db:
            found = db.execute("SELECT closed FROM incidents WHERE id = ?", (incident,)).fetchone()
            if found is None:
                raise Refused(f"there is no incident {incident}")
            asked = db.execute("SELECT 1 FROM steps WHERE incident = ? AND kind = 'ask'", (incident,)).fetchone()
            if found[0] is not None or asked is None:
                raise Refused(f"incident {incident} does not wait for an answer")
            row = (incident, approved, who, now)
            if db.execute("INSERT OR IGNORE INTO answers VALUES (?, ?, ?, ?)", row).rowcount == 0:
                raise Refused(f"incident {incident} has been answered already")

    # Reading.

    def open_incidents(self) -> list[int]:
        with self._reading() as db:
            return [row[0] for row in db.execute("SELECT id FROM incidents WHERE closed IS NULL ORDER BY id")]

    def incidents(self, limit: int) -> list[Incident]:
        """Newest first, without their steps."""
        with self._reading() as db:
            rows = db.execute("SELECT * FROM incidents ORDER BY id DESC LIMIT ?", (limit,)).fetchall()
        return [_head(row) for row in rows]

    def incident(self, incident: int) -> Incident:
        """Whole. Raises Refused when there is none of that number."""
        with self._reading() as db:
            row = db.execute("SELECT * FROM incidents WHERE id = ?", (incident,)).fetchone()
            if row is None:
                raise Refused(f"there is no incident {incident}")
            alerts = db.execute(
                "SELECT fingerprint, name, labels, annotations, starts_at, received, resolved FROM alerts "
                "WHERE incident = ? ORDER BY received",
                (incident,),
            ).fetchall()
            steps = db.execute(
                "SELECT id, kind, began, intent, ended, result FROM steps WHERE incident = ? ORDER BY id", (incident,)
            ).fetchall()
            answer = db.execute("SELECT approved, who, given FROM answers WHERE incident = ?", (incident,)).fetchone()
        return replace(
            _head(row),
            alerts=tuple(AlertRow(a[0], a[1], json.loads(a[2]), json.loads(a[3]), *a[4:]) for a in alerts),
            steps=tuple(StepRow(s[0], s[1], s[2], json.loads(s[3]), s[4], json.loads(s[5] or "{}")) for s in steps),
            answer=None if answer is None else Answer(bool(answer[0]), answer[1], answer[2]),
        )

    # The one connection.

    @contextmanager
    def _writing(self) -> Iterator[sqlite3.Connection]:
        with self._lock, self._failures():
            self._connection.execute("BEGIN IMMEDIATE")
            try:
                yield self._connection
                self._connection.execute("COMMIT")
            except BaseException:
                # A failed commit may have ended the transaction itself.
                if self._connection.in_transaction:
                    self._connection.execute("ROLLBACK")
                raise

    @contextmanager
    def _reading(self) -> Iterator[sqlite3.Connection]:
        with self._lock, self._failures():
            yield self._connection

    @contextmanager
    def _failures(self) -> Iterator[None]:
        try:
            yield
        except (sqlite3.Error, OSError) as error:
            raise JournalError(f"{self.path}: {error}") from None


def _head(row: Sequence[Any]) -> Incident:
    number, runbook, target, opened, closed, outcome, plan_only = row
    return Incident(number, runbook, target, opened, closed, outcome, bool(plan_only))


def _begin(db: sqlite3.Connection, incident: int, kind: str, intent: dict[str, Any], now: float) -> int:
    step = db.execute(
        "INSERT INTO steps (incident, kind, began, intent) VALUES (?, ?, ?, ?)",
        (incident, kind, now, json.dumps(intent)),
    ).lastrowid
    assert step is not None
    return step


def _receive(db: sqlite3.Connection, routed: Routed, now: float, received: Received) -> None:
    alert = routed.alert
    key = (alert.fingerprint, alert.startsAt)
    known = db.execute("SELECT resolved FROM alerts WHERE fingerprint = ? AND starts_at = ?", key).fetchone()
    if known is not None:
        if not alert.is_firing and known[0] is None:
            db.execute("UPDATE alerts SET resolved = ? WHERE fingerprint = ? AND starts_at = ?", (now, *key))
            received.resolved += 1
        else:
            received.known += 1
        return
    incident = None
    if not alert.is_firing:
        received.resolved += 1  # its beginning was never heard of: kept, so that a late one opens nothing
    elif not routed.runbook:
        received.unanswered += 1
    else:
        incident = _open(db, routed, now, received)
    db.execute(
        "INSERT INTO alerts VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
        (*key, incident, alert.name, json.dumps(alert.labels), json.dumps(alert.annotations), now,
         None if alert.is_firing else now),
    )  # fmt: skip


def _open(db: sqlite3.Connection, routed: Routed, now: float, received: Received) -> int:
    """The open incident of this runbook and target, or a new one."""
    where = (routed.runbook, routed.target)
    found = db.execute("SELECT id FROM incidents WHERE runbook = ? AND target = ? AND closed IS NULL", where).fetchone()
    if found is not None:
        received.joined += 1
        return int(found[0])
    incident = db.execute(
        "INSERT INTO incidents (runbook, target, opened, plan_only) VALUES (?, ?, ?, ?)",
        (*where, now, routed.plan_only),
    ).lastrowid
    assert incident is not None
    received.opened.append(incident)
    return incident


_ACTS = "SELECT count(*), max(s.began) FROM steps s JOIN incidents i ON i.id = s.incident WHERE s.kind = 'act'"


def _check_limits(db: sqlite3.Connection, incident: int, limits: Limits, now: float) -> None:
    (target,) = db.execute("SELECT target FROM incidents WHERE id = ?", (incident,)).fetchone()
    other = db.execute(
        "SELECT i.id FROM incidents i JOIN steps s ON s.incident = i.id "
        "WHERE i.target = ? AND i.closed IS NULL AND i.id != ? AND s.kind = 'act' LIMIT 1",
        (target, incident),
    ).fetchone()
    if other is not None:
        raise Refused(f"incident {other[0]} has an act under way on {target}: one at a time, or neither can be judged")
    # From the future too: after the clock was set back, none would be the wrong count.
    recent, _ = db.execute(f"{_ACTS} AND s.began > ?", (now - _HOUR,)).fetchone()
    if recent >= limits.per_hour:
        raise Refused(f"{recent} acts in the last hour: max_acts_per_hour is {limits.per_hour}")
    _, last = db.execute(
        f"{_ACTS} AND i.target = ? AND json_extract(s.intent, '$.label') = ?", (target, limits.label)
    ).fetchone()
    if last is not None and now - last < limits.cooldown_seconds:
        raise Refused(
            f"{limits.label} was done on {target} {now - last:.0f} s ago; it rests {limits.cooldown_seconds:.0f} s"
        )
