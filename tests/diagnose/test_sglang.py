"""SGLang: ranks, a pool in three parts, tokens booked late, and its lines of the log."""

import pytest

from diagnose.dialects.base import Usage
from diagnose.hypotheses.pool import occupancy
from diagnose.verdict import Verdict
from tests.diagnose.pages import log, signals, state, verdict


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
