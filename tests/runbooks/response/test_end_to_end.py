"""The whole way with real processes: an engine under interference, an alert, the receiver, the act, the proof, the undoing."""

import itertools
import os
import re
import signal
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from pathlib import Path
from statistics import median

import pytest
import urllib3

from probes.catalog import LATENCY_BOUNDS_SECONDS
from runbooks.admin import AdminClient
from runbooks.drills.engine_process import EngineProcess
from runbooks.drills.load import Load, prompt_text
from runbooks.response.journal import Incident, Journal
from tests.pressure import skip_when_starved
from tests.runbooks.response.prometheus import INSTALLED, watching
from tests.runbooks.response.test_receiver import with_alerts
from tests.runbooks.test_grafana import queries

pytestmark = [pytest.mark.slow, pytest.mark.timeout(280)]
ENGINE = ("--model", "tiny", "--max-batched-tokens", "4096", "--threads", "1")
_SLOW = "InterTokenLatencySlow"
CONFIG = """
[receiver]
token_file = "webhook-token"
port = 0

[[notify]]
kind = "stdout"

[[targets]]
name = "chat"
match = {{ instance = "{instance}" }}
url = "{url}"
admin_token_file = "{token_file}"
slo = "itl_p99={limit_ms}ms"

[[runbooks]]
name = "slow-tokens"
alerts = ["{alert}"]
symptom = "itl_p99"
window = "10s"
settle = "2s"
look_again = "1s"
min_improvement = 0.2

[[runbooks.acts]]
do = "lower_budget"
causes = ["prefill_interference", "hard_failure"]
factor = 0.1
floor = 256
policy = "auto"
ttl = "{ttl}"
cooldown = "10m"
"""


def ask(url: str, seed: int) -> float:
    """Seconds that one long prompt took."""
    began = time.monotonic()
    body = {"model": "tiny", "prompt": prompt_text(600, seed), "max_tokens": 1}
    urllib3.request("POST", f"{url}/v1/completions", json=body, timeout=120, retries=False)
    return time.monotonic() - began


@contextmanager
def interference(url: str):
    """Prompts of one very long step, one after the other, beside streams that would else get a token every few milliseconds.

    Gives what ends it, and the limit of a gap between tokens (a bucket bound, seconds): far below a prompt in one step, far
    above one in ten. Pauses and limit follow from the prompts' own time on this machine, now.
    """
    stop, seeds = threading.Event(), itertools.count(1)

    def prompts() -> None:
        while not stop.wait(0.4 * ask(url, next(seeds))):
            pass

    thread = threading.Thread(target=prompts, daemon=True)
    with Load(url, streams=8, stream_tokens=700):
        usual = median(ask(url, next(seeds)) for _ in range(5))
        thread.start()
        try:
            yield stop, max(bound for bound in LATENCY_BOUNDS_SECONDS if bound <= 0.45 * usual)
        finally:
            stop.set()
            thread.join(timeout=120)


@contextmanager
def serving(
    folder: Path, engine: EngineProcess, *options: str, limit: float = 0.1, ttl: str = "45s", alert: str = _SLOW
):
    """URL of the receiver, and its journal. `limit` of the gap between tokens, seconds; `alert` is the one that is answered."""
    (folder / "webhook-token").write_text("hook\n")
    instance = engine.url.removeprefix("http://")
    config = folder / "runbooks.toml"
    config.write_text(
        CONFIG.format(
            instance=instance,
            url=engine.url,
            token_file=engine.token_path,
            limit_ms=f"{limit * 1e3:g}",
            ttl=ttl,
            alert=alert,
        )
    )
    command = [sys.executable, "-m", "diagnose.cli", "runbook", "serve", "--config", str(config), *options]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stderr is not None
        ready = re.match(r"ready on (http://\S+)", process.stderr.readline())
        assert ready is not None
        yield ready[1], Journal(folder / "runbooks.db")
    finally:
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate(timeout=60)
    assert process.returncode == 0
    assert "Traceback" not in err
    assert "fault of stallscope" not in err


def send(url: str, engine: EngineProcess, name: str, status: str = "firing", start: int = 0) -> None:
    labels = {"alertname": name, "instance": engine.url.removeprefix("http://")}
    alert = {"status": status, "labels": labels, "fingerprint": name, "startsAt": f"2026-11-30T10:{start:02d}:00Z"}
    answer = urllib3.request(
        "POST", f"{url}/alerts", json=with_alerts(alert), headers={"Authorization": "Bearer hook"}, timeout=30
    )
    assert answer.status == 200, answer.data


def await_closed(journal: Journal, number: int, seconds: float = 120) -> Incident:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if any(incident.incident_id == number and incident.closed for incident in journal.incidents(10)):
            return journal.incident(number)
        time.sleep(0.3)
    raise AssertionError(f"incident {number} is still open: {journal.incident(number)}")


def await_verified(journal: Journal, number: int, seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while (step := journal.incident(number).last("verify")) is None or step.ended is None:
        assert time.monotonic() < deadline, journal.incident(number)
        time.sleep(0.3)


def budget(engine: EngineProcess) -> object:
    return AdminClient(engine.url, engine.admin_token).get("max_batched_tokens")


def await_budget(engine: EngineProcess, value: int, seconds: float = 120) -> None:
    deadline = time.monotonic() + seconds
    while budget(engine) != value:
        assert time.monotonic() < deadline, f"the budget is {budget(engine)}, not {value}"
        time.sleep(0.3)


def await_resolved(journal: Journal, number: int, seconds: float = 90) -> None:
    deadline = time.monotonic() + seconds
    while not journal.incident(number).is_resolved:
        assert time.monotonic() < deadline, journal.incident(number)
        time.sleep(0.3)


@pytest.mark.skipif(not INSTALLED, reason="prometheus or prometheus-alertmanager is not installed")
@pytest.mark.timeout(420)
def test_an_alert_ends_by_the_act_alone(tmp_path):
    """Real Prometheus and Alertmanager: under a load that does not change, the act is proven and the alert resolves by it.

    The load ends only then, so that the undoing does not bring the alert back; the document tells it all.
    """
    skip_when_starved()
    with (
        EngineProcess(ENGINE) as engine,
        interference(engine.url) as (over, limit),
        serving(tmp_path, engine, limit=limit, ttl="2m") as (url, journal),
    ):
        with watching(tmp_path, engine.url, f"{url}/alerts", "hook", limit=limit) as prometheus:
            await_budget(engine, 409)
            for query in queries():
                answer = urllib3.request("GET", f"{prometheus}/api/v1/query", fields={"query": query}, timeout=30)
                assert answer.json()["status"] == "success", answer.data
            await_verified(journal, 1)
            await_resolved(journal, 1)
            assert budget(engine) == 409, "resolved while the act is in force"
            assert not over.is_set()
            over.set()
            incident = await_closed(journal, 1, seconds=180)
        kinds = [step.kind for step in incident.steps]
        assert kinds[-5:] == ["look", "decide", "act", "verify", "undo"], "on a busy machine it may look more than once"
        act, undo = incident.last("act"), incident.last("undo")
        assert act is not None and undo is not None
        assert {alert.name for alert in incident.alerts} == {"InterTokenLatencySlow"}
        assert any(alert.resolved is not None and act.began < alert.resolved < undo.began for alert in incident.alerts)
        assert (incident.outcome or "").startswith("max_batched_tokens 4096 -> 409 helped (itl_p99 ")
        assert "max_batched_tokens is 4096 again" in (incident.outcome or "")
        assert (incident.outcome or "").endswith("the alert is resolved")
        await_budget(engine, 4096)
        report = subprocess.run(
            [sys.executable, "-m", "diagnose.cli", "runbook", "report", "1", "--config", str(tmp_path / "runbooks.toml")],
            capture_output=True, text=True, timeout=60, check=True,
        ).stdout  # fmt: skip
        assert "objective itl_p99=" in report and "is breached" in report
        assert "the cause is not confirmed" in report


def test_the_same_with_a_payload_of_our_own(tmp_path):
    """Without Prometheus: plan only changes nothing; then the act; then a flapping alert finds it resting."""
    skip_when_starved()
    with EngineProcess(ENGINE) as engine, interference(engine.url) as (_, limit):
        with serving(tmp_path, engine, "--plan-only", limit=limit) as (url, journal):
            send(url, engine, "InterTokenLatencySlow")
            planned = await_closed(journal, 1)
            assert planned.outcome == "planned and not done: max_batched_tokens 4096 -> 409"
            assert budget(engine) == 4096
        with serving(tmp_path, engine, limit=limit) as (url, journal):
            send(url, engine, "InterTokenLatencySlow", start=1)
            await_budget(engine, 409)
            send(url, engine, "InterTokenLatencySlow", "resolved", start=1)
            done = await_closed(journal, 2)
            assert "helped" in (done.outcome or "")
            await_budget(engine, 4096)
            send(url, engine, "InterTokenLatencySlow", start=2)
            flapped = await_closed(journal, 3)
            assert "lower_budget was done on chat" in (flapped.outcome or "")
            assert budget(engine) == 4096


def test_hung_and_dead_targets_end_without_an_act(tmp_path):
    """A stopped process does not answer; a killed one refuses. Each is said, and nothing is touched."""
    with EngineProcess(("--model", "tiny")) as engine, serving(tmp_path, engine, alert="TargetDown") as (url, journal):
        os.kill(engine.pid, signal.SIGSTOP)
        send(url, engine, "TargetDown", start=1)
        hung = await_closed(journal, 1)
        assert "no answer within 5 s" in (hung.outcome or "")
        os.kill(engine.pid, signal.SIGCONT)
        os.kill(engine.pid, signal.SIGKILL)
        send(url, engine, "TargetDown", start=2)
        dead = await_closed(journal, 2)
        assert "connection refused" in (dead.outcome or "")
        for number in (1, 2):
            assert not any(step.kind == "act" for step in journal.incident(number).steps)
