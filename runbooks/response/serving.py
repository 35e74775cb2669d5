"""The process of `stallscope runbook serve`: receiver and conductor around one journal."""

import signal
import threading
from collections.abc import Callable
from types import FrameType

from diagnose.sources.clock import SystemClock
from runbooks.errors import ConfigError, Interrupted, JournalError
from runbooks.response.conductor import Conductor
from runbooks.response.config import Config
from runbooks.response.journal import Journal
from runbooks.response.lease import Lease
from runbooks.response.look import Examiner, check_baselines
from runbooks.response.moves import in_force
from runbooks.response.notify import make_senders
from runbooks.response.receiver import Receiver
from runbooks.response.tracing import Tracing, make_export
from runbooks.response.window_before import PrometheusWindow

_LEASE_RETRY_SECONDS = 1.0


class StoppableClock(SystemClock):
    """Its sleep ends with Interrupted when the process is to stop: a look may last ten minutes."""

    def __init__(self, stop: threading.Event) -> None:
        self._stop = stop

    def sleep(self, seconds: float) -> None:
        if self._stop.wait(seconds):
            raise Interrupted("the receiver stops")


def serve(config: Config, log: Callable[[str], None], *, plan_only: bool) -> None:
    """Until SIGTERM or SIGINT. Raises ConfigError and JournalError when it cannot start."""
    stop = threading.Event()
    clock = StoppableClock(stop)
    token = config.secret(config.receiver.token_file)
    check_baselines(config)
    senders = make_senders(config.notify)
    journal = Journal(config.path(config.receiver.journal))
    tracing: Tracing | None = None
    try:
        try:
            receiver = Receiver(config, journal, token, clock, log, plan_only=plan_only)
        except OSError as error:
            where = f"{config.receiver.host}:{config.receiver.port}"
            raise ConfigError(f"cannot listen on {where}: {error.strerror or error}") from None
        before = PrometheusWindow(config.receiver.prometheus).before if config.receiver.prometheus else None
        if config.receiver.otlp_endpoint:
            export = make_export(config.receiver.otlp_endpoint, str(journal.path))
            tracing = Tracing(export, journal, clock, log)
        on_closed: Callable[[int], None] = (lambda _: None) if tracing is None else tracing.send
        examiner = Examiner(config, clock, before)
        conductor = Conductor(config, journal, examiner.look, clock, senders, receiver.links.link, log, on_closed)
        lease = Lease(journal.path)

        def end(_number: int, _frame: FrameType | None) -> None:
            stop.set()

        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, end)
        http = threading.Thread(target=receiver.serve_forever, kwargs={"poll_interval": 0.2}, daemon=True)
        http.start()
        log(f"ready on {receiver.url}{' (plan only: nothing will be done)' if plan_only else ''}")
        try:
            if _await_lease(lease, stop, log):
                conductor.run(stop)
                tell_what_is_left(journal, log)
        finally:
            receiver.shutdown()
            receiver.server_close()
            lease.give_back()
    finally:
        if tracing is not None:
            tracing.close()
        journal.close()


def tell_what_is_left(journal: Journal, log: Callable[[str], None]) -> None:
    """At the end of the process that acts: nobody watches the clock of an act any more."""
    try:
        for number in journal.open_incidents():
            incident = journal.incident(number)
            left = in_force(incident)
            undone = f": {left} stays in force until it is undone then" if left else ""
            log(
                f"incident {number} ({incident.runbook} on {incident.target}) goes on when this is started again{undone}"
            )
    except JournalError as error:
        log(f"{error}: what is under way is not known")


def _await_lease(lease: Lease, stop: threading.Event, log: Callable[[str], None]) -> bool:
    """A second receiver of the same journal takes alerts and does nothing else until the first is gone."""
    told = False
    while not stop.is_set():
        try:
            if lease.take():
                if told:
                    log("the other receiver is gone: this one acts now")
                return True
        except OSError as error:
            raise ConfigError(f"the journal's lock cannot be had: {error.strerror or error}") from None
        if not told:
            log("another receiver acts on this journal: this one takes alerts and waits")
            told = True
        stop.wait(_LEASE_RETRY_SECONDS)
    return False
