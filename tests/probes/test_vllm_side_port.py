"""The side port, how the API server finds it, and what reaches vLLM's own metrics page."""

import json
import multiprocessing
import os
from collections.abc import Iterator
from multiprocessing.queues import Queue
from pathlib import Path

import pytest
import urllib3
from prometheus_client import CollectorRegistry, generate_latest

from diagnose.exposition import ExpositionParser
from diagnose.sources.clock import SystemClock
from diagnose.sources.http import Endpoint
from diagnose.sources.live import Watch
from probes.locks import TimedLock
from probes.prometheus import EngineCollector
from probes.recorder import RingRecorder
from probes.records import BlockCensus
from probes.snapshot import EngineSnapshot
from probes.vllm import rendezvous
from probes.vllm.page import SidePortCollector
from probes.vllm.side_port import Served, SidePort
from probes.wire import decode_steps
from tests.probes.records import make_record


def snapshot() -> EngineSnapshot:
    return EngineSnapshot(
        census=BlockCensus(3, 2, 1),
        num_running=1,
        num_waiting=0,
        waiting_by_reason={},
        prefix_query_tokens=10,
        prefix_hit_tokens=4,
        max_batched_tokens=512,
        max_sequences=16,
        memory_bytes={},
        bandwidth_bytes_per_second=None,
        start_unix=1.0,
        info={"version": "0.32.0"},
    )


class Engine:
    def __init__(self) -> None:
        self.recorder = RingRecorder(capacity=8)
        for number in range(10):
            self.recorder.on_step(make_record(number))
        self.off_reason: str | None = None
        collector = EngineCollector(self.recorder, TimedLock(), snapshot)
        served = Served("engine-a", 16, self.recorder, collector, snapshot, lambda: self.off_reason)
        self.port = SidePort(served, 0)


@pytest.fixture
def engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Engine]:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    one = Engine()
    yield one
    one.port.close()


def get(url: str) -> urllib3.BaseHTTPResponse:
    return urllib3.request("GET", url, retries=False, timeout=5)


def test_it_listens_on_loopback_alone(engine: Engine):
    assert engine.port.url.startswith("http://127.0.0.1:")


def test_steps_from_a_step_on_with_what_was_lost(engine: Engine):
    header, records = decode_steps(get(f"{engine.port.url}/debug/steps?since=0&limit=3").data.decode())
    assert (header.engine_id, header.next_id, header.lost) == ("engine-a", 5, 2)
    assert [record.step_id for record in records] == [2, 3, 4]


def test_the_census_says_that_free_excludes_reclaimable(engine: Engine):
    census = json.loads(get(f"{engine.port.url}/debug/census").data)
    assert census == {
        "active": 3,
        "reclaimable": 2,
        "free": 1,
        "total": 6,
        "free_includes_reclaimable": False,
        "block_size": 16,
        "reuse": None,
    }


@pytest.mark.parametrize("query", ["since=-1", "since=x", "limit=0", "since=1e3", f"since={10**30}"])
def test_a_query_that_is_no_number_is_refused_by_name(engine: Engine, query: str):
    answer = get(f"{engine.port.url}/debug/steps?{query}")
    assert answer.status == 400
    assert query.partition("=")[0] in answer.data.decode()


def test_unknown_paths_say_what_there_is(engine: Engine):
    answer = get(f"{engine.port.url}/")
    assert answer.status == 404
    assert "/debug/steps" in answer.data.decode()


def test_a_probe_that_is_off_shows_nothing_stale(engine: Engine):
    engine.off_reason = "its hooks failed"
    for path in ("/metrics", "/debug/steps", "/debug/census"):
        answer = get(engine.port.url + path)
        assert answer.status == 503
        assert "its hooks failed" in answer.data.decode()


def test_stallscope_can_watch_the_side_port_itself(engine: Engine):
    """The same dialect as our own engine's."""
    endpoint = Endpoint(engine.port.url)
    entries = Watch(endpoint, SystemClock()).run(0.2, 0.1)
    assert {entry.kind for entry in entries} == {"exposition", "steps"}


def page_of_the_server() -> str:
    registry = CollectorRegistry()
    registry.register(SidePortCollector())
    return generate_latest(registry).decode()


def test_the_servers_page_is_the_side_ports_page(engine: Engine):
    rendezvous.publish(0, engine.port.url)
    page = page_of_the_server()
    assert 'stallscope_kv_blocks{state="reclaimable"} 2.0' in page
    parse = ExpositionParser().parse
    ours, theirs = parse(page).samples, parse(get(f"{engine.port.url}/metrics").data.decode()).samples
    assert ours.keys() == theirs.keys()


def test_several_engines_are_told_apart_by_a_label(engine: Engine):
    rendezvous.publish(0, engine.port.url)
    rendezvous.publish(1, engine.port.url)
    page = page_of_the_server()
    assert 'stallscope_kv_blocks{engine="0",state="active"} 3.0' in page
    assert 'stallscope_kv_blocks{engine="1",state="active"} 3.0' in page
    assert page.count("# TYPE stallscope_kv_blocks ") == 1


def test_an_engine_that_is_off_or_gone_is_absent_and_never_zero(engine: Engine):
    rendezvous.publish(0, engine.port.url)
    engine.off_reason = "its hooks failed"
    assert page_of_the_server() == ""
    rendezvous.publish(0, "http://127.0.0.1:1")
    assert page_of_the_server() == ""


def test_another_servers_engines_are_not_read(engine: Engine):
    own = rendezvous.publish(0, engine.port.url)
    own.rename(own.with_name(f"{os.getpid()}1-0.json"))
    assert rendezvous.side_ports() == {}
    rendezvous.publish(0, engine.port.url)
    assert rendezvous.side_ports() == {0: engine.port.url}


def _publish_and_read(url: str, answers: "Queue[dict[int, str]]") -> None:
    rendezvous.publish(0, url)
    answers.put(rendezvous.side_ports())


def test_an_engine_that_is_a_child_process_is_found_by_its_parent_and_its_siblings(engine: Engine):
    context = multiprocessing.get_context("fork")
    answers: Queue[dict[int, str]] = context.Queue()
    child = context.Process(target=_publish_and_read, args=(engine.port.url, answers))
    child.start()
    assert answers.get(timeout=30) == {0: engine.port.url}
    assert rendezvous.side_ports() == {0: engine.port.url}
    child.join(timeout=30)


def test_files_of_dead_engines_are_swept_up(engine: Engine):
    kept = rendezvous.publish(0, engine.port.url)
    dead = kept.with_name("dead-0.json")
    dead.write_text(json.dumps({"pid": 2**22 + 1, "url": "http://127.0.0.1:1"}))
    torn = kept.with_name("torn-0.json")
    torn.write_text("{")
    rendezvous.publish(1, engine.port.url)
    assert not dead.exists()
    assert not torn.exists()
    assert kept.exists()


def test_a_directory_that_others_can_write_to_is_not_trusted(engine: Engine, tmp_path: Path):
    path = tmp_path / f"stallscope-vllm-{os.getuid()}"
    path.mkdir()
    path.chmod(0o777)
    with pytest.raises(PermissionError):
        rendezvous.publish(0, engine.port.url)
