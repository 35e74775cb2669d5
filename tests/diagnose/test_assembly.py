"""Several sources of one target: who gives a signal, what is said when they disagree, and what does not join."""

from datetime import datetime

import pytest

from diagnose.assembly import assemble, merge
from diagnose.continuity import limit_to_trusted
from diagnose.errors import NotEnough, SourceError, TargetError
from diagnose.observation import Observation, Scrape, observe
from diagnose.policy import DEFAULT_POLICY
from diagnose.sources.engine_log import read_log
from diagnose.sources.log_signals import LogEvidence
from diagnose.sources.stated import StatedSettings, parse_settings
from probes.recording import Entry
from tests.builders import Engine, make_steps

START = datetime(2026, 11, 30, 4).timestamp()
VLLM = 'vllm:num_requests_running 4\nvllm:generation_tokens_total {}\nvllm:cache_config_info{{block_size="16"}} 1\n'
LOG = (
    "INFO 11-30 04:00:0{} [loggers.py:1] Engine 000: Avg prompt throughput: 0.0 tokens/s, Avg generation throughput: "
    "5.0 tokens/s, Running: {} reqs, Waiting: 0 reqs, GPU KV cache usage: 10.0%"
)


def pages(*texts: str) -> Observation:
    return observe("t", [Entry(START + 10 * index, "exposition", text) for index, text in enumerate(texts)])


def log(*lines: str) -> LogEvidence:
    return LogEvidence(read_log("engine.log", lines, START + 3600))


def test_an_engine_with_our_probe_speaks_two_dialects_and_the_probe_is_believed_first():
    engine = Engine()
    first = engine.page(num_running=8)
    engine.run(make_steps(20))
    observation = pages(first + VLLM.format(0), engine.page(num_running=8) + VLLM.format(1000))
    signals, contradictions = assemble(observation, DEFAULT_POLICY)
    assert signals.dialect == "stallscope + vllm"
    assert signals.counters["tokens_decode"].source.startswith("stallscope_tokens_total")
    assert signals.info["block_size"] == "16"
    assert contradictions == [
        'sources disagree on running: 8 by stallscope_requests{state="running"}, 4 by vllm:num_requests_running; '
        "the first is used"
    ]


def test_pages_of_two_exporters_may_alternate():
    observation = pages("acme_x 1\n", VLLM.format(0), "acme_x 2\n", VLLM.format(10), VLLM.format(30))
    signals = assemble(observation, DEFAULT_POLICY).signals
    assert signals.delta("tokens_decode") == 30
    assert signals.length_seconds == 30, "of the pages that speak, not of all"
    assert signals.sources == ("3 metrics pages of vllm",)


def test_a_log_fills_in_and_never_replaces():
    observation = pages(VLLM.format(0), VLLM.format(10))
    observation.add_source(
        log(LOG.format(1, 4), LOG.format(9, 4), "INFO 11-30 04:00:00 x: max_num_batched_tokens=512.")
    )
    signals = assemble(observation, DEFAULT_POLICY).signals
    assert signals.delta("tokens_decode") == 10
    assert signals.last("max_batched_tokens") == 512
    assert signals.last("pool_usage") == 0.1
    assert signals.usage is not None


def test_a_log_of_another_server_shows():
    observation = pages(VLLM.format(0), VLLM.format(10))
    observation.add_source(log(LOG.format(1, 40), LOG.format(9, 44)))
    assert "sources disagree on running: 4 by vllm:num_requests_running, 42 by vLLM's periodic line" in " ".join(
        assemble(observation, DEFAULT_POLICY).contradictions
    )


def test_a_log_of_another_time_gives_its_settings_alone():
    """Levels and failures of last week are none of this window's."""
    observation = pages(VLLM.format(0), VLLM.format(10))
    old = [line.replace("11-30 04", "11-20 04") for line in (LOG.format(1, 40), LOG.format(9, 44))]
    fact = "INFO 11-20 04:00:00 x: Chunked prefill is enabled with max_num_batched_tokens=512."
    death = "ERROR 11-20 04:00:30 [core.py:1] EngineCore encountered a fatal error."
    observation.add_source(log(*old, fact, death))
    signals, contradictions = assemble(observation, DEFAULT_POLICY)
    assert signals.last("max_batched_tokens") == 512
    assert signals.last("pool_usage") is None
    assert signals.failures == {}
    assert observation.events == []
    assert "its lines are of another time (2026-11-20 04:00:01 to 2026-11-20 04:00:30" in contradictions[0]


def test_a_failure_shortly_before_the_window_is_part_of_it():
    observation = pages(VLLM.format(0), VLLM.format(10))
    observation.add_source(log("ERROR 11-30 03:58:00 [core.py:1] EngineCore encountered a fatal error."))
    assert [event.kind for event in observation.events] == ["engine_dead"]
    assert assemble(observation, DEFAULT_POLICY).signals.failures == {"engine_dead": 1}


def test_a_window_of_hours_does_not_join_one_of_seconds():
    """Rates and ratios of the two would be of neither."""
    observation = observe("t", [Entry(0, "exposition", VLLM.format(n)) for n in (0, 10)])
    observation.scrapes = [Scrape(None, scrape.page) for scrape in observation.scrapes]
    lines = [LOG.replace("04:00:0{}", f"{hour:02}:00:00").replace("{}", "4") for hour in range(3)]
    part = log(*lines).signals(None)
    first = assemble(observation, DEFAULT_POLICY).signals
    first.length_seconds = 10.0
    signals, contradictions = merge([first, part], DEFAULT_POLICY)
    assert "tokens_prefill" not in signals.counters
    assert signals.last("pool_usage") == 0.1
    assert "vllm log covers 7210 s and the metrics 10 s: its counts are left out" in contradictions[0]


def test_what_the_user_states_is_used_and_named():
    observation = pages(VLLM.format(0), VLLM.format(10))
    stated = parse_settings(["max_sequences=16", "max_batched_tokens=512"])
    assert stated is not None
    observation.add_source(stated)
    signals = assemble(observation, DEFAULT_POLICY).signals
    assert signals.gauges["max_sequences"].source == "stated with --setting"
    assert "stated by you: max_sequences 16, max_batched_tokens 512" in signals.sources


@pytest.mark.parametrize("text", ["max_sequences", "max_sequences=", "max_sequences=-1", "max_sequences=0", "speed=3"])
def test_a_setting_that_cannot_be_stated(text):
    with pytest.raises(SourceError, match="write NAME=NUMBER with one of max_batched_tokens, max_sequences"):
        parse_settings([text])


def test_one_scrape_beside_settings_is_a_moment_and_settings_alone_are_nothing():
    observation = pages(VLLM.format(0))
    observation.add_source(StatedSettings({"max_sequences": 16}))
    signals, warnings = assemble(observation, DEFAULT_POLICY)
    assert signals.last("max_sequences") == 16
    assert any("one scrape is a moment" in warning for warning in warnings)
    alone = pages()
    alone.add_source(StatedSettings({"max_sequences": 16}))
    with pytest.raises(NotEnough, match="no window"):
        assemble(alone, DEFAULT_POLICY)


def test_pages_of_no_engine():
    with pytest.raises(TargetError, match="a metrics page of node_exporter, which says nothing of an engine"):
        assemble(pages("node_load1 1\n", "node_load1 2\n"), DEFAULT_POLICY)


def test_an_unknown_engine_is_read_by_its_names_and_labelled():
    page = "acme_num_requests_running 2\nacme_num_requests_waiting 1\nacme_generation_tokens_total {}\n"
    signals = assemble(pages(page.format(0), page.format(9)), DEFAULT_POLICY).signals
    assert signals.dialect == "unknown engine, best effort"
    assert (signals.last("running"), signals.last("waiting"), signals.delta("tokens_decode")) == (2, 1, 9)
    assert all("guessed" in gauge.coverage for gauge in signals.gauges.values())


def test_what_an_unknown_engine_does_not_count_proves_nothing():
    page = "acme_num_requests_running 2\nacme_num_requests_waiting 1\nacme_generation_tokens_total 5\n"
    assert assemble(pages(page, page), DEFAULT_POLICY).signals.worked is None


def test_a_log_that_was_recorded_beside_the_target():
    entries = [Entry(START + 10 * n, "exposition", VLLM.format(10 * n)) for n in (0, 1)]
    lines = (
        "INFO 11-30 04:00:00 x: Chunked prefill is enabled with max_num_batched_tokens=512.\n" + LOG.format(1, 4) + "\n"
    )
    observation = observe("t", [*entries, Entry(START + 5, "log", lines)])
    signals = assemble(observation, DEFAULT_POLICY).signals
    assert signals.last("max_batched_tokens") == 512
    assert any("recorded log: a log of vllm" in source for source in signals.sources)
    assert observation.warnings == []


def test_pages_beside_the_engines_do_not_make_its_window():
    """An exporter's pages come at other moments: they are no gaps, and no clock that was set back."""
    own = [Entry(START + 10 * n, "exposition", VLLM.format(10 * n)) for n in range(5)]
    beside = [Entry(START + 3 + 30 * n, "exposition", "node_load1 1\n") for n in range(2)]
    observation = observe("t", [*own, *beside])
    signals = assemble(observation, DEFAULT_POLICY).signals
    assert observation.length_seconds == 40
    assert limit_to_trusted(observation, signals, DEFAULT_POLICY) == []


def test_a_dcgm_exporter_beside_the_engine():
    own = [Entry(START + 10 * n, "exposition", VLLM.format(10 * n)) for n in range(5)]
    gpu = 'DCGM_FI_PROF_DRAM_ACTIVE{gpu="0",UUID="GPU-0"} 0.85\nDCGM_FI_DEV_SM_CLOCK{gpu="0",UUID="GPU-0"} 1980\n'
    beside = [Entry(START + 1 + 30 * n, "exposition", gpu) for n in range(2)]
    signals, notes = assemble(observe("t", [*own, *beside]), DEFAULT_POLICY)
    assert signals.dialect == "vllm + dcgm exporter"
    assert (signals.last("gpu_dram_active"), signals.last("gpu_sm_clock")) == (0.85, 1.98e9)
    assert signals.length_seconds == 40
    assert notes == []
