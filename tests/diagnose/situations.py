"""Diagnoses of every kind, for tests that hold for each of them."""

from collections.abc import Callable

import pytest

from diagnose.diagnosis import Diagnosis, diagnose
from diagnose.observation import Event
from tests.builders import make_signals, watch
from tests.diagnose import cases
from tests.diagnose.cases import look

SITUATIONS: dict[str, Callable[[], Diagnosis]] = {
    "interference": lambda: look(cases.interference(ttft=0.8), cases.quiet(ttft=0.2)),
    "bandwidth": lambda: look(cases.long_contexts(), cases.short_contexts()),
    "exhaustion": lambda: look(cases.exhaustion(), slo="itl_p99=200ms,ttft_p95=2s"),
    "reservation": lambda: look(cases.quiet(census=cases.MOSTLY_FREE, memory_bytes=cases.HIGH_MEMORY)),
    "queue": lambda: look(cases.queue()),
    "restart": lambda: look(cases.restarted_engine(running=5)),
    "gone": lambda: look(cases.quiet(), events=(Event(0, "gone", "http://127.0.0.1:8000/metrics: refused"),)),
    "histograms": lambda: look(cases.interference(show_records=False), cases.quiet(show_records=False)),
    "late histograms": lambda: look(cases.exhaustion(show_records=False)),
    "slow host": lambda: look(cases.slow_host()),
    "bare": lambda: diagnose("one.prom ... two.prom", make_signals(num_scrapes=2)),
    "idle": lambda: look(watch([], show_records=False, num_running=0)),
    "nothing": lambda: diagnose("t", make_signals(length_seconds=None, num_scrapes=0)),
}
each_situation = pytest.mark.parametrize("diagnosis", [make() for make in SITUATIONS.values()], ids=SITUATIONS.keys())
