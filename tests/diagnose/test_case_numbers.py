"""Public incidents of which only numbers are posted: small inputs that state these numbers, and what may be concluded.

Each case is named by its number and the issue or pull request it was posted in. `why` argues where a verdict differs from
what the incident turned out to be. Not here, since nothing that a server or a client shows is posted: 26 (vllm#46283, read
from the source), 42 (vllm#11893 and others, stalls in words) and 80 (ai-dynamo/aiconfigurator#1380, a formula).
"""

import pytest

from diagnose.commands.diagnose import judge
from tests.diagnose.case_inputs import Numbers, Window, bench, iterations, observed, sglang, tgi, vllm
from tests.diagnose.test_cases import Posted, check, v1

WATERMARK = {"num_requests_running": 96, "num_requests_waiting": 32, "kv_cache_usage_perc": 0.99}
NUMBERS = {
    "06 NVIDIA/TensorRT-LLM#16827, what the clients saw": Numbers(
        bench(ttft=(900.0, 2500.0), tpot=(60.0, 273.0)),
        Posted(
            "",
            undetermined=("preemption_storm", "kv_exhaustion", "bandwidth_saturation", "client_artifact"),
            why="With the engine's default settings nothing is exported: no data is not the same as no preemption.",
        ),
        baseline=bench(ttft=(900.0, 2500.0), tpot=(20.0, 30.0)),
    ),
    "06 NVIDIA/TensorRT-LLM#16827, with iteration statistics": Numbers(
        iterations([0, 2, 2, 0, 3, 0, 1, 0, 2, 0] * 5),
        Posted(
            "",
            supported=("kv_exhaustion",),
            undetermined=("preemption_storm",),
            primary="kv_exhaustion",
            says=(("preemption_storm", "preemptions"),),
            why="Pauses beside a full pool are exhaustion. What they cost is the thread's open question: the records count no "
            "tokens that are computed again.",
        ),
    ),
    "07 vllm-project/vllm#44594": Numbers(
        vllm(
            195,
            {"num_preemptions_total": 1065, "request_success_total": 450, "generation_tokens_total": 2_258_490},
            WATERMARK,
            inter_token_latency={0.01: 2_200_000, 0.04: 58_000},
        ),
        Posted(
            "",
            supported=("preemption_storm", "kv_exhaustion"),
            primary="kv_exhaustion",
            says=(("preemption_storm", "1065 preemptions against 450 finished requests"),),
            why="The storm is what exhaustion ends in. That bandwidth is not at fault needs the time of steps without victims.",
        ),
        baseline=vllm(
            195,
            {"num_preemptions_total": 168, "request_success_total": 459, "generation_tokens_total": 2_307_825},
            WATERMARK,
            inter_token_latency={0.01: 2_290_000, 0.015: 17_000},
        ),
    ),
    "20 vllm-project/vllm#35541": Numbers(
        [
            "\n".join(
                [
                    "INFO 11-03 06:59:00 [config.py:1] Using max model len 2048",
                    "INFO 11-03 06:59:30 [kv_cache_utils.py:1] GPU KV cache size: 784 tokens",
                    *v1(waiting=1),
                ]
            )
        ],
        Posted(
            "",
            supported=("admission_stall",),
            refuted=("kv_exhaustion",),
            primary="admission_stall",
            says=(("admission_stall", "the pool holds 784 tokens and one request may have 2,048"),),
        ),
    ),
    "30 MiaAI-Lab/GLM-5.3-Flash-EXL3-2x-DGX-Sparks#106": Numbers(
        vllm(
            600,
            {
                "prefix_cache_queries_total": 400_000,
                "prefix_cache_hits_total": 0,
                "num_preemptions_total": 0,
                "generation_tokens_total": 9_000,
            },
            {"num_requests_running": 1, "num_requests_waiting": 3, "kv_cache_usage_perc": 0.2},
        ),
        Posted(
            "",
            refuted=("preemption_storm", "kv_exhaustion"),
            undetermined=("cache_prefix_broken", "cache_thrashing"),
            says=(("cache_prefix_broken", "0 % of the prompt tokens were found, 60 % in the baseline"),),
            why="That identical prompts miss is the deciding probe, and its answer is in the thread and in no metric: without "
            "evictions, a broken look-up and content that was lost look the same.",
        ),
        baseline=vllm(
            600,
            {
                "prefix_cache_queries_total": 400_000,
                "prefix_cache_hits_total": 240_000,
                "generation_tokens_total": 9_000,
            },
            {"num_requests_running": 1, "num_requests_waiting": 0, "kv_cache_usage_perc": 0.2},
        ),
    ),
    "32 vllm-project/vllm-ascend#10574": Numbers(
        vllm(
            600,
            {
                "prefix_cache_queries_total": 2_000_000,
                "prefix_cache_hits_total": 140_000,
                'prompt_tokens_by_source_total{source="local_compute"}': 1_860_000,
                "num_preemptions_total": 0,
                "request_success_total": 100,
                "generation_tokens_total": 80_000,
            },
            {"num_requests_running": 5, "num_requests_waiting": 0, "kv_cache_usage_perc": 0.38},
            time_to_first_token={5.7: 100},
            request_queue_time={0.05: 100},
            inter_token_latency={0.056: 80_000},
        ),
        Posted(
            "",
            refuted=("preemption_storm", "queue_overload"),
            undetermined=("prefill_interference", "cache_prefix_broken", "cache_thrashing"),
            says=(("prefill_interference", "3.7x the baseline's"),),
            why="Nearly four times the prefill beside the decodes is a reason, and no step time shows that it is the cause.",
        ),
        baseline=vllm(
            600,
            {
                "prefix_cache_queries_total": 400_000,
                "prefix_cache_hits_total": 300_000,
                'prompt_tokens_by_source_total{source="local_compute"}': 100_000,
                "request_success_total": 20,
                "generation_tokens_total": 16_000,
            },
            {"num_requests_running": 1, "num_requests_waiting": 0, "kv_cache_usage_perc": 0.1},
            time_to_first_token={4.7: 20},
            request_queue_time={0.05: 20},
            inter_token_latency={0.035: 16_000},
        ),
    ),
    "37 FlashML-org/FreeToken#483, as the log of such an engine": Numbers(
        sglang(77.0, prefills=58),
        Posted(
            "",
            supported=("prefill_interference",),
            refuted=("queue_overload",),
            primary="prefill_interference",
            says=(("prefill_interference", "between lines with a prefill and 60.0"),),
        ),
    ),
    "39 tenstorrent/vllm-tt-plugin#119, chunks without interleaving": Numbers(
        sglang(11.15, prefills=8),
        Posted("", supported=("prefill_interference",), refuted=("queue_overload",), primary="prefill_interference"),
    ),
    "41 1CatAI/1Cat-vLLM#490": Numbers(
        [
            "\n".join(
                [
                    "INFO 11-03 06:59:30 [kv_cache_utils.py:1] GPU KV cache size: 470,000 tokens",
                    *(v1(24, tokens=0.25, running=2, usage=round(45 + 0.8 * n, 1), hits=0.0)[n] for n in range(24)),
                ]
            )
        ],
        Posted(
            "",
            refuted=("queue_overload", "engine_hung", "cache_thrashing"),
            undetermined=("prefill_interference", "bandwidth_saturation"),
            says=(("prefill_interference", "a prompt was computed meanwhile"),),
            why="A prompt is being computed, and streams hardly move: whether its chunks are slow by themselves at that depth "
            "(the thread's open question) or keep the decodes out, only a time per step tells.",
        ),
    ),
    "48 huggingface/text-generation-inference#3173": Numbers(
        tgi(queue=161.45, inference=2.0, decode=0.02, size=1, waiting=0),
        Posted(
            "",
            undetermined=("queue_overload", "scheduler_contention", "bandwidth_saturation"),
            why="The server books the grammar's compilation as queue time. That it is no queue shows in nobody waiting beside "
            "a batch of one; that it is the host, only stacks do.",
        ),
    ),
    "48 vllm-project/vllm#12122": Numbers(
        v1(6, prompt=50.0, tokens=200.0, running=30, waiting=0, usage=12.0),
        Posted("", refuted=("kv_exhaustion", "queue_overload"), undetermined=("scheduler_contention",)),
        baseline=v1(6, prompt=500.0, tokens=2000.0, running=30, waiting=0, usage=12.0),
    ),
    "54 huggingface/text-generation-inference#2007": Numbers(
        tgi(queue=0.001, inference=0.35, decode=0.02, size=1, waiting=0, forward=0.15),
        Posted(
            "",
            supported=("scheduler_contention",),
            refuted=("queue_overload",),
            primary="scheduler_contention",
            says=(("scheduler_contention", "mixed 200 ms each"),),
        ),
    ),
    "55 vllm-project/vllm#5567": Numbers(
        [
            "\n".join(
                v1(5, tokens=rate, running=batch, prompt=0.0, usage=2.0)[n]
                for n, (batch, rate) in enumerate(((1, 55.2), (3, 98.2), (5, 134.4), (30, 249.2), (256, 1275.0)))
            )
        ],
        Posted(
            "",
            refuted=("kv_exhaustion", "queue_overload"),
            undetermined=("bandwidth_saturation", "scheduler_contention"),
            why="Steps of 18 to 201 ms by batch do not lie on one line: neither weights alone nor the host alone.",
        ),
    ),
    "64 llm-d/llm-d-autoscaling#1249, by the engine's clock": Numbers(
        vllm(
            60,
            {"generation_tokens_total": 114_060, "request_success_total": 120},
            {"num_requests_running": 60, "num_requests_waiting": 25, "kv_cache_usage_perc": 0.6},
            time_to_first_token={9.0: 90, 18.8: 30},
            request_queue_time={8.9: 90, 18.6: 30},
            inter_token_latency={0.03: 114_000},
        ),
        Posted(
            "",
            supported=("queue_overload",),
            undetermined=("kv_exhaustion", "compute_saturation"),
            primary="queue_overload",
            why="What binds service at the knee, the thread leaves open.",
        ),
        baseline=vllm(
            60,
            {"generation_tokens_total": 100_000, "request_success_total": 110},
            {"num_requests_running": 50, "num_requests_waiting": 0, "kv_cache_usage_perc": 0.5},
            time_to_first_token={0.1: 108, 0.136: 2},
            request_queue_time={0.005: 110},
            inter_token_latency={0.03: 100_000},
        ),
    ),
    "64 llm-d/llm-d-autoscaling#1249, by the clients'": Numbers(
        bench(ttft=(9000.0, 18_800.0), tpot=(30.0, 40.0)),
        Posted("", undetermined=("queue_overload", "kv_exhaustion", "compute_saturation")),
        baseline=bench(ttft=(100.0, 136.0), tpot=(30.0, 40.0)),
    ),
    "69 huggingface/text-generation-inference#1221": Numbers(
        tgi(queue=60.0, inference=5.0, decode=0.07, size=150, waiting=1850),
        Posted("", supported=("queue_overload",), undetermined=("hard_failure",), primary="queue_overload"),
        baseline=tgi(queue=0.01, inference=5.0, decode=0.07, size=150, waiting=0),
    ),
    "70 lightseekorg/tokenspeed#1355": Numbers(
        bench(ttft=(1400.0, 2900.0), tpot=(12.0, 14.0)),
        Posted(
            "",
            undetermined=("admission_stall", "scheduler_contention", "queue_overload", "bandwidth_saturation"),
            why="One event of a fixed length before the first token: the clients' side cannot say in which part.",
        ),
        baseline=bench(ttft=(1400.0, 1980.0), tpot=(12.0, 14.0)),
    ),
    "79 vllm-project/vllm#55434": Numbers(
        vllm(
            60,
            {"generation_tokens_total": 60_000},
            {"num_requests_running": 20, "num_requests_waiting": 0, "kv_cache_usage_perc": 0.3},
            nixl_xfer_time={0.105: 200},
            nixl_post_time={0.0597: 200},
            time_to_first_token={0.263: 200},
        ),
        Posted(
            "",
            undetermined=("transfer_stall",),
            says=(
                ("transfer_stall", "57 % of the transfer time is posting descriptors"),
                ("transfer_stall", "a faster network does not"),
            ),
            why="The transfer is 40 % of the handover. What binds it is said; that it is what is late, is not proven.",
        ),
    ),
    "83 sgl-project/sglang#28737": Numbers(
        [
            "\n".join(
                f"[2026-11-03 05:{n:02}:00] Request {n} timed out after 300.0s in KVPoll.WaitingForInput"
                for n in range(8)
            )
        ],
        Posted("", supported=("transfer_stall",), undetermined=("queue_overload",), primary="transfer_stall"),
    ),
    "84 vllm-project/vllm#8115": Numbers(
        vllm(
            3600,
            {
                'request_success_total{finished_reason="stop"}': 3810,
                'request_success_total{finished_reason="length"}': 108,
                "generation_tokens_total": 1_000_000,
            },
            {"num_requests_running": 8, "num_requests_waiting": 0},
            time_to_first_token={0.2: 8060},
        ),
        Posted(
            "",
            undetermined=("preemption_storm", "kv_exhaustion"),
            says=(("warning", "8,060 first tokens and 3,918 finished requests"), ("warning", "no failure rate")),
        ),
    ),
    "84 sgl-project/sglang#11900": Numbers(
        Window(
            "sglang:",
            600,
            {"prompt_tokens_total": 59_946, "cached_tokens_total": 122_884, "generation_tokens_total": 50_000},
            {"num_running_reqs": 4, "num_queue_reqs": 0, "token_usage": 0.9},
        ),
        Posted(
            "",
            undetermined=("cache_prefix_broken", "cache_thrashing"),
            says=(("warning", "122,884 prompt tokens were found"), ("warning", "no hit rate is made of the two")),
        ),
    ),
    "85 vllm-project/vllm#20302": Numbers(
        vllm(
            60,
            {"generation_tokens_total": 0, "num_preemptions_total": 0, "prefix_cache_queries_total": 0},
            {"num_requests_running": 0, "num_requests_waiting": 0, "kv_cache_usage_perc": 9.75010481363281e-06},
        ),
        Posted("", refuted=("kv_leak", "kv_exhaustion")),
    ),
    "96 NVIDIA/TensorRT-LLM#14127": Numbers(
        [
            "\n".join(
                f"[04/28/2025-09:56:4{n}] [TRT-LLM] [I] iter = {198 + n}, global_rank = 0, rank = 0, currank_total_requests = "
                "0/0, elapsed_time = 0.005060911178588867s, timestamp = 2025-04-28 09:56:44, num_scheduled_requests: 10, states "
                "= {'num_ctx_requests': 0, 'num_ctx_tokens': 0, 'num_generation_tokens': 16}"
                for n in range(3)
            )
        ],
        Posted("", refuted=("prefill_interference",), undetermined=("scheduler_contention",)),
    ),
}


@pytest.mark.parametrize("numbers", NUMBERS.values(), ids=NUMBERS)
def test_posted_numbers(tmp_path, numbers):
    now = observed(numbers.given, tmp_path / "now")
    before = None if numbers.baseline is None else observed(numbers.baseline, tmp_path / "before")
    check(numbers.expected, judge(now, before, (), is_live=False, target="numbers"))


def test_06_no_pause_is_seen_under_the_other_policy(tmp_path):
    """GUARANTEED_NO_EVICT: nobody is paused, and requests wait for room."""
    diagnosis = judge(observed(iterations([0] * 50), tmp_path / "x"), None, (), is_live=False, target="x")
    counted = diagnosis.case.signals.counters["preemptions"]
    assert (counted.delta, counted.late) == (0, True), "what begins and ends between two records is not seen"
