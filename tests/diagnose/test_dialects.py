"""The tables of all engines: canonical names, what each usage counts, replicas, and answers in JSON."""

import json

import pytest

from diagnose.dialects.base import TOPICS, Dialect, Usage
from diagnose.dialects.logs import ENGINE_LOGS, LOG_TABLES
from diagnose.dialects.registry import DIALECTS
from diagnose.dialects.view import PageView
from diagnose.exposition import ExpositionParser
from diagnose.hypotheses.pool import occupancy
from diagnose.signals import COUNTERS, GAUGES, HISTOGRAMS
from diagnose.sources.state import shape_of
from diagnose.verdict import Verdict
from diagnose.windows import read_pages
from tests.diagnose.pages import signals, verdict

each_dialect = pytest.mark.parametrize("dialect", DIALECTS, ids=lambda dialect: dialect.name)


@each_dialect
def test_tables_use_canonical_signals_and_names(dialect: Dialect):
    for table, known in ((dialect.counters, COUNTERS), (dialect.gauges, GAUGES), (dialect.histograms, HISTOGRAMS)):
        assert set(table) <= set(known)
        for aliases in table.values():
            assert aliases
            for name in aliases:
                assert ":" not in name.metric
                assert not name.metric.startswith("ray_")
                assert dialect.name == "stallscope" or not name.metric.endswith("_total")
    assert set(dialect.cannot) <= set(TOPICS)
    assert all(dialect.cannot.values())


@each_dialect
def test_every_name_of_a_table_is_found_on_a_page(dialect: Dialect):
    has_all = "".join(
        f'{metric}{{{label}="{values[0]}"}} 1\n'
        for metric in dialect.info
        for label, values in dialect.features_with.values()
    )
    for table in (dialect.counters, dialect.gauges):
        for signal, aliases in table.items():
            for name in aliases:
                labels = {**dict(name.labels), **({name.value_label: "7"} if name.value_label else {})}
                inner = ",".join(f'{key}="{value.split("|")[0]}"' for key, value in labels.items())
                line = f"{name.metric}{{{inner}}} "
                views = [PageView(ExpositionParser().parse(f"{has_all}{line}{value}\n")) for value in (1, 8)]
                found = read_pages(views, dialect, 10.0)
                value = found.counters.get(signal) if table is dialect.counters else found.gauges.get(signal)
                assert value is not None, (signal, name.metric)


def test_every_table_of_a_log_has_words_and_canonical_signals():
    for table in LOG_TABLES:
        for line in table.periodic:
            assert {figure.signal for figure in line.figures} <= {*COUNTERS, *GAUGES, *HISTOGRAMS}
        assert set(table.cannot) <= set(TOPICS)
        assert all(event.marks and event.kind for event in table.events)


def test_usage_means_four_things_and_the_evidence_says_which():
    said = {dialect.name: dialect.usage for dialect in DIALECTS if dialect.usage is not None}
    assert set(said.values()) == set(Usage)
    for dialect in DIALECTS:
        for name in dialect.gauges.get("pool_usage", ()):
            assert name.coverage, dialect.name


@pytest.mark.parametrize(
    ("page", "active"),
    [
        ("vllm:kv_cache_usage_perc 0.97\nvllm:generation_tokens_total {}\n", True),
        ("sglang:token_usage 0.97\nsglang:generation_tokens_total {}\n", True),
        ("trtllm_kv_cache_utilization 0.97\ntrtllm_generation_tokens_total {}\n", True),
        ("lmdeploy:gpu_cache_usage_perc 0.97\nlmdeploy:generation_tokens_total {}\n", False),
        ("tgi_batch_current_max_tokens 97\ntgi_batch_max_total_tokens 100\ntgi_request_success {}\n", False),
        ("llamacpp:kv_cache_usage_ratio 0.97\nllamacpp:n_decode_total {}\n", False),
    ],
)
def test_a_full_pool_is_occupied_only_where_usage_counts_live_blocks(page, active):
    found = signals(page.format(0), page.format(5))
    pool = occupancy(found)
    assert (pool is not None) is active
    if pool is not None:
        assert pool.active_peak / pool.total == pytest.approx(0.97)


def two_engines(tokens: int) -> str:
    lines = [
        f'vllm:num_requests_running{{engine="{engine}",model_name="m"}} {running}\n'
        f'vllm:num_requests_waiting{{engine="{engine}",model_name="m"}} {waiting}\n'
        f'vllm:generation_tokens_total{{engine="{engine}",model_name="m"}} {tokens * running}\n'
        for engine, running, waiting in ((0, 30, 12), (1, 2, 0))
    ]
    return "".join(lines)


def test_engines_of_one_vllm_are_replicas():
    """The sum of both looks harmless; one of them has all the queue."""
    found = signals(two_engines(0), two_engines(9))
    assert (found.num_replicas, set(found.replicas)) == (2, {"engine=0", "engine=1"})
    assert (found.delta("tokens_decode"), found.replicas["engine=1"].delta("tokens_decode")) == (9 * 32, 9 * 2)
    assert verdict("replica_imbalance", two_engines(0), two_engines(9)) is Verdict.SUPPORTED


def test_a_single_engine_is_one_replica():
    page = 'vllm:num_requests_running{engine="0"} 3\nvllm:generation_tokens_total{engine="0"} 1\n'
    found = signals(page, page)
    assert (found.num_replicas, found.replicas) == (1, {})


@pytest.mark.parametrize(
    "answer",
    [
        {},
        [],
        {"status": "ok"},
        {"version": "1", "x": 2},
        [1],
        [{}],
        None,
        "text",
        {"loads": 3, "x": 1}.keys().__len__(),
    ],
)
def test_other_json_is_of_no_shape(answer):
    assert shape_of(json.loads(json.dumps(answer))) is None


def test_every_engine_that_is_named_has_a_way_to_be_read():
    names = {table.engine for table in ENGINE_LOGS}
    assert names <= {dialect.name for dialect in DIALECTS}
