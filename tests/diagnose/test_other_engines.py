"""TGI, LMDeploy, Dynamo, Ray and AMD's exporter: what each figure is, and what it is not."""

import pytest

from diagnose.assembly import assemble
from diagnose.hypotheses.pool import occupancy
from diagnose.policy import DEFAULT_POLICY
from diagnose.verdict import Verdict
from tests.diagnose.pages import log, pages, signals, verdict


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
