"""TensorRT-LLM and Triton: iteration records, means that are no latency, and names in labels."""

import pytest

from diagnose.assembly import assemble
from diagnose.hypotheses.pool import occupancy
from diagnose.policy import DEFAULT_POLICY
from diagnose.sources.state import StateEvidence, shape_of
from diagnose.verdict import Verdict
from tests.diagnose.pages import log, pages, signals, state, verdict


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
