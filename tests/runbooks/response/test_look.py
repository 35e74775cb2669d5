"""What a look makes of targets that serve, reserve, hang, freeze and answer nonsense; and the decision on each."""

import json
from pathlib import Path
from threading import Thread
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from diagnose.commands.diagnose import judge
from diagnose.errors import DiagnoseError
from diagnose.exposition import ExpositionParser
from runbooks.response.acts import Act
from runbooks.response.conductor import Conductor
from runbooks.response.look import Examiner, Look
from runbooks.response.plan import choose
from runbooks.response.window_before import PrometheusWindow
from tests.builders import Engine, make_steps, with_prefill
from tests.diagnose.commands import recording
from tests.diagnose.fake_target import FakeClock, FakeEngine, Server, raw, serving
from tests.runbooks.response.scenes import ACT, alert, kinds, make_scene, write_config

GIB = 2**30
FOR_ALL = ACT.replace('["prefill_interference"]', '["prefill_interference", "hard_failure"]')


def look(folder: Path, url: str, **options: Any) -> tuple[Look, Act | str]:
    config = write_config(folder, url, **{"window": "20s", **options})
    runbook, target = config.runbooks[0], config.targets[0]
    found = Examiner(config, FakeClock()).look(target, runbook, "incident-1-before", None)
    return found, choose(runbook, found)


def look_at(folder: Path, engine: FakeEngine, **options: Any) -> tuple[Look, Act | str]:
    with engine.serving() as target:
        return look(folder, target.url, **options)


def test_interference_that_breaches_an_objective_is_contained(tmp_path):
    found, chosen = look_at(tmp_path, FakeEngine(make_steps(400, with_prefill(5, 6000))))
    assert found.decision == "contain"
    assert found.causes == ["prefill_interference", "hard_failure"]
    assert found.reading is not None and found.reading.low > 0.1
    assert not isinstance(chosen, str) and chosen.label == "lower_budget"
    assert (tmp_path / "recordings" / "incident-1-before.rec").exists()


def test_the_same_without_an_objective_is_an_experiment_and_no_act(tmp_path):
    """A relative regression asks for a comparison (the method's third rule)."""
    found, chosen = look_at(tmp_path, FakeEngine(make_steps(400, with_prefill(5, 6000))), target="")
    assert found.decision == "experiment"
    assert isinstance(chosen, str) and chosen.startswith("experiment: prefill_interference is supported")


def test_an_expected_reservation_leads_to_no_act(tmp_path):
    memory = {"total": 80 * GIB, "reserved": 76 * GIB}
    engine = FakeEngine(make_steps(400), engine=Engine(state={"memory_bytes": memory}))
    found, chosen = look_at(tmp_path, engine, acts=FOR_ALL)
    assert found.decision == "none", found
    assert isinstance(chosen, str) and "nothing to do" in chosen and "is the configured pool" in chosen


def test_a_frozen_page_is_not_believed(tmp_path):
    """It shows interference and a breach, and always the same: metrics that do not move prove nothing."""
    engine = Engine()
    engine.run(make_steps(400, with_prefill(5, 6000)))
    page = engine.page(num_running=4)
    with serving(page) as target:
        found, chosen = look(tmp_path, target.url, acts=FOR_ALL)
    assert found.frozen >= 20
    assert isinstance(chosen, str) and "did not change once in" in chosen


def test_a_dead_target_is_a_hard_failure_that_no_admin_verb_reaches(tmp_path):
    with serving("") as target:
        url = target.url
    found, chosen = look(tmp_path, url)
    assert (found.kind, found.decision, found.causes) == ("unreachable", "contain", ["hard_failure"])
    assert isinstance(chosen, str) and "connection refused" in chosen and "a person must contain it" in chosen


def test_a_target_that_comes_back_within_seconds_is_not_dead(tmp_path):
    """None: the connection is closed without a word."""
    engine = FakeEngine(make_steps(400))
    down = iter([None, None])
    with serving(lambda: engine.metrics() if next(down, engine) is engine else None, steps=engine.steps) as target:
        found, _ = look(tmp_path, target.url)
    assert found.kind == "diagnosed"


@pytest.mark.parametrize("answer", [raw("500 Internal Server Error", "oops"), "up 1\n"], ids=["error", "another page"])
def test_a_target_that_answers_nonsense_is_no_hard_failure(tmp_path, answer):
    with serving(answer) as target:
        found, chosen = look(tmp_path, target.url, acts=FOR_ALL)
    assert (found.kind, found.causes) == ("unreadable", [])
    assert isinstance(chosen, str) and "cannot be judged" in chosen


def test_a_folder_that_cannot_take_the_recording_costs_only_the_recording(tmp_path):
    (tmp_path / "recordings").write_text("a file where the folder should be")
    found, _ = look_at(tmp_path, FakeEngine(make_steps(400)))
    assert found.kind == "diagnosed"
    assert any("the evidence could not be kept" in warning for warning in found.warnings)


def test_a_baseline_is_read_from_a_recording(tmp_path):
    recording(tmp_path / "good.rec", make_steps(300))
    found, _ = look_at(tmp_path, FakeEngine(make_steps(400)), target='baseline = ["good.rec"]')
    assert found.diagnosis is not None
    assert found.diagnosis["windows"]["baseline"] is not None


def test_a_baseline_is_read_from_prometheus(tmp_path):
    """Its answers at five times before the alert, made into pages again; series of its own rules are left out."""
    engine, asked = Engine(), []

    def answer(path):
        if not path.startswith("/api/v1/query"):
            return raw("404 Not Found")
        query = parse_qs(urlsplit(path).query)
        asked.append((query["query"][0], float(query["time"][0])))
        engine.run(make_steps(100))
        page = ExpositionParser().parse(engine.page())
        series = [
            {"metric": {"__name__": name, "instance": "chat:8000", **dict(labels)}, "value": [0, str(value)]}
            for name, found in page.samples.items()
            for labels, value in found.items()
        ]
        series.append({"metric": {"__name__": "ALERTS", "alertname": "x"}, "value": [0, "1"]})
        return json.dumps({"status": "success", "data": {"resultType": "vector", "result": series}})

    server = Server(0, answer)
    Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
    url = f"http://127.0.0.1:{server.server_address[1]}"
    target = "selector = 'instance=\"chat:8000\"'"
    config = write_config(tmp_path, "http://h:1", window="20s", target=target, prometheus=url)
    found = PrometheusWindow(url).before(config.targets[0], 20.0, 1_800_000_000.0)
    server.shutdown()
    server.server_close()
    assert found.length_seconds == 20.0
    assert [time for _, time in asked][-1] == 1_800_000_000.0 - 120
    assert {query for query, _ in asked} == {'{instance="chat:8000"}'}
    good = judge(found, None, (), is_live=False, target="x").case.incident
    assert good.latency("inter_token_latency", 0.5) is not None
    with pytest.raises(DiagnoseError, match="refused"):
        PrometheusWindow(url).before(config.targets[0], 20.0, 1_800_000_000.0)


def test_a_hung_engine_is_told_from_a_frozen_page(tmp_path):
    """Its page moves (the server counts its scrapes), its steps do not: a hard failure that a command may answer."""
    engine, scrapes = Engine(), iter(range(1000))
    engine.run(make_steps(100))
    act = ACT.replace('["prefill_interference"]', '["engine_hung"]').replace("lower_budget", "command")
    with serving(lambda: f"{engine.page(num_running=4)}scrapes_total {next(scrapes)}\n") as target:
        found, chosen = look(tmp_path, target.url, window="40s", acts=act + 'command = "note"\n')
    assert (found.frozen, found.decision) == (0, "contain")
    assert "engine_hung" in found.causes
    assert not isinstance(chosen, str) and chosen.label == "command"


def test_the_alert_with_an_expected_reservation_ends_without_an_act(tmp_path):
    """Whole: the alert comes in, the target is looked at, nothing is wrong, nobody is touched."""
    memory = {"total": 80 * GIB, "reserved": 76 * GIB}
    with FakeEngine(make_steps(400), engine=Engine(state={"memory_bytes": memory})).serving() as target:
        here = make_scene(tmp_path, target.url, [], acts=FOR_ALL, window="20s")
        conductor = Conductor(here.config, here.journal, Examiner(here.config, FakeClock()).look, here.clock)
        (number,) = here.receive(alert())
        while conductor.advance(number):
            pass
    done = here.journal.incident(number)
    assert kinds(done) == ["look", "decide"]
    assert "nothing to do" in (done.outcome or "") and "is the configured pool" in (done.outcome or "")
