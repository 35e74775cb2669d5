"""A Prometheus as a source, against a real one and a real VictoriaMetrics over backfilled pages."""

import json
import shutil
from collections.abc import Iterator
from datetime import UTC, datetime

import pytest

from diagnose.dialects.stallscope import STALLSCOPE
from diagnose.dialects.view import PageView
from diagnose.dialects.vllm import VLLM
from diagnose.errors import NotEnough, SourceError, TargetError
from diagnose.exposition import ExpositionParser
from diagnose.signals import Signals
from diagnose.sources.http import Endpoint
from diagnose.sources.prometheus import Reading, read_prometheus
from diagnose.sources.prometheus_api import PrometheusApi
from diagnose.sources.promql import parse_selector
from diagnose.windows import read_pages
from probes.recording import Entry, read_recording
from tests.builders import START_UNIX, Engine, make_steps, with_prefill
from tests.diagnose.prometheus_server import (
    MISSING,
    REASON,
    VICTORIA,
    VICTORIA_REASON,
    Scraped,
    backfill,
    openmetrics,
    serve,
    serve_victoria,
)
from tests.test_packaging import ROOT

STEP_SECONDS = 15.0
NUM_SCRAPES = 61
START = START_UNIX + 1000
END = START + (NUM_SCRAPES - 1) * STEP_SECONDS
WINDOW = 600.0
AT = datetime.fromtimestamp(END, UTC).isoformat()
RECORDING = ROOT / "tests/data/vllm-pressure.rec"
UNSEEN = ("failures", "requests_finished", "preemptions")
"""Without a series, a family that a page declares is not in a Prometheus; preemptions are inferred from page to page."""
NODE_PAGE = 'node_load1 0.5\nnode_cpu_seconds_total{mode="idle"} 100\n'


def times() -> list[float]:
    return [START + index * STEP_SECONDS for index in range(NUM_SCRAPES)]


def target(job: str, instance: str = "10.0.0.1:8000") -> dict[str, str]:
    return {"job": job, "instance": instance}


def pages(
    job: str,
    instance: str = "10.0.0.1:8000",
    prefill: bool = True,
    running: int = 4,
    waiting: int = 0,
    first: int = 0,
    last: int = NUM_SCRAPES,
    start: float = START_UNIX,
) -> Iterator[Scraped]:
    """One engine that works on at every scrape from the `first` to the one before the `last`."""
    engine = Engine(start_unix=start)
    records = make_steps(5 * NUM_SCRAPES, with_prefill(5, 1500)) if prefill else make_steps(5 * NUM_SCRAPES)
    for index, unix in enumerate(times()[first:last]):
        engine.run(records[5 * index : 5 * index + 5])
        engine.requests(2, 0.5, 0.1)
        yield Scraped(unix, target(job, instance), engine.page(num_running=running, num_waiting=waiting))


def restarting() -> Iterator[Scraped]:
    """Restarts two thirds into the series, and has counted more than before by the end."""
    yield from pages("restart", last=40, running=5)
    engine = Engine(start_unix=times()[41])
    records = make_steps(3000, with_prefill(5, 1500))
    for index, unix in enumerate(times()[42:]):
        engine.run(records[100 * index : 100 * index + 100])
        yield Scraped(unix, target("restart"), engine.page(num_running=1))
    yield from pages("restart", "10.0.0.2:8000")


def going() -> Iterator[Scraped]:
    """One of two replicas stops answering; its target stays on the list."""
    yield from pages("going", last=25)
    yield from pages("going", "10.0.0.2:8000")
    for unix in times()[25:]:
        yield Scraped(unix, target("going"), "")


def coming() -> Iterator[Scraped]:
    """One of three replicas is new, another one comes into sight that has run for long."""
    yield from pages("coming")
    yield from pages("coming", "10.0.0.2:8000", first=45, start=times()[44])
    yield from pages("coming", "10.0.0.3:8000", first=45)


def two_engines(unix: float, tokens: int) -> Scraped:
    lines = [
        f'vllm:num_requests_running{{engine="{engine}",model_name="m"}} {running}\n'
        f'vllm:num_requests_waiting{{engine="{engine}",model_name="m"}} {waiting}\n'
        f'vllm:generation_tokens_total{{engine="{engine}",model_name="m"}} {tokens * running}\n'
        for engine, running, waiting in ((0, 30, 12), (1, 2, 0))
    ]
    return Scraped(unix, target("engines"), "".join(lines))


def recorded() -> list[Entry]:
    """Pages of a real vLLM with the probe in it."""
    recording = read_recording(RECORDING.read_bytes())
    return [entry for entry in recording.entries if entry.kind == "exposition"]


def everything() -> Iterator[Scraped]:
    yield from pages("llm", waiting=6, running=30)
    yield from pages("llm", "10.0.0.2:8000")
    yield from pages("llm", "10.0.0.3:8000")
    yield from pages("quiet", prefill=False)
    yield from restarting()
    yield from going()
    yield from coming()
    yield from (two_engines(unix, index) for index, unix in enumerate(times()))
    yield from (Scraped(unix, target("node"), NODE_PAGE) for unix in times())
    yield from (Scraped(entry.unix, target("vllm"), entry.body) for entry in recorded())


@pytest.fixture(
    scope="module",
    params=[
        pytest.param("prometheus", marks=pytest.mark.skipif(bool(MISSING), reason=REASON)),
        pytest.param(VICTORIA, marks=pytest.mark.skipif(shutil.which(VICTORIA) is None, reason=VICTORIA_REASON)),
    ],
)
def prometheus(request, tmp_path_factory):
    directory = tmp_path_factory.mktemp(request.param)
    lines = openmetrics(everything())
    server = (
        serve_victoria(directory, lines) if request.param == VICTORIA else serve(directory, backfill(directory, lines))
    )
    with server as url:
        yield url


def look(prometheus: str, job: str, end: float = END, window: float = WINDOW) -> Reading:
    return read_prometheus(PrometheusApi(Endpoint(prometheus)), parse_selector(f'job="{job}"'), end, window)


def only(reading: Reading) -> Signals:
    (evidence,) = reading.evidence
    return evidence.found


def view(scrape: Scraped) -> PageView:
    return PageView(ExpositionParser().parse(scrape.page))


def same_growth(found: Signals, expected: Signals, ratio: float = 1.0) -> None:
    """Every counter and histogram that a server's own pages give, to the last digit."""
    assert {name: counter.delta for name, counter in found.counters.items() if name not in UNSEEN} == pytest.approx(
        {name: counter.delta * ratio for name, counter in expected.counters.items() if name not in UNSEEN}, rel=1e-9
    )
    assert found.histograms.keys() == expected.histograms.keys()
    for name, histogram in expected.histograms.items():
        assert found.histograms[name].bounds == histogram.bounds, name
        assert found.histograms[name].counts == pytest.approx([count * ratio for count in histogram.counts]), name
        assert found.histograms[name].sum == pytest.approx(histogram.sum * ratio), name


def test_one_replica_reads_as_its_own_pages_do(prometheus):
    """Nothing is extrapolated: what grew is what the samples say."""
    scrapes = [scrape for scrape in pages("quiet", prefill=False) if scrape.unix >= END - WINDOW]
    found = only(look(prometheus, "quiet"))
    expected = read_pages([view(scrapes[0]), view(scrapes[-1])], STALLSCOPE, WINDOW)
    same_growth(found, expected)
    assert found.length_seconds == WINDOW
    assert expected.gauges.keys() - found.gauges.keys() == {"waiting_blocks", "waiting_sequences"}, "without a series"
    assert {name: gauge.last for name, gauge in found.gauges.items()} == {
        name: gauge.last for name, gauge in expected.gauges.items() if name in found.gauges
    }
    assert found.info == expected.info
    assert (found.num_replicas, found.replicas) == (1, {})


def test_a_window_between_scrapes_has_the_length_between_its_samples(prometheus):
    found = only(look(prometheus, "quiet", end=END - 7, window=100))
    assert found.length_seconds == pytest.approx(105)


@pytest.mark.parametrize(("dialect", "place"), [(STALLSCOPE, 0), (VLLM, 1)])
def test_a_real_vllm_with_the_probe_speaks_two_dialects(prometheus, dialect, place):
    entries = recorded()
    reading = look(prometheus, "vllm", end=entries[-1].unix + 0.5, window=entries[-1].unix - entries[0].unix)
    first, last = (PageView(ExpositionParser().parse(entry.body)) for entry in (entries[0], entries[-1]))
    assert [evidence.found.dialect for evidence in reading.evidence] == ["stallscope", "vllm"]
    found, expected = reading.evidence[place].found, read_pages([first, last], dialect, 45.5)
    same_growth(found, expected)
    assert found.info == expected.info


def test_a_fleet_is_the_sum_of_its_replicas(prometheus):
    scrapes = [scrape for scrape in pages("llm") if scrape.unix >= END - WINDOW]
    found = only(look(prometheus, "llm"))
    same_growth(found, read_pages([view(scrapes[0]), view(scrapes[-1])], STALLSCOPE, WINDOW), ratio=3)
    assert (found.last("running"), found.last("waiting"), found.last("max_sequences")) == (38, 6, 192)
    assert found.last("max_batched_tokens") == 2048, "a setting that all replicas share is not added up"
    assert found.num_replicas == 3
    busy = found.replicas["10.0.0.1:8000"]
    assert (busy.last("running"), busy.last("waiting")) == (30, 6)
    assert busy.delta("tokens_decode") == pytest.approx((found.delta("tokens_decode") or 0) / 3)
    assert busy.histograms["inter_token_latency"].mean == pytest.approx(found.histograms["inter_token_latency"].mean)


def test_a_replica_that_restarted_counts_from_its_restart(prometheus):
    """Its counters are above the old values by the window's end: no fall shows there."""
    reading = look(prometheus, "restart")
    found = only(reading)
    last = list(restarting())[NUM_SCRAPES - 3]
    whole = read_pages([view(last)] * 2, STALLSCOPE, WINDOW)
    own = found.replicas["10.0.0.1:8000"].delta("tokens_decode")
    assert own == view(last).page.value("stallscope_tokens_total", phase="decode")
    assert whole.last("running") == 1
    assert (found.restarted, found.running_before_restart) == (True, 5)
    assert any("1 of 2 replicas restarted within the window: 10.0.0.1:8000" in text for text in reading.warnings)


def test_a_replica_that_went_away_is_named(prometheus):
    reading = look(prometheus, "going")
    assert only(reading).num_replicas == 2
    assert set(only(reading).replicas) == {"10.0.0.2:8000"}
    assert any("1 of 2 replicas were there at the window's start" in text for text in reading.warnings)


def test_of_replicas_that_came_only_new_ones_count(prometheus):
    reading = look(prometheus, "coming")
    found = only(reading).replicas
    assert (found["10.0.0.2:8000"].delta("tokens_decode") or 0) > 0
    assert found["10.0.0.3:8000"].delta("tokens_decode") is None
    assert any("started within the window: 10.0.0.2:8000" in text for text in reading.warnings)
    assert any("had counted before, as far as is known: 10.0.0.3:8000" in text for text in reading.warnings)
    assert only(reading).length_seconds == WINDOW


def test_engines_of_one_server_are_replicas(prometheus):
    found = only(look(prometheus, "engines"))
    assert set(found.replicas) == {"10.0.0.1:8000 engine=0", "10.0.0.1:8000 engine=1"}
    assert found.replicas["10.0.0.1:8000 engine=0"].last("waiting") == 12
    assert found.last("running") == 32


@pytest.mark.parametrize(
    ("match", "end", "window", "error", "words"),
    [
        ('job="node"', END, WINDOW, TargetError, "node_exporter, which says nothing of an engine"),
        ('job="nobody"', END, WINDOW, TargetError, "no series matches"),
        ('job="llm', END, WINDOW, SourceError, r"rejects it \(HTTP 4(00|22)\): .*pars"),
        ('job=~"l("', END, WINDOW, SourceError, r"rejects it \(HTTP 4(00|22)\)"),
        ('job="quiet"', END - 2, 5, NotEnough, "longer than the time between scrapes"),
    ],
)
def test_what_cannot_be_judged_is_one_line(prometheus, match, end, window, error, words):
    with pytest.raises(error, match=words) as found:
        read_prometheus(PrometheusApi(Endpoint(prometheus)), parse_selector(match), end, window)
    assert "\n" not in str(found.value)


def test_the_number_of_queries_does_not_grow_with_the_fleet(prometheus):
    api = PrometheusApi(Endpoint(prometheus))
    read_prometheus(api, parse_selector('job="llm"'), END, WINDOW)
    assert api.num_queries < 120


def test_the_command_names_the_imbalance_and_the_interference(prometheus, stallscope):
    code, out, err = stallscope("diagnose", "--prometheus", prometheus, "--match", 'job="llm"', "--at", AT, "--json")
    document = json.loads(out)
    assert (code, err) == (1, "")
    assert document["target"] == f'{{job="llm"}} at {prometheus}'
    verdicts = {name: found["verdict"] for name, found in document["verdicts"].items()}
    assert verdicts["prefill_interference"] == verdicts["replica_imbalance"] == "supported"
    assert document["windows"]["incident"]["num_replicas"] == 3
    assert set(document["windows"]["incident"]["replicas"]) == {f"10.0.0.{number}:8000" for number in (1, 2, 3)}


def test_the_commands_it_prints_name_this_source(prometheus, stallscope):
    _, out, _ = stallscope("diagnose", "--prometheus", prometheus, "--match", '{job="llm"}', "--at", AT)
    printed = [
        line.strip() for line in out.splitlines() if line.strip().startswith("$ stallscope diagnose --prometheus")
    ]
    assert f"$ stallscope diagnose --prometheus {prometheus} --match '{{job=\"llm\"}}' --window 30m" in printed
    assert "10.0.0.1:8000" in out.partition("Replicas (3)")[2]


def test_a_good_time_is_a_baseline(prometheus, stallscope):
    before = datetime.fromtimestamp(END - 300, UTC).isoformat()
    code, out, _ = stallscope(
        *("diagnose", "--prometheus", prometheus, "--match", 'job="quiet"', "--window", "4m", "--at", AT),
        *("--baseline-at", before, "--json"),
    )
    document = json.loads(out)
    assert document["windows"]["baseline"]["length_seconds"] == 240
    assert code in (0, 3)
    assert document["verdicts"]["replica_imbalance"]["verdict"] == "not_applicable"


def test_a_replica_that_is_down_and_was_the_only_one_is_a_hard_failure(prometheus, stallscope):
    at = datetime.fromtimestamp(times()[55], UTC).isoformat()
    match = 'job="going",instance="10.0.0.1:8000"'
    code, out, _ = stallscope("diagnose", "--prometheus", prometheus, "--match", match, "--at", at, "--json")
    assert code == 4
    assert json.loads(out)["primary"] == "hard_failure"
