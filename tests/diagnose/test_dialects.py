"""The tables of all engines, and for each engine the traps that its figures set."""

import json

import pytest

from diagnose.assembly import assemble
from diagnose.commands.diagnose import judge
from diagnose.dialects.base import TOPICS, Dialect, Usage
from diagnose.dialects.logs import ENGINE_LOGS, LOG_TABLES
from diagnose.dialects.registry import DIALECTS
from diagnose.dialects.view import PageView
from diagnose.exposition import ExpositionParser
from diagnose.hypotheses.pool import occupancy
from diagnose.observation import Observation, observe
from diagnose.policy import DEFAULT_POLICY
from diagnose.signals import COUNTERS, GAUGES, HISTOGRAMS, Signals
from diagnose.sources.engine_log import read_log
from diagnose.sources.log_signals import LogEvidence
from diagnose.sources.state import StateEvidence, shape_of
from diagnose.verdict import Verdict
from diagnose.windows import read_pages
from probes.recording import Entry

each_dialect = pytest.mark.parametrize("dialect", DIALECTS, ids=lambda dialect: dialect.name)


def pages(*texts: str) -> Observation:
    return observe("t", [Entry(1000.0 + 10 * index, "exposition", text) for index, text in enumerate(texts)])


def signals(*texts: str) -> Signals:
    return assemble(pages(*texts), DEFAULT_POLICY).signals


def verdict(name: str, *texts: str) -> Verdict:
    diagnosis = judge(pages(*texts), None, (), is_live=False, target="t")
    return next(finding.verdict for finding in diagnosis.findings if finding.name == name)


def log(*lines: str) -> Signals:
    return LogEvidence(read_log("log", lines)).signals(None)


def state(answer: object) -> Signals:
    shape = shape_of(answer)
    assert shape is not None
    return StateEvidence(shape, "x.json", [answer]).signals(None)


# ---- the tables


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


# ---- SGLang


def sglang(tokens: int, *lines: str) -> str:
    return f'sglang:realtime_tokens_total{{mode="decode"}} {tokens}\n' + "".join(line + "\n" for line in lines)


def test_sglang_ranks_report_one_tree():
    before, after = (
        [f'sglang:evicted_tokens_total{{tp_rank="{rank}"}} {tokens}' for rank in range(4)] for tokens in (100, 150)
    )
    assert signals(sglang(0, *before), sglang(9, *after)).delta("evictions") == 50


def test_sglang_data_parallel_ranks_add_up():
    lines = [f'sglang:num_running_reqs{{dp_rank="{rank}",tp_rank="{rank}"}} {rank + 1}' for rank in range(2)]
    found = signals(sglang(0, *lines), sglang(9, *lines))
    assert found.last("running") == 3
    assert {name: one.last("running") for name, one in found.replicas.items()} == {"dp_rank=0": 1, "dp_rank=1": 2}


def test_sglang_splits_the_pool():
    lines = ["sglang:kv_used_tokens 600", "sglang:kv_evictable_tokens 300", "sglang:kv_available_tokens 100"]
    pool = occupancy(signals(sglang(0, *lines), sglang(9, *lines)))
    assert pool is not None
    assert (pool.active, pool.reclaimable, pool.free, pool.total, pool.unit) == (600, 300, 100, 1000, "tokens")


def test_sglang_tokens_booked_at_the_end_prove_no_hang():
    page = "sglang:num_running_reqs 3\nsglang:generation_tokens_total 50\nsglang:prompt_tokens_total 10\n"
    assert signals(page, page).worked is None
    assert verdict("engine_hung", page, page) is not Verdict.SUPPORTED
    live = sglang(5, "sglang:num_running_reqs 3")
    assert signals(live, live).worked is False


def test_sglang_hit_rate_is_made_of_counters():
    """The gauge is of the last prefill batch alone, and broken in old versions."""

    def page(cached: int, computed: int) -> str:
        return sglang(
            0,
            f'sglang:realtime_tokens_total{{mode="prefill_cache"}} {cached}',
            f'sglang:realtime_tokens_total{{mode="prefill_compute"}} {computed}',
            "sglang:cache_hit_rate 0",
        )

    found = signals(page(0, 0), page(300, 100))
    assert (found.delta("prefix_hit_tokens"), found.delta("prefix_query_tokens")) == (300, 400)


SGLANG_LINES = {
    "0.4": "[2026-11-03 05:54:{:02} TP0] Decode batch. #running-req: 8, #token: 67724, token usage: 0.13, gen throughput "
    "(token/s): 180.00, #queue-req: 2",
    "0.5": "[2026-11-03 05:54:{:02} DP0 TP0] Decode batch, #running-req: 8, #token: 20800, token usage: 0.13, cuda graph: "
    "True, gen throughput (token/s): 180.00, #queue-req: 2",
    "hybrid": "[2026-11-03 05:54:{:02} TP0] Decode batch, #running-req: 8, #full token: 2642688, full token usage: 0.13, "
    "#swa token: 14592, swa token usage: 0.96, cuda graph: True, gen throughput (token/s): 180.00, #queue-req: 2",
    "speculative": "[2026-11-03 05:54:{:02} TP0] Decode batch. #running-req: 8, #token: 108, token usage: 0.13, "
    "accept len: 2.17, accept rate: 0.54, cuda graph: True, gen throughput (token/s): 180.00, #queue-req: 2, ",
}


@pytest.mark.parametrize("line", SGLANG_LINES.values(), ids=SGLANG_LINES.keys())
def test_sglang_decode_lines_in_their_forms(line):
    found = log(*(line.format(2 * n) for n in range(4)))
    assert (found.last("running"), found.last("waiting"), found.last("pool_usage")) == (8, 2, 0.13)
    assert found.delta("tokens_decode") == 3 * 2 * 180
    assert found.usage is Usage.ACTIVE


def test_sglang_prefill_lines_count_prompts():
    line = (
        "[2026-11-03 21:40:0{}] Prefill batch. #new-seq: 9, #new-token: 8192, #cached-token: 27, token usage: 0.03, "
        "#running-req: 8, #queue-req: 114, "
    )
    found = log(line.format(1), line.format(2))
    assert (found.delta("tokens_prefill"), found.delta("tokens_cached"), found.peak("waiting")) == (16384, 54, 114)
    assert not found.counters["tokens_prefill"].late


def test_sglang_retractions_and_leaks():
    found = log(
        "[2026-11-03 05:54:29 TP0] KV cache pool is full. Retract requests. #retracted_reqs: 3, #new_token_ratio: 0.5 -> 0.9",
        "ValueError: token_to_kv_pool_allocator memory leak detected! self.max_total_num_tokens=270331, available_size=644",
    )
    assert found.delta("preemptions") == 3
    assert found.failures == {"leak": 1}


def test_sglang_states_its_settings():
    info = {
        "chunked_prefill_size": 8192,
        "max_running_requests": 256,
        "page_size": 1,
        "version": "0.5.23",
        "model_path": "m",
    }
    found = state(info)
    assert (found.last("max_batched_tokens"), found.last("max_sequences")) == (8192, 256)
    assert found.info["version"] == "0.5.23"
    loads = {
        "loads": [{"num_running_reqs": 2, "num_waiting_reqs": 1, "token_usage": 0.5, "max_total_num_tokens": 100}] * 2
    }
    found = state(loads)
    assert (found.last("running"), found.last("waiting"), found.last("pool_usage")) == (4, 2, 0.5)


# ---- llama.cpp


def test_llamacpp_throughput_gauges_are_not_used():
    """Every reader of /metrics starts them anew."""
    page = "llamacpp:n_decode_total {}\nllamacpp:predicted_tokens_seconds 55\nllamacpp:prompt_tokens_seconds 99\n"
    found = signals(page.format(0), page.format(5))
    sources = [gauge.source for gauge in found.gauges.values()] + [
        counter.source for counter in found.counters.values()
    ]
    assert not any("_tokens_seconds" in source for source in sources)


def test_llamacpp_steps_tell_work_before_tokens_are_booked():
    page = "llamacpp:n_decode_total {}\nllamacpp:tokens_predicted_total 5\nllamacpp:requests_processing 2\n"
    assert signals(page.format(0), page.format(70)).worked is True
    assert verdict("engine_hung", page.format(0), page.format(70)) is Verdict.REFUTED


def test_llamacpp_never_preempts():
    page = "llamacpp:n_decode_total {}\n"
    assert verdict("preemption_storm", page.format(0), page.format(70)) is Verdict.REFUTED


def test_llamacpp_slots_and_props():
    slots = [
        {"n_ctx": 4096, "is_processing": True, "n_prompt_tokens": 1000, "next_token": [{"n_decoded": 24}]},
        {"n_ctx": 4096, "is_processing": False, "n_prompt_tokens": 1024, "next_token": [{"n_decoded": 0}]},
    ]
    found = state(slots)
    assert (found.last("running"), found.last("max_sequences"), found.last("pool_usage")) == (1, 2, 0.25)
    assert found.usage is Usage.SLOTS
    assert occupancy(found) is None, "an idle slot's cache is not occupied"
    props = {
        "total_slots": 2,
        "default_generation_settings": {"n_ctx": 4096},
        "model_path": "m.gguf",
        "build_info": "b1",
    }
    assert state(props).last("max_sequences") == 2


LLAMACPP_LINES = {
    "older": "slot print_timing: id  0 | task 124 | prompt eval time =    5093.47 ms /  1360 tokens (    3.75 ms per token,   "
    "267.01 tokens per second)",
    "newer": "[53409] 3.44.875.501 I slot print_timing: id  0 | task 124 | prompt eval time =    5093.47 ms /  1360 tokens ( x",
}


@pytest.mark.parametrize("line", LLAMACPP_LINES.values(), ids=LLAMACPP_LINES.keys())
def test_llamacpp_timings_in_both_forms(line):
    found = log(line, line.replace("prompt eval", "eval").replace("1360 tokens", "60 tokens"))
    assert (found.delta("tokens_prefill"), found.delta("tokens_decode")) == (1360, 60)


def test_llamacpp_without_a_slot_for_a_batch():
    line = "srv  update_slots: failed to find free space in the KV cache, retrying with smaller batch size, i = 0, n_batch = 512"
    assert [event.kind for event in read_log("log", [line]).events] == ["no_kv_space"]


# ---- TensorRT-LLM


def iteration(ms: float, context: int, tokens: int, generating: int) -> dict[str, object]:
    return {
        "iter": 1, "iterLatencyMS": ms, "numQueuedRequests": 3, "maxBatchSizeRuntime": 64, "maxNumTokensRuntime": 8192,
        "kvCacheStats": {"maxNumBlocks": 100, "freeNumBlocks": 60, "usedNumBlocks": 40, "tokensPerBlock": 32},
        "inflightBatchingStats": {
            "numScheduledRequests": context + generating, "numContextRequests": context, "numGenRequests": generating,
            "numPausedRequests": 0, "numCtxTokens": tokens,
        },
    }  # fmt: skip


def test_tensorrt_llm_iterations_are_steps_by_kind():
    found = state([*(iteration(7.0, 0, 0, 8) for _ in range(20)), *(iteration(70.0, 1, 2000, 8) for _ in range(6))])
    assert (found.histograms["step_decode"].count, found.histograms["step_mixed"].count) == (20, 6)
    assert found.delta("stall_prefill_seconds") == pytest.approx(6 * 0.063)
    assert (found.last("max_batched_tokens"), found.last("max_sequences"), found.last("waiting")) == (8192, 64, 3)
    pool = occupancy(found)
    assert pool is not None and not pool.is_split, "released blocks that can be used again are in the free ones"
    assert (pool.active, pool.total) == (40, 100)


def test_tensorrt_llm_reading_takes_records_away():
    answer = [iteration(7.0, 0, 0, 8)]
    shape = shape_of(answer)
    assert shape is not None
    assert "a second reader sees other steps" in StateEvidence(shape, "x", [answer]).warnings[0]


def test_tensorrt_llm_means_per_request_are_no_inter_token_latency():
    page = (
        'trtllm_num_requests_running 2\ntrtllm_time_per_output_token_seconds_bucket{{le="+Inf"}} {0}\n'
        "trtllm_time_per_output_token_seconds_sum {0}\ntrtllm_iteration_latency_seconds 0.1\ntrtllm_generation_tokens_total {0}\n"
    )
    found = signals(page.format(0), page.format(9))
    assert found.histograms == {}
    assert found.counters["tokens_decode"].late


def test_tensorrt_llm_hits_are_blocks():
    page = (
        "trtllm_kv_cache_reused_blocks_total {}\ntrtllm_kv_cache_missed_blocks {}\ntrtllm_generation_tokens_total 1\n"
    )
    found = signals(page.format(0, 0), page.format(30, 70))
    assert (found.delta("prefix_hit_tokens"), found.delta("prefix_query_tokens")) == (30, 100)
    assert "blocks" in found.counters["prefix_hit_tokens"].coverage


TRT_LINES = {
    "2026": "[TRT-LLM] [I] [_torch][RANK 0] iter = {}, global_rank = 0, rank = 0, num_scheduled_requests = 9, "
    "kv_cache_util = 0.1, currank_total_requests = 0/1, host_step_time = 7.4ms, prev_device_step_time = 7.3ms, "
    "timestamp = 2026-11-03 05:54:29, "
    "states = {{'num_ctx_requests': 1, 'num_ctx_tokens': 512, 'num_generation_tokens': 8, 'cached_kv_tokens': 0}}",
    "2025": "iter = {}, global_rank = 0, rank = 0, currank_total_requests = 1/2, host_step_time = 7.4ms, prev_device_step_time = "
    "7.3ms, timestamp = x, num_scheduled_requests: 9, states = {{'num_ctx_requests': 1, 'num_ctx_tokens': 512, "
    "'num_generation_tokens': 8}}",
    "older": "iter = {}, global_rank = 0, rank = 0, elapsed_time = 0.0074s, states = {{'num_ctx_requests': 1, "
    "'num_ctx_tokens': 512, 'num_generation_tokens': 8}}",
}


@pytest.mark.parametrize("line", TRT_LINES.values(), ids=TRT_LINES.keys())
def test_tensorrt_llm_iteration_lines_in_their_forms(line):
    found = log(line.format(1), line.format(2))
    assert found.histograms["step_mixed"].count == 2
    assert found.histograms["step_mixed"].mean == pytest.approx(0.0074)
    assert found.delta("tokens_prefill") == 1024


def test_triton_names_are_sub_labels():
    def page(iterations: int) -> str:
        return (
            'nv_trt_llm_request_metrics{model="m",request_type="active"} 5\nnv_trt_llm_request_metrics{request_type="max"} 64\n'
            'nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type="fraction"} 0.4\n'
            'nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type="max"} 100\n'
            f'nv_trt_llm_general_metrics{{general_type="iteration_counter"}} {iterations}\n'
            "nv_inference_pending_request_count 7\n"
        )

    observation = pages(page(0), page(50))
    found, warnings = assemble(observation, DEFAULT_POLICY)
    assert (found.last("running"), found.last("max_sequences"), found.last("pool_usage")) == (5, 64, 0.4)
    assert found.delta("steps") == 50
    assert "up to 7 requests waited before the engine" in warnings[0]


def test_a_vllm_behind_triton_is_blind_on_its_pool():
    page = 'vllm:generation_tokens_total{{model="m"}} {0}\nnv_inference_request_success{{model="m"}} {0}\n'
    found = signals(page.format(0), page.format(9))
    assert found.dialect == "vllm + triton"
    assert found.last("running") is None
    assert verdict("kv_exhaustion", page.format(0), page.format(9)) is Verdict.UNDETERMINED


# ---- TGI, LMDeploy, Dynamo, Ray


def test_tgi_reserves_and_does_not_occupy():
    page = "tgi_batch_current_max_tokens 99\ntgi_batch_max_total_tokens 100\ntgi_queue_size 5\ntgi_batch_inference_count {}\n"
    found = signals(page.format(0), page.format(9))
    assert found.last("pool_reserved") == 99
    assert "a reservation, not what is occupied" in found.gauges["pool_reserved"].coverage
    assert verdict("kv_exhaustion", page.format(0), page.format(9)) is Verdict.UNDETERMINED
    assert verdict("preemption_storm", page.format(0), page.format(9)) is Verdict.REFUTED


def test_tgi_steps_by_phase():
    def page(n: int) -> str:
        return "".join(
            f'tgi_batch_inference_duration_bucket{{method="{method}",le="{le}"}} {n}\n'
            for method in ("prefill", "decode")
            for le in ("0.1", "+Inf")
        ) + "".join(
            f'tgi_batch_inference_duration_sum{{method="{m}"}} {n * s}\n'
            for m, s in (("prefill", 0.08), ("decode", 0.02))
        )

    found = signals(page(0), page(20))
    assert found.histograms["step_decode"].mean == pytest.approx(0.02)
    assert found.histograms["step_mixed"].mean == pytest.approx(0.08)


def test_lmdeploy_usage_counts_the_cache():
    page = "lmdeploy:gpu_cache_usage_perc {1}\nlmdeploy:num_requests_waiting 4\nlmdeploy:generation_tokens_total {0}\n"
    assert verdict("kv_exhaustion", page.format(0, 0.99), page.format(9, 0.99)) is Verdict.UNDETERMINED


def test_lmdeploy_cumulative_gauges_are_counters():
    page = "lmdeploy:num_requests_succeeded {0}\nlmdeploy:generation_tokens_total {0}\n"
    assert signals(page.format(3), page.format(9)).delta("requests_finished") == 6


LMDEPLOY_LINES = {
    "older": "[2026-02-05 17:05:{:02} DP0] Avg thr (in/out): 4618.5 / 2756.3 tokens/s, API server (completed/routed/waiting): 1 "
    "/ 50 / 50, Engine (running/waiting): 45 / 5, KV cache: 21.6%, ",
    "newer": "[2026-02-05 17:05:{:02} DP0] Avg thr (in/out): 4618.5 / 2756.3 tokens/s, Server (succeeded/failed/routed/waiting): "
    "1 / 0 / 50 / 50, Engine (running/waiting): 45 / 5, KV cache: 21.6%, Prefix cache hit rate: 3.1%,",
}


@pytest.mark.parametrize("line", LMDEPLOY_LINES.values(), ids=LMDEPLOY_LINES.keys())
def test_lmdeploy_periodic_lines_in_their_forms(line):
    found = log(line.format(17), line.format(27))
    assert (found.last("running"), found.last("waiting")) == (45, 5)
    assert found.last("pool_usage") == pytest.approx(0.216)
    assert found.delta("tokens_decode") == pytest.approx(55126)
    assert occupancy(found) is None


def test_dynamo_states_the_budget_that_vllm_does_not():
    page = (
        "dynamo_frontend_model_max_num_batched_tokens 8192\ndynamo_frontend_model_max_num_seqs 256\n"
        "dynamo_frontend_queued_requests 9\nvllm:num_requests_waiting 0\nvllm:generation_tokens_total {}\n"
    )
    found = signals(page.format(0), page.format(9))
    assert found.dialect == "vllm + dynamo"
    assert (found.last("max_batched_tokens"), found.last("max_sequences")) == (8192, 256)
    assert found.last("waiting") == 0, "the front end's queued requests contain those in prefill"


@pytest.mark.parametrize("spelled", [str.lower, str.upper])
def test_amd_names_in_either_case_beside_an_engine(spelled):
    device = spelled("gpu_gfx_activity") + '{gpu_id="0"} 98\n' + spelled("gpu_umc_activity") + '{gpu_id="0"} 85\n'
    page = "vllm:generation_tokens_total {}\n"
    found = assemble(pages(*(page.format(n) + device for n in (0, 9))), DEFAULT_POLICY).signals
    assert found.dialect == "vllm + amd exporter"
    assert found.last("gpu_dram_active") == pytest.approx(0.85)
    assert "whatever binds" in found.gauges["gpu_busy"].coverage


def test_ray_leaves_out_counters_that_are_zero():
    page = 'ray_vllm_num_requests_running{{ReplicaId="a"}} 2\nray_vllm_generation_tokens_total{{ReplicaId="a"}} {}\n'
    found = signals(page.format(0), page.format(9))
    assert found.delta("preemptions") == 0
    later = page.format(9) + 'ray_vllm_num_preemptions_total{ReplicaId="a"} 3\n'
    assert signals(page.format(0), later).delta("preemptions") == 3
    plain = "vllm:num_requests_running 2\nvllm:generation_tokens_total {}\n"
    assert signals(plain.format(0), plain.format(9)).delta("preemptions") is None


def test_ray_hides_a_queue_before_the_engine():
    page = (
        "ray_serve_deployment_queued_queries 12\nray_vllm_num_requests_waiting 0\nray_vllm_num_requests_running 2\n"
        "ray_vllm_generation_tokens_total {}\n"
    )
    warnings = assemble(pages(page.format(0), page.format(9)), DEFAULT_POLICY).contradictions
    assert "a limit in front of it hides overload from it" in warnings[0]


# ---- answers in JSON


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
