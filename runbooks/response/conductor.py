"""Carries incidents forward, one journaled step after the other."""

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import datetime
from typing import Any

import msgspec

from diagnose.sources.clock import Clock
from diagnose.units import parse_duration
from runbooks.admin import AdminClient
from runbooks.errors import AdminError, AdminRefused, Interrupted, JournalError, Refused, RunbookError
from runbooks.response.act_base import Effect, Site
from runbooks.response.acts import Act
from runbooks.response.config import Config, Runbook, Target
from runbooks.response.journal import Incident, Journal, Limits
from runbooks.response.look import Look, Looks
from runbooks.response.moves import Begin, Close, Redo, Wait, next_move
from runbooks.response.notify import Send, tell
from runbooks.response.plan import choose, compare, is_inconclusive

_WORKERS = 4
"""Incidents that are carried forward at the same time: a look takes as long as its window."""
_TICK_SECONDS = 0.5
_RETRY_SECONDS = 5.0

Log = Callable[[str], None]


class Conductor:
    """Only the process that holds the journal's lease may run one."""

    def __init__(
        self,
        config: Config,
        journal: Journal,
        look: Looks,
        clock: Clock,
        senders: Sequence[tuple[str, Send]] = (),
        approval_link: Callable[[int], str] = lambda _: "",
        log: Log = lambda _: None,
        on_closed: Callable[[int], None] = lambda _: None,
    ) -> None:
        """`on_closed` gets an incident's number once its end is in the journal; it must neither wait nor raise."""
        self._config, self._journal, self._look, self._clock = config, journal, look, clock
        self._senders, self._approval_link, self._log, self._on_closed = senders, approval_link, log, on_closed
        self._complaints: dict[int, str] = {}

    def run(self, stop: threading.Event) -> None:
        """Until `stop` is set; the clock that `stop` interrupts ends a look under way."""
        busy: dict[int, Future[None]] = {}
        with ThreadPoolExecutor(_WORKERS, thread_name_prefix="incident") as pool:
            while not stop.is_set():
                pause = _TICK_SECONDS
                busy = {number: future for number, future in busy.items() if not future.done()}
                try:
                    for number in self._journal.open_incidents():
                        if number not in busy:
                            busy[number] = pool.submit(self._carry, number, stop)
                except JournalError as error:
                    self._log(f"{error}: nothing is done until it can be written again")
                    pause = _RETRY_SECONDS
                stop.wait(pause)

    def _carry(self, number: int, stop: threading.Event) -> None:
        try:
            while not stop.is_set() and self.advance(number):
                pass
            self._complaints.pop(number, None)
        except Interrupted:
            return  # the step stays begun, and is taken up by the next process
        except JournalError as error:
            self._complain(number, f"{error}: nothing is done until it can be written again", stop)
        except RunbookError as error:
            self._complain(number, f"{error}: it waits", stop)
        except Exception as error:  # noqa: BLE001 - a fault of ours must not end the receiver, nor go on unseen
            self._complain(number, f"{type(error).__name__}: {error}: a fault of stallscope's; it waits", stop)

    def _complain(self, number: int, text: str, stop: threading.Event) -> None:
        """Once for as long as it is the same."""
        if self._complaints.get(number) != text:
            self._complaints[number] = text
            self._log(f"incident {number}: {text}")
        stop.wait(_RETRY_SECONDS)

    def advance(self, number: int) -> bool:
        """Makes one move; False when there is none to make now. Raises JournalError."""
        incident = self._journal.incident(number)
        if incident.closed is not None:
            return False
        move = next_move(incident, self._clock.unix())
        if isinstance(move, Wait):
            return False
        if isinstance(move, Close):
            self._close(incident, move.outcome)
        elif isinstance(move, Redo):
            self._perform(incident, move.step.kind, move.step.step_id, move.step.intent, resumed=True)
        else:
            self._begin(incident, move)
        return True

    def _close(self, incident: Incident, outcome: str) -> None:
        self._journal.close_incident(incident.incident_id, outcome, self._clock.unix())
        self._tell(incident, outcome)
        self._on_closed(incident.incident_id)

    def _begin(self, incident: Incident, move: Begin) -> None:
        number, now = incident.incident_id, self._clock.unix()
        if move.kind != "act":
            intent = {"why": move.why} if move.why else {}
            step = self._journal.begin(number, move.kind, intent, now)
            self._perform(incident, move.kind, step, intent, resumed=False)
            return
        decided = _result(incident, "decide")
        act = msgspec.convert(decided["act"], Act)
        limits = Limits(self._config.receiver.max_acts_per_hour, act.cooldown_seconds, act.label)
        intent = {**decided["intent"], "label": act.label}
        try:
            step = self._journal.begin_act(number, intent, limits, now)
        except Refused as refusal:
            self._close(incident, f"{decided['text']}: not done: {refusal}")
            return
        self._perform(incident, "act", step, intent, resumed=False)

    def _perform(self, incident: Incident, kind: str, step: int, intent: dict[str, Any], *, resumed: bool) -> None:
        steps: dict[str, Callable[[], dict[str, Any]]] = {
            "look": lambda: msgspec.to_builtins(self._take_look(incident, "before")),
            "decide": lambda: self._decide(incident),
            "ask": lambda: self._ask(incident),
            "act": lambda: self._act(incident, intent, resumed=resumed),
            "verify": lambda: self._verify(incident),
            "undo": lambda: self._undo(incident),
            "note": dict,
        }
        result = steps[kind]()
        self._journal.end(step, result, self._clock.unix())
        if kind in ("act", "undo"):
            self._tell(incident, f"{kind}: {_result(incident, 'decide')['text']}: {result['text']}")
        elif kind == "ask":
            self._tell(incident, result["text"])

    def _take_look(self, incident: Incident, when: str) -> Look:
        target, runbook = self._subject(incident)
        name = f"incident-{incident.incident_id}-{when}"
        return self._look(target, runbook, name, _alert_time(incident) if when == "before" else None)

    def _decide(self, incident: Incident) -> dict[str, Any]:
        target, runbook = self._subject(incident)
        look = msgspec.convert(_result(incident, "look"), Look)
        chosen = choose(runbook, look)
        if isinstance(chosen, str):
            return {"outcome": chosen, "look_again": runbook.look_again_seconds if is_inconclusive(look) else None}
        try:
            intent = chosen.prepare(self._site(incident, target))
        except (Refused, AdminError) as error:
            outcome = f"{chosen.label} was called for ({look.summary}) and cannot be done: {error}"
            return {"outcome": outcome, "look_again": None}
        return {
            "act": msgspec.to_builtins(chosen),
            "intent": intent,
            "text": intent["text"],
            "why": look.summary,
            "changes_target": chosen.changes_target,
            "can_be_undone": chosen.can_be_undone,
            "ttl": chosen.ttl_seconds,
            "settle": runbook.settle_seconds,
            "expires": self._clock.unix() + parse_duration(chosen.approve_within),
        }

    def _ask(self, incident: Incident) -> dict[str, Any]:
        decided, number = _result(incident, "decide"), incident.incident_id
        link = self._approval_link(number)
        also = f", or open {link}" if link else ""
        return {
            "text": f"approval wanted: {decided['text']} for at most {decided['ttl']:.0f} s, because {decided['why']}; "
            f"`stallscope runbook approve {number}`{also}"
        }

    def _act(self, incident: Incident, intent: dict[str, Any], *, resumed: bool) -> dict[str, Any]:
        target, _ = self._subject(incident)
        act, site = self._decided_act(incident), self._site(incident, target)
        try:
            effect = act.look(site, intent)
        except (Refused, AdminError) as error:
            # Cut off before or after its effect, and nothing to be seen now: the undoing will look again.
            return _acted("unknown" if resumed else "failed", str(error))
        if effect is Effect.CHANGED:
            return _acted("failed", "the target was changed by somebody else since the plan")
        if resumed and effect is Effect.TOOK:
            return _acted("done", "it had taken effect before the restart, and was not repeated")
        if resumed and effect is Effect.UNKNOWN:
            return _acted(
                "unknown", "it had begun before the restart and nothing shows whether it took effect: not repeated"
            )
        if effect is Effect.TOOK:
            return _acted("failed", "the target is in that state already, by somebody else's hand")
        try:
            return _acted("done", act.apply(site, intent))
        except (Refused, AdminRefused) as error:
            return _acted("failed", str(error))
        except AdminError as error:
            return _acted("unknown", str(error))

    def _verify(self, incident: Incident) -> dict[str, Any]:
        _, runbook = self._subject(incident)
        act = self._decided_act(incident)
        before = msgspec.convert(_result(incident, "look"), Look)
        after = self._take_look(incident, "after")
        judged = compare(runbook, before, after, _result(incident, "decide")["intent"], getattr(act, "setting", ""))
        return {"helped": judged.helped, "text": judged.text, "look": msgspec.to_builtins(after)}

    def _undo(self, incident: Incident) -> dict[str, Any]:
        target, _ = self._subject(incident)
        act = self._decided_act(incident)
        try:
            text = act.undo(self._site(incident, target), _result(incident, "decide")["intent"])
        except (Refused, AdminError) as error:
            return {"done": False, "text": f"could not be undone yet: {error}"}
        return {"done": True, "text": text}

    def _decided_act(self, incident: Incident) -> Act:
        """As it was decided: a configuration that was edited since does not change an act under way."""
        act: Act = msgspec.convert(_result(incident, "decide")["act"], Act)
        return act

    def _subject(self, incident: Incident) -> tuple[Target, Runbook]:
        target, runbook = self._config.target(incident.target), self._config.runbook(incident.runbook)
        if target is None or runbook is None:
            missing = f"target {incident.target}" if target is None else f"runbook {incident.runbook}"
            raise Refused(f"{missing} is not in the configuration any more; put it back until the incident is closed")
        return target, runbook

    def _site(self, incident: Incident, target: Target) -> Site:
        config = self._config
        token = config.secret(target.admin_token_file) if target.admin_token_file else ""
        return Site(
            target.name,
            target.url,
            AdminClient(target.url, token, timeout_seconds=10.0) if token else None,
            config.commands,
            config.path(config.receiver.recordings),
            self._clock,
            f"incident-{incident.incident_id}",
        )

    def _tell(self, incident: Incident, text: str) -> None:
        title = f"stallscope incident {incident.incident_id} ({incident.runbook} on {incident.target})"
        for failure in tell(self._senders, title, text):
            self._journal.note(incident.incident_id, failure, self._clock.unix())


def _acted(status: str, text: str) -> dict[str, Any]:
    return {"status": status, "text": text}


def _result(incident: Incident, kind: str) -> dict[str, Any]:
    step = incident.last(kind)
    assert step is not None
    return step.result


def _alert_time(incident: Incident) -> float | None:
    """When the first alert began, by Prometheus' clock."""
    try:
        return min(datetime.fromisoformat(alert.starts_at).timestamp() for alert in incident.alerts)
    except ValueError:
        return None
