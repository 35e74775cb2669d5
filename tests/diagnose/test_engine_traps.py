"""Every trap of every engine's figures, and the test that holds it; those that no other file tests are tested here.

A trap is a figure whose name says one thing and whose value another, a name that moved, or a reading that changes what is read.
"""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from diagnose.dialects.registry import DIALECTS, recognise
from diagnose.dialects.sglang import SGLANG
from diagnose.dialects.tensorrt_llm import TENSORRT_LLM
from diagnose.dialects.vllm import VLLM
from diagnose.errors import TargetError
from diagnose.exposition import ExpositionParser
from tests.diagnose.pages import log, signals, verdict

TRAPS: dict[str, dict[str, str]] = {
    "vllm": {
        "names moved between versions": "test_usage_is_found_under_each_of_its_names",
        "names tell the version": "test_the_version_shows_in_the_names",
        "the same name is spelt with ':', '_total' or 'ray_'": "test_spellings_of_exporters_are_one",
        "kv_cache_usage_perc is a share, and counts live blocks only": "test_what_the_pool_is_and_what_usage_counts",
        "one block is the engine's own: usage is never 0": "test_posted_numbers",
        "the label None of cache_config_info is no number": "test_texts_that_are_no_numbers_are_no_values",
        "num_gpu_blocks x block_size is not the capacity of a hybrid model": "test_the_stated_capacity_stands",
        "waiting{capacity} beside a pool with room is a reservation": "test_waiting_for_capacity_beside_room_is_no_exhaustion",
        "a prompt is booked when its prefill ends": "test_no_booked_prompt_is_no_proof_that_none_ran",
        "prompt tokens hold cached ones": "test_computed_prompt_tokens_are_preferred",
        "preemptions are booked late": "test_no_booked_preemption_is_no_proof_beside_a_full_pool",
        "successes hold aborts and errors": "test_aborts_are_no_failures_and_errors_are",
        "first tokens are counted again after a preemption": "test_posted_numbers",
        "block residency is a sample, of blocks that held nothing too": "test_sampled_block_times_are_no_evictions",
        "iteration_tokens is not a step's size": "test_a_misleading_figure_is_read_nowhere",
        "lora_requests_info is a time": "test_a_misleading_figure_is_read_nowhere",
        "inter-token latency was called time per output token": "test_inter_token_latency_under_its_old_name",
        "engines of one page are replicas": "test_engines_of_one_vllm_are_replicas",
        "gauges freeze in a long step": "test_a_frozen_page_is_not_a_hung_engine",
        "the logged hit rate is one of 1,000 requests": "test_a_posted_file",
        "the periodic line may be off": "test_the_start_of_a_log_alone_says_nothing_of_load_and_the_report_says_so",
        "the periodic line may be of all engines": "test_a_line_of_all_engines_is_one_series",
        "deferred and fetching requests stand in the line": "test_what_else_stands_in_the_periodic_line",
        "a dummy iteration is no step": "test_the_iteration_line_in_its_forms",
        "V0's second usage is that of its swap space": "test_the_periodic_line_of_v0_and_its_swap_space",
    },
    "sglang": {
        "OpenMetrics answers change the names": "test_plain_text_is_asked_for",
        "every rank counts the same tree": "test_sglang_ranks_report_one_tree",
        "data-parallel ranks add up": "test_sglang_data_parallel_ranks_add_up",
        "token_usage leaves out what can be evicted": "test_sglang_splits_the_pool",
        "tokens are booked when a request ends": "test_sglang_tokens_booked_at_the_end_prove_no_hang",
        "cache_hit_rate is the last batch's, or 0": "test_a_misleading_figure_is_read_nowhere",
        "utilization never moves": "test_a_misleading_figure_is_read_nowhere",
        "hits count retracted prompts again": "test_posted_numbers",
        "names moved between versions": "test_sglang_names_of_older_versions",
        "a transfer is in milliseconds": "test_sglang_transfers_are_in_seconds",
        "decode lines changed their form": "test_sglang_decode_lines_in_their_forms",
        "a derived step time holds the prefill between": "test_a_posted_file",
        "the logged throughput is a mean over 40 steps": "test_sglang_decode_lines_in_their_forms",
    },
    "tensorrt-llm": {
        "/metrics is JSON, and reading it takes the records away": "test_tensorrt_llm_reading_takes_records_away",
        "JSON at /metrics": "test_json_at_metrics_is_tensorrt_llms",
        "hits are blocks, not tokens": "test_tensorrt_llm_hits_are_blocks",
        "time per output token is a request's mean": "test_tensorrt_llm_means_per_request_are_no_inter_token_latency",
        "free blocks hold released content": "test_tensorrt_llm_iterations_are_steps_by_kind",
        "generation tokens are padded": "test_the_padding_of_a_graph_s_batch_is_no_request",
        "no pause is counted: no data is not no preemption": "test_06_no_pause_is_seen_under_the_other_policy",
        "the iteration line changed its form": "test_tensorrt_llm_iteration_lines_in_their_forms",
        "iteration latency is that of the last one": "test_a_misleading_figure_is_read_nowhere",
        "behind Triton, names are sub-labels": "test_triton_names_are_sub_labels",
    },
    "tgi": {
        "current_max_tokens is a reservation": "test_tgi_reserves_and_does_not_occupy",
        "time per token holds the prefill": "test_a_misleading_figure_is_read_nowhere",
        "steps by phase": "test_tgi_steps_by_phase",
        "a grammar's compilation is booked as queue time": "test_posted_numbers",
    },
    "llamacpp": {
        "reading resets the throughput": "test_llamacpp_throughput_gauges_are_not_used",
        "tokens are booked when a request ends": "test_llamacpp_steps_tell_work_before_tokens_are_booked",
        "idle slots keep their contexts": "test_a_full_pool_is_occupied_only_where_usage_counts_live_blocks",
        "there is no preemption": "test_llamacpp_never_preempts",
        "usage comes from the slots": "test_llamacpp_slots_and_props",
        "timings changed their form": "test_llamacpp_timings_in_both_forms",
        "a batch is tried again smaller": "test_llamacpp_without_a_slot_for_a_batch",
        "metrics are off by default": "test_a_server_without_metrics_is_told_how_to_have_some",
    },
    "lmdeploy": {
        "usage counts the cache": "test_lmdeploy_usage_counts_the_cache",
        "gauges that only grow are counters": "test_lmdeploy_cumulative_gauges_are_counters",
        "iteration_tokens is per output": "test_a_misleading_figure_is_read_nowhere",
        "the hit rate is one of the whole life": "test_a_misleading_figure_is_read_nowhere",
        "the periodic line changed its wording": "test_lmdeploy_periodic_lines_in_their_forms",
    },
    "triton": {
        "a vLLM behind it is blind on its pool": "test_a_vllm_behind_triton_is_blind_on_its_pool",
        "its time per output token is inter-token latency": "test_inter_token_latency_under_its_old_name",
    },
    "dynamo": {
        "only it states vLLM's budget": "test_dynamo_states_the_budget_that_vllm_does_not",
        "queued requests hold those that are computed": "test_a_misleading_figure_is_read_nowhere",
        "its page passes the engine's figures through": "test_dynamo_s_own_figures_are_not_added_to_the_engine_s",
    },
    "ray serve": {
        "a counter of 0 is absent": "test_ray_leaves_out_counters_that_are_zero",
        "its limit hides a queue": "test_ray_hides_a_queue_before_the_engine",
    },
    "amd exporter": {"names come in either case": "test_amd_names_in_either_case_beside_an_engine"},
    "dcgm exporter": {
        "the last XID is a code": "test_the_last_xid_is_a_code_and_no_count",
        "it collects every 30 s": "test_between_two_collections_no_growth_is_unknown",
        "a blank is no measurement": "test_a_blank_is_no_measurement",
        "profiling fields may be absent": "test_a_page_without_profiling_fields_says_so_and_keeps_the_rest",
        "a split GPU is several": "test_the_instances_of_a_split_gpu_are_kept_apart",
        "memory used says nothing of the pool": "test_reserved_memory_alone_is_no_exhaustion",
    },
    "llm-d": {"its router's page is no engine's": "test_a_router_s_page_is_named_as_no_engine_s"},
    "transformers serve": {"it has no metrics": "test_every_engine_that_is_named_has_a_way_to_be_read"},
}


def written_tests() -> set[str]:
    here = Path(__file__).parent
    return {
        name
        for path in here.glob("test_*.py")
        for name in re.findall(r"^def (test_\w+)", path.read_text(), re.MULTILINE)
    }


def test_every_trap_has_a_test():
    named = {test for traps in TRAPS.values() for test in traps.values()}
    assert named <= written_tests(), named - written_tests()


def test_every_dialect_but_ours_has_its_traps():
    names = {dialect.name for dialect in DIALECTS} - {"stallscope", "tensorrt-llm in triton"}
    assert names <= set(TRAPS)


MISLEADING = (
    "vllm_iteration_tokens",
    "vllm_lora_requests_info",
    "sglang_utilization",
    "sglang_cache_hit_rate",
    "sglang_gen_throughput",
    "trtllm_iteration_latency_seconds",
    "trtllm_kv_cache_hit_rate",
    "trtllm_time_per_output_token_seconds",
    "tgi_request_mean_time_per_token_duration",
    "tgi_batch_total_tokens",
    "llamacpp_prompt_tokens_seconds",
    "llamacpp_predicted_tokens_seconds",
    "llamacpp_n_busy_slots_per_decode",
    "lmdeploy_iteration_tokens",
    "lmdeploy_prefix_cache_hit_rate",
    "dynamo_frontend_queued_requests",
    "dynamo_frontend_inflight_requests",
)


def read_names() -> Iterator[str]:
    for dialect in DIALECTS:
        for table in (dialect.counters, dialect.gauges, dialect.histograms):
            for aliases in table.values():
                for alias in aliases:
                    yield from (alias.metric, *alias.plus)


@pytest.mark.parametrize("name", MISLEADING)
def test_a_misleading_figure_is_read_nowhere(name):
    assert name not in set(read_names())


# ---- vLLM


LOAD = "vllm:num_requests_running 2\nvllm:num_requests_waiting {waiting}\n"


def test_the_stated_capacity_stands():
    config = 'vllm:cache_config_info{block_size="528",num_gpu_blocks="1000",kv_cache_size_tokens="131072"} 1\n'
    assert signals(config + LOAD.format(waiting=0)).gauges["pool_tokens"].last == 131_072


def test_waiting_for_capacity_beside_room_is_no_exhaustion():
    page = LOAD.format(waiting=6) + (
        'vllm:num_requests_waiting_by_reason{reason="capacity"} 6\nvllm:kv_cache_usage_perc 0.4\n'
        "vllm:num_preemptions_total 0\nvllm:generation_tokens_total "
    )
    assert verdict("kv_exhaustion", *(f"{page}{100 * n}\n" for n in range(4))) != "supported"


def test_computed_prompt_tokens_are_preferred():
    def page(n: int) -> str:
        return (
            f'vllm:prompt_tokens_total {1000 * n}\nvllm:prompt_tokens_by_source_total{{source="local_compute"}} {250 * n}\n'
            f'vllm:prompt_tokens_by_source_total{{source="local_cache_hit"}} {750 * n}\n' + LOAD.format(waiting=0)
        )

    assert signals(page(1), page(2)).counters["tokens_prefill"].delta == 250


@pytest.mark.parametrize("name", ["inter_token_latency_seconds", "time_per_output_token_seconds"])
def test_inter_token_latency_under_its_old_name(name):
    def page(n: int) -> str:
        return "".join(
            f"vllm:{name}_{suffix} {value * n}\n"
            for suffix, value in (('bucket{le="0.1"}', 5), ('bucket{le="+Inf"}', 5), ("count", 5), ("sum", 0.2))
        ) + LOAD.format(waiting=0)

    assert signals(page(1), page(2)).histograms["inter_token_latency"].count == 5


LINE = (
    "(APIServer pid=3646) INFO 05-19 10:13:{:02} [loggers.py:271] {}Avg prompt throughput: 0.0 tokens/s, Avg generation "
    "throughput: 100.0 tokens/s, Running: 18 reqs, Waiting: 43 reqs, {}GPU KV cache usage: 95.9%, Prefix cache hit rate: 0.0%"
)


def test_a_line_of_all_engines_is_one_series():
    found = log(*(LINE.format(10 * n, "4 Engines Aggregated: ", "") for n in range(3)))
    assert (found.gauges["running"].last, found.replicas, found.counters["tokens_decode"].delta) == (18, {}, 3000)


def test_what_else_stands_in_the_periodic_line():
    more = "Deferred: 3 reqs, KV fetch: 2 waiting to start, 1 in progress, 0 completed waiting, Preemptions: 7, "
    found = log(*(LINE.format(10 * n, "Engine 000: ", more) for n in range(3)))
    assert (found.gauges["waiting"].last, found.counters["preemptions"].delta) == (43, 21)
    assert found.gauges["pool_usage"].last == pytest.approx(0.959)


ITERATION = (
    "INFO 12-22 21:44:40 [core.py:349] {}Iteration({}): 0 context requests, 0 context tokens, 20 generation requests, 20 "
    "generation tokens, iteration elapsed time: 10.99 ms{}"
)


def test_the_iteration_line_in_its_forms():
    found = log(
        ITERATION.format("", 1, ""),
        ITERATION.format("Engine 000: ", 2, ", GPU KV cache usage: 3.1%"),
        ITERATION.format("Engine 000: ", 3, " (dummy), GPU KV cache usage: 3.1%"),
    )
    assert found.histograms["step_decode"].count == 2


# ---- SGLang


def test_plain_text_is_asked_for():
    """With an OpenMetrics answer, ':' becomes '_' in samples and not in their types."""
    from diagnose.sources.http import Endpoint

    assert Endpoint("http://127.0.0.1:1")._headers["Accept"].startswith("text/plain;version=0.0.4")


@pytest.mark.parametrize(
    ("signal", "name", "value"),
    [
        ("preemptions", "sglang:num_retractions_total", 3),
        ("preemptions", "sglang:num_retracted_requests_total", 3),
        ("tokens_decode", "sglang:generation_tokens_total", 3),
        ("tokens_decode", 'sglang:realtime_tokens_total{mode="decode"}', 3),
    ],
)
def test_sglang_names_of_older_versions(signal, name, value):
    load = "sglang:num_running_reqs 1\n"
    assert signals(f"{load}{name} 1\n", f"{load}{name} {1 + value}\n").counters[signal].delta == value


def test_sglang_transfers_are_in_seconds():
    def page(n: int) -> str:
        values = (('bucket{le="1000"}', 4), ('bucket{le="+Inf"}', 4), ("count", 4), ("sum", 2000))
        rows = "".join(f"sglang:kv_transfer_latency_ms_{suffix} {value * n}\n" for suffix, value in values)
        return rows + "sglang:num_running_reqs 1\n"

    assert signals(page(1), page(2)).histograms["kv_transfer"].mean == 0.5


# ---- what stands before an engine


def test_dynamo_s_own_figures_are_not_added_to_the_engine_s():
    page = (
        "dynamo_frontend_inflight_requests 50\ndynamo_frontend_queued_requests 40\ndynamo_component_inflight_requests 9\n"
        "vllm:num_requests_running 8\nvllm:num_requests_waiting 1\nvllm:generation_tokens_total "
    )
    found = signals(page + "1\n", page + "2\n")
    assert (found.gauges["running"].last, found.gauges["waiting"].last) == (8, 1)


def test_a_router_s_page_is_named_as_no_engine_s():
    page = ExpositionParser().parse("inference_pool_average_queue_size 3\ninference_pool_ready_pods 2\n")
    with pytest.raises(TargetError, match="a metrics page of no engine this version knows") as caught:
        recognise("http://epp:9090", page)
    assert "\n" not in str(caught.value)


def test_what_a_figure_counts_is_stated_where_the_name_misleads():
    stated = {
        VLLM.histograms["queue_time"][0].coverage: "one bucket to 300 ms",
        VLLM.gauges["waiting"][0].coverage: "deferred requests",
        SGLANG.histograms["inter_token_latency"][0].coverage: "smear stalls away",
        SGLANG.gauges["running"][0].coverage: "every 40 decode steps",
        TENSORRT_LLM.counters["tokens_decode"][0].coverage: "when a request finishes",
    }
    assert not [words for coverage, words in stated.items() if words not in coverage]
