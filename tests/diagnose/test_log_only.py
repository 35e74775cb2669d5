"""What an engine's log proves by itself, and what it does not: queues, caps, stuck lines, full pools, deadlines."""

import pytest

from diagnose.commands.diagnose import judge
from diagnose.diagnosis import Diagnosis
from diagnose.load import LoadPoint, admitted, pace, pool_growth
from diagnose.observation import Observation
from diagnose.sources.engine_log import read_log
from diagnose.sources.log_signals import LogEvidence
from tests.diagnose.cases import texts, verdict

DECODE = (
    "[2026-11-03 05:{:02}:{:02} TP0] Decode batch. #running-req: {running}, #token: {kv}, token usage: {usage:.2f}, "
    "cuda graph: True, gen throughput (token/s): {tokens:.2f}, #queue-req: {waiting}, "
)
PREFILL = (
    "[2026-11-03 05:{:02}:{:02} TP0] Prefill batch. #new-seq: 2, #new-token: 256, #cached-token: 0, token usage: {usage:.2f}, "
    "#running-req: {running}, #queue-req: {waiting}, "
)


def vllm(
    running: list[int],
    waiting: list[int],
    *,
    usage: list[float] | float = 30.0,
    prompt: float = 500.0,
    per_request: list[float] | float = 20.0,
) -> list[str]:
    lines = []
    for n, (runs, waits) in enumerate(zip(running, waiting, strict=True)):
        level = usage if isinstance(usage, float) else usage[n]
        rate = per_request if isinstance(per_request, float) else per_request[n]
        lines.append(
            f"INFO 11-03 07:{n // 6:02}:{n % 6 * 10:02} [loggers.py:118] Engine 000: Avg prompt throughput: {prompt} tokens/s, "
            f"Avg generation throughput: {rate * runs:.1f} tokens/s, Running: {runs} reqs, Waiting: {waits} reqs, "
            f"GPU KV cache usage: {level}%, Prefix cache hit rate: 0.0%"
        )
    return lines


def look(*lines: str) -> Diagnosis:
    observation = Observation("a log")
    observation.add_source(LogEvidence(read_log("a log", lines)))
    return judge(observation, None, (), is_live=False, target="a log")


def supported(diagnosis: Diagnosis) -> set[str]:
    return {f.name for f in diagnosis.findings if f.is_supported}


# ---- queues and caps


def test_a_growing_queue_beside_streams_that_keep_their_pace():
    diagnosis = look(*vllm([40, 42, 41, 43, 42, 44], [60, 70, 80, 90, 100, 110]))
    assert supported(diagnosis) == {"queue_overload"}
    assert "by Little's law" in texts(diagnosis, "queue_overload")


@pytest.mark.parametrize(
    ("over", "words"),
    [
        ({"per_request": [20.0, 20.0, 20.0, 9.0, 8.0, 8.0]}, "20.0 tokens/s in the first half"),
        ({"prompt": 0.0, "running": [40] * 6}, "the head of the line may be stuck"),
        ({"waiting": [60, 50, 30, 0, 60, 60]}, "requests waited"),
        ({"waiting": [5, 6, 5, 6, 5, 6]}, "requests waited"),
    ],
    ids=["the service slowed down", "nothing is started", "the queue was empty once", "few wait"],
)
def test_a_queue_alone_names_no_overload(over, words):
    load = {"running": [40, 42, 41, 43, 42, 44], "waiting": [60, 70, 80, 90, 100, 110]}
    diagnosis = look(*vllm(**(load | over)))
    assert verdict(diagnosis, "queue_overload") == "undetermined"
    assert words in texts(diagnosis, "queue_overload")


def test_one_line_is_a_moment():
    assert not supported(look(*vllm([40], [400])))


def test_a_limit_that_no_line_states_shows_itself():
    diagnosis = look(*vllm([64] * 6, [10, 14, 20, 26, 30, 38]))
    assert supported(diagnosis) == {"sequence_cap"}
    assert diagnosis.primary == "sequence_cap"


@pytest.mark.parametrize(
    "over",
    [
        {"usage": 70.0},
        {"prompt": 0.0},
        {"running": [64, 64, 63, 64, 64, 64]},
        {"running": [1] * 6},
    ],
    ids=["the pool is rather full", "nothing is started", "not the same number", "one at a time"],
)
def test_a_flat_number_alone_names_no_cap(over):
    diagnosis = look(*vllm(**({"running": [64] * 6, "waiting": [10, 14, 20, 26, 30, 38]} | over)))
    assert verdict(diagnosis, "sequence_cap") == "undetermined"


def test_a_capped_queue_is_the_cap_s():
    diagnosis = look(*vllm([64] * 6, [100, 140, 200, 260, 300, 380]))
    assert supported(diagnosis) == {"sequence_cap", "queue_overload"}
    assert diagnosis.primary == "sequence_cap"


def test_sglang_counts_what_a_prefill_line_admits():
    lines = [
        PREFILL.format(54, 2 * n, running=30, waiting=20, usage=0.1)
        if n % 2
        else DECODE.format(54, 2 * n, running=32, waiting=20, usage=0.1, kv=9000 + n, tokens=600.0)
        for n in range(8)
    ]
    diagnosis = look(*lines)
    assert "exactly 32 ran" in texts(diagnosis, "sequence_cap")
    assert verdict(diagnosis, "sequence_cap") == "supported"


# ---- stuck lines


@pytest.mark.parametrize(
    ("running", "prompt", "expected"),
    [
        ([0] * 4, 0.0, "supported"),
        ([1] * 4, 0.0, "undetermined"),
        ([0] * 4, 12.0, "undetermined"),
        ([2] * 4, 0.0, "refuted"),
    ],
)
def test_a_line_is_stuck_when_nothing_runs_beside_it(running, prompt, expected):
    diagnosis = look(*vllm(running, [3] * 4, usage=1.0, prompt=prompt))
    assert verdict(diagnosis, "admission_stall") == expected


def test_one_running_and_a_pool_that_is_smaller_than_a_request():
    facts = (
        "INFO 11-03 06:59:00 [config.py:1] Using max model len 8192",
        "INFO 11-03 06:59:01 [x.py:1] GPU KV cache size: 4,096 tokens",
    )
    assert verdict(look(*facts, *vllm([1] * 4, [3] * 4, usage=10.0, prompt=0.0)), "admission_stall") == "supported"
    fuller = look(*facts, *vllm([1] * 4, [3] * 4, usage=76.0, prompt=0.0))
    assert verdict(fuller, "admission_stall") == "undetermined", "the running one may hold what they need"


# ---- the pool


def test_a_pool_that_has_no_room_while_requests_wait():
    diagnosis = look(*vllm([30] * 5, [8, 9, 9, 10, 9], usage=[97.0, 98.5, 99.1, 98.0, 97.7]))
    assert supported(diagnosis) == {"kv_exhaustion"}


@pytest.mark.parametrize(
    ("waiting", "usage"),
    [([0] * 5, 99.0), ([8, 0, 9, 9, 9], 99.0), ([9] * 5, 60.0), ([9] * 2, 99.0)],
    ids=["nobody waits", "the queue drains", "there is room", "two lines"],
)
def test_a_full_pool_alone_is_well_used(waiting, usage):
    diagnosis = look(*vllm([30] * len(waiting), waiting, usage=usage))
    assert "kv_exhaustion" not in supported(diagnosis)


def test_growth_foretells_when_the_pool_is_full():
    diagnosis = look(*vllm([20] * 5, [0] * 5, usage=[70.0, 74.0, 78.0, 82.0, 84.0]))
    assert verdict(diagnosis, "kv_exhaustion") == "undetermined"
    assert "full in about 45.7 s" in texts(diagnosis, "kv_exhaustion")
    falling = look(*vllm([20] * 5, [0] * 5, usage=[70.0, 74.0, 73.0, 82.0, 84.0]))
    assert "full in about" not in texts(falling, "kv_exhaustion")


def test_retractions_again_and_again_are_a_storm():
    retract = "[2026-11-03 05:54:{:02} TP0] KV cache pool is full. Retract requests. #retracted_reqs: {}, #new_token_ratio: 0.5"
    lines = [DECODE.format(54, 2 * n, running=4, waiting=3, usage=0.97, kv=9000 + n, tokens=80.0) for n in range(6)]
    once = look(*lines, retract.format(12, 1))
    assert supported(once) == {"kv_exhaustion"}
    assert verdict(once, "preemption_storm") == "undetermined"
    often = look(*lines, *(retract.format(12 + n, 2) for n in range(3)))
    assert supported(often) == {"kv_exhaustion", "preemption_storm"}
    assert often.primary == "kv_exhaustion"


def test_one_refusal_that_a_smaller_batch_met_is_no_exhaustion():
    line = "decode: failed to find a memory slot for batch of size {}"
    assert verdict(look(line.format(512)), "kv_exhaustion") == "undetermined"
    assert verdict(look(line.format(512), line.format(256)), "kv_exhaustion") == "supported"


# ---- prefill between decodes


def alternating(disturbed: float, *, running: int = 8, batch: int = 8) -> list[str]:
    """A decode line every 2 s at 480 tokens/s; every second one has a prefill before it, and `disturbed` tokens/s."""
    lines = []
    for n in range(24):
        if n % 4 == 2:
            lines.append(PREFILL.format(54, 2 * n, running=running, waiting=0, usage=0.1))
        rate, runs = (disturbed, batch) if n % 4 == 2 else (480.0, 8)
        lines.append(DECODE.format(54, 2 * n, running=runs, waiting=0, usage=0.1, kv=9000 + n, tokens=rate))
    return lines


def test_streams_that_slow_down_whenever_a_prefill_comes_between():
    diagnosis = look(*alternating(60.0))
    assert verdict(diagnosis, "prefill_interference") == "supported"
    assert "gets 7.5 tokens/s between lines with a prefill and 60.0" in texts(diagnosis, "prefill_interference")
    assert diagnosis.primary == "prefill_interference"


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        (alternating(470.0), "refuted"),
        (alternating(380.0), "undetermined"),
        (alternating(60.0)[:8], "undetermined"),
        (alternating(60.0, running=0), "undetermined"),
        (alternating(60.0, batch=32), "undetermined"),
    ],
    ids=["as fast", "a little slower", "few lines", "it was idle before", "another batch"],
)
def test_a_prefill_between_decodes_alone_names_no_interference(lines, expected):
    assert verdict(look(*lines), "prefill_interference") == expected


# ---- what the engine says itself


LEAK = (
    "ValueError: token_to_kv_pool_allocator memory leak detected! self.max_total_num_tokens={}, available_size={}, "
    "evictable_size={}"
)


def test_a_leak_check_says_by_its_sign_what_went_wrong():
    leaked, freed_twice = look(LEAK.format(1000, 300, 650)), look(LEAK.format(1000, 400, 650))
    assert verdict(leaked, "kv_leak") == "supported"
    assert "50 of 1,000 tokens" in texts(leaked, "kv_leak")
    assert verdict(freed_twice, "kv_leak") == "refuted"
    assert "50 tokens more than the pool has" in texts(freed_twice, "kv_leak")
    assert verdict(freed_twice, "hard_failure") == "supported", "the check stops the server either way"


@pytest.mark.parametrize(
    ("line", "side"),
    [
        (
            "KVTransferError(bootstrap_room=1): Request 1 timed out after 300.0s in KVPoll.Bootstrapping",
            "prefill side waited",
        ),
        (
            "KVTransferError(bootstrap_room=1): Request 1 timed out after 600.0s in KVPoll.WaitingForInput",
            "decode side waited",
        ),
        (
            "WARNING 11-03 07:00:00 [nixl_connector.py:1] Releasing expired KV blocks for request a which were retrieved by 0 "
            "decode worker(s) within 480 seconds.",
            "no decode side came for",
        ),
    ],
)
def test_a_deadline_says_who_waited(line, side):
    diagnosis = look(f"[2026-11-03 12:20:35 DP6] Decode transfer failed for request rank=6 with {line}")
    assert verdict(diagnosis, "transfer_stall") == "supported"
    assert side in texts(diagnosis, "transfer_stall")


def test_a_transfer_that_failed_names_no_stall():
    diagnosis = look(
        "[2026-11-03 12:20:35 DP6] Prefill transfer failed for request rank=6 with KVTransferError: peer is gone"
    )
    assert verdict(diagnosis, "transfer_stall") == "undetermined"


def test_the_order_of_failures_is_told():
    diagnosis = look(
        *vllm([3] * 3, [0] * 3),
        "ERROR 11-03 07:00:31 [core.py:1] torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.",
        "ERROR 11-03 07:00:33 [core.py:1] EngineCore encountered a fatal error.",
        "[rank1]:[E1103 07:10:33 ProcessGroupNCCL.cpp:632] [Rank 1] Watchdog caught collective operation timeout: "
        "WorkNCCL(SeqNum=9) ran for 600000 milliseconds",
    )
    told = texts(diagnosis, "hard_failure")
    assert told.index("first out_of_memory") < told.index("then engine_dead") < told.index("then collective_timeout")


# ---- progress, pace, speculation


def test_work_without_a_token_is_a_hang_once_blocks_are_held():
    hung = vllm([2] * 4, [0] * 4, usage=12.0, prompt=0.0, per_request=0.0)
    assert verdict(look(*hung), "engine_hung") == "supported"
    first = vllm([2] * 4, [0] * 4, usage=0.0, prompt=0.0, per_request=0.0)
    assert verdict(look(*first), "engine_hung") == "undetermined"
    too_long = vllm([2] * 40, [0] * 40, usage=0.0, prompt=0.0, per_request=0.0)
    assert verdict(look(*too_long), "engine_hung") == "supported", "no compilation takes so long"


def test_vllm_says_what_became_of_its_drafts():
    line = (
        "INFO 11-03 07:00:{:02} [metrics.py:96] SpecDecoding metrics: Mean acceptance length: 1.60, Accepted throughput: "
        "4.37 tokens/s, Drafted throughput: 4.92 tokens/s, Accepted: {} tokens, Drafted: {} tokens, "
        "Per-position acceptance rate: 0.983, 0.949"
    )
    few = look(line.format(10, 200, 1000), line.format(20, 300, 1000))
    assert verdict(few, "speculation_loss") == "undetermined"
    assert "25 % of 2,000 draft tokens" in texts(few, "speculation_loss")
    assert verdict(look(line.format(10, 900, 1000)), "speculation_loss") == "refuted"


def test_the_padding_of_a_graph_s_batch_is_no_request():
    """TensorRT-LLM: 16 generation tokens for 10 requests."""
    line = (
        "[04/28/2025-09:56:44] [TRT-LLM] [I] iter = {}, global_rank = 0, rank = 0, currank_total_requests = 0/0, elapsed_time = "
        "0.005s, timestamp = 2025-04-28 09:56:44, num_scheduled_requests: 10, states = {{'num_ctx_requests': 0, "
        "'num_ctx_tokens': 0, 'num_generation_tokens': 16}}"
    )
    found = LogEvidence(read_log("a log", [line.format(n) for n in range(3)])).signals(None)
    assert found.delta("tokens_decode") == 30


def test_prompts_that_find_what_they_share_are_no_thrashing():
    lines = [line.replace("hit rate: 0.0%", "hit rate: 91.0%") for line in vllm([8] * 4, [0] * 4)]
    assert verdict(look(*lines), "cache_thrashing") == "refuted"
    assert verdict(look(*vllm([8] * 4, [0] * 4)), "cache_thrashing") == "undetermined", (
        "nothing found may be thrashing, too"
    )


# ---- the series


def points(*rows: tuple[float, float, float]) -> list[LoadPoint]:
    """Running, usage and tokens per second every 10 s."""
    return [LoadPoint(10.0, running, 0.0, usage, rate, 0.0) for running, usage, rate in rows]


def test_pace_is_per_running_request_and_in_halves():
    found = pace(points((2, 0.1, 40), (4, 0.1, 80), (4, 0.1, 40), (2, 0.1, 20)))
    assert found is not None
    assert (found.first, found.last, found.slowdown) == (20, 10, 2)
    assert pace(points((2, 0.1, 40))) is None
    assert pace(points((2, 0.1, 40), (2, 0.1, 0))) is None


def test_the_line_moves_when_prompts_are_computed_or_more_run():
    assert admitted(points((2, 0.1, 40), (3, 0.1, 40))) is True
    assert admitted(points((2, 0.1, 40), (2, 0.1, 40))) is False
    assert admitted([LoadPoint(0.0, 2.0), LoadPoint(0.0, 2.0)]) is None, "lines that say nothing of prompts"


def test_growth_needs_a_clock():
    rising = points((2, 0.1, 40), (2, 0.2, 40), (2, 0.3, 40))
    assert pool_growth(rising) == pytest.approx(0.01)
    assert pool_growth([point._replace(seconds=0.0) for point in rising]) is None
    assert pool_growth(rising[:2]) is None
