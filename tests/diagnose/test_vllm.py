"""What is said of a real vLLM 0.32.0 by its metrics and log alone, and what is not claimed."""

from pathlib import Path

import pytest

from diagnose.assembly import assemble
from diagnose.commands.diagnose import judge
from diagnose.diagnosis import Diagnosis
from diagnose.dialects.base import Usage
from diagnose.dialects.view import PageView
from diagnose.dialects.vllm import VLLM
from diagnose.exposition import ExpositionParser
from diagnose.observation import Observation, observe
from diagnose.policy import DEFAULT_POLICY
from diagnose.signals import Signals
from diagnose.sources.files import read_files
from diagnose.verdict import Verdict
from probes.recording import Entry

DATA = Path(__file__).resolve().parent.parent / "data/vllm"
SUPPORTED, REFUTED, UNDETERMINED = Verdict.SUPPORTED, Verdict.REFUTED, Verdict.UNDETERMINED


def seen(*names: str) -> Observation:
    paths = [str(path) for name in names for path in sorted(DATA.glob(name))]
    assert paths, names
    return read_files(paths, None).observation()


def diagnosis_of(*names: str) -> Diagnosis:
    observation = seen(*names)
    return judge(observation, None, (), is_live=False, target=observation.target)


def verdicts(diagnosis: Diagnosis) -> dict[str, Verdict]:
    assert not [finding.error for finding in diagnosis.findings if finding.error]
    return {finding.name: finding.verdict for finding in diagnosis.findings}


def judgement(diagnosis: Diagnosis, name: str):
    return next(finding.judgement for finding in diagnosis.findings if finding.name == name)


def signals_of(*pages: str, seconds: float = 10.0) -> Signals:
    entries = [Entry(1000.0 + index * seconds, "exposition", page) for index, page in enumerate(pages)]
    return assemble(observe("t", entries), DEFAULT_POLICY).signals


# ---- a real server


def test_an_idle_server_is_idle():
    diagnosis = diagnosis_of("idle-*")
    assert diagnosis.idle
    assert int(diagnosis.exit_code) == 3


def test_decode_alone_is_no_interference_and_the_missing_measurement_is_named():
    diagnosis = diagnosis_of("decode-*")
    found = verdicts(diagnosis)
    assert found["prefill_interference"] in (REFUTED, UNDETERMINED)
    assert found["kv_exhaustion"] is REFUTED
    assert found["engine_hung"] is REFUTED
    missing = judgement(diagnosis, "prefill_interference").missing
    assert "--enable-logging-iteration-details" in missing[0].command
    assert diagnosis.primary is None


def test_mixed_load_by_metrics_alone_is_not_decided():
    """vLLM's metrics book no prompt before its prefill has ended: interference by them would be a guess."""
    found = verdicts(diagnosis_of("mixed-*"))
    assert found["prefill_interference"] is UNDETERMINED
    assert SUPPORTED not in {verdict for name, verdict in found.items() if name != "expected_reservation"}


def test_the_iteration_lines_decide_it():
    diagnosis = diagnosis_of("engine-main.log.gz")
    assert verdicts(diagnosis)["prefill_interference"] is SUPPORTED
    assert diagnosis.primary == "prefill_interference"
    assert "vLLM's iteration lines" in {item.source for item in judgement(diagnosis, "prefill_interference").evidence}


def test_exhaustion_is_seen_before_the_counter_moves():
    """Pages 1 to 6: four requests are preempted, and vllm:num_preemptions_total still reads 0."""
    diagnosis = diagnosis_of("kv_pressure-[1-6]*")
    found = verdicts(diagnosis)
    assert (found["kv_exhaustion"], found["preemption_storm"]) == (SUPPORTED, SUPPORTED)
    assert found["expected_reservation"] is REFUTED
    counter = diagnosis.case.signals.counters["preemptions"]
    assert counter.delta == 4
    assert "the engine's own counter lags and says 0" in counter.coverage
    assert any("lags and says 0" in item.coverage for item in judgement(diagnosis, "kv_exhaustion").evidence)


def test_the_two_first_pages_alone_refute_no_storm():
    """A full pool, nobody waits yet: nothing is claimed either way that pages 3 to 6 would take back."""
    found = verdicts(diagnosis_of("kv_pressure-[1-3]*"))
    assert found["kv_exhaustion"] is SUPPORTED
    found = verdicts(diagnosis_of("kv_pressure-[12]*"))
    assert found["kv_exhaustion"] is UNDETERMINED


def test_after_the_load_nothing_is_exhausted():
    """Usage counts live requests only: it reads 0 while 30 of 32 blocks hold cached content."""
    found = verdicts(diagnosis_of("kv_after-*", "kv_after-*"))
    assert found["kv_exhaustion"] is REFUTED
    assert found["kv_leak"] is REFUTED


def test_the_log_of_the_tiny_pool_shows_recompute():
    """Resumed requests are booked as generation tokens: more tokens than requests is recompute."""
    diagnosis = diagnosis_of("engine-kv.log.gz")
    found = verdicts(diagnosis)
    assert (found["kv_exhaustion"], found["preemption_storm"]) == (SUPPORTED, SUPPORTED)
    assert (diagnosis.case.signals.delta("tokens_recompute") or 0) > 700


def test_a_log_beside_pages_gives_what_they_lack():
    observation = seen("kv_pressure-*", "engine-kv.log.gz")
    signals, contradictions = assemble(observation, DEFAULT_POLICY)
    assert contradictions == []
    assert signals.dialect == "vllm + vllm log"
    assert signals.last("max_sequences") == 16
    assert signals.last("max_batched_tokens") == 512
    assert signals.info["version"] == "0.32.0"
    assert signals.gauges["running"].source == "vllm:num_requests_running"
    assert "step_decode" in signals.histograms
    assert [line.split(": ")[-1] for line in signals.sources] == [
        "10 periodic lines, 293 step lines, 1 events, 10 settings",
        "7 metrics pages of vllm (0.32 or later, by their names)",
    ]


def test_what_the_pool_is_and_what_usage_counts():
    signals = assemble(seen("kv_pressure-*"), DEFAULT_POLICY).signals
    assert signals.usage is Usage.ACTIVE
    assert (signals.last("pool_blocks"), signals.last("block_size")) == (33, 32)
    assert signals.info["prefix_cache"] == "true"
    assert signals.info["model"] == "smol"
    assert "cached blocks that nobody uses count as free" in signals.gauges["pool_usage"].coverage


# ---- names by version

TABLE_ROWS = {
    "0.6": 'vllm:num_requests_swapped{model_name="m"} 0\nvllm:gpu_cache_usage_perc{model_name="m"} 0.5\n',
    "0.8": 'vllm:gpu_cache_usage_perc{engine="0"} 0.5\nvllm:gpu_prefix_cache_queries_total{engine="0"} 8\n',
    "0.10": 'vllm:gpu_cache_usage_perc{engine="0"} 0.5\nvllm:kv_cache_usage_perc{engine="0"} 0.5\n',
    "0.12": 'vllm:kv_cache_usage_perc{engine="0"} 0.5\n',
}


@pytest.mark.parametrize("page", TABLE_ROWS.values(), ids=TABLE_ROWS.keys())
def test_usage_is_found_under_each_of_its_names(page):
    rest = "vllm:num_requests_running 2\nvllm:generation_tokens_total 5\n"
    assert signals_of(page + rest, page + rest).last("pool_usage") == 0.5


@pytest.mark.parametrize(
    ("page", "versions"),
    [
        ("vllm:num_requests_swapped 0\n", "0.9 or earlier"),
        ("vllm:gpu_cache_usage_perc 0\nvllm:kv_cache_usage_perc 0\n", "0.10.1 to 0.11"),
        ("vllm:engine_sleep_state 0\nvllm:time_per_output_token_seconds_bucket{le=\"+Inf\"} 0\n", "0.12 to 0.13"),
        ("vllm:num_requests_waiting_by_reason 0\n", "0.24 or later"),
        ("vllm:num_requests_running 0\n", ""),
    ],
)  # fmt: skip
def test_the_version_shows_in_the_names(page, versions):
    assert VLLM.versions(PageView(ExpositionParser().parse(page))) == versions


@pytest.mark.parametrize(
    "spelling",
    ["vllm:{}", "vllm_{}", "ray_vllm:{}", "ray_vllm_{}"],
)
@pytest.mark.parametrize("total", ["_total", ""])
def test_spellings_of_exporters_are_one(spelling, total):
    def page(tokens: int) -> str:
        return (
            f"{spelling.format('generation_tokens')}{total} {tokens}\n{spelling.format('num_requests_running')} 3\n"
            f"{spelling.format('generation_tokens')}_created 1.7e9\n"
        )

    signals = signals_of(page(10), page(25))
    assert signals.dialect == "vllm"
    assert signals.delta("tokens_decode") == 15
    assert signals.last("running") == 3


def test_several_engines_add_up_but_shares_do_not():
    def page(tokens: int) -> str:
        return "".join(
            f'vllm:num_requests_running{{engine="{e}"}} {e + 1}\nvllm:kv_cache_usage_perc{{engine="{e}"}} 0.{e + 6}\n'
            f'vllm:generation_tokens_total{{engine="{e}"}} {tokens}\n'
            f'vllm:cache_config_info{{engine="{e}",num_gpu_blocks="100",block_size="16"}} 1\n'
            for e in (0, 1)
        )

    signals = signals_of(page(10), page(20))
    assert signals.last("running") == 3
    assert signals.delta("tokens_decode") == 20
    assert signals.last("pool_usage") == 0.7, "the fullest engine, not 1.3"
    assert (signals.last("pool_blocks"), signals.last("block_size")) == (200, 16)


def test_texts_that_are_no_numbers_are_no_values():
    page = 'vllm:cache_config_info{num_gpu_blocks="None",block_size="16"} 1\nvllm:generation_tokens_total 1\n'
    signals = signals_of(page, page)
    assert "pool_blocks" not in signals.gauges
    assert "kv_blocks" not in signals.info


# ---- what its metrics do not mean


def page(**values: float) -> str:
    lines = {
        "vllm:num_requests_running": 2, "vllm:num_requests_waiting": 0, "vllm:kv_cache_usage_perc": 0.3,
        "vllm:generation_tokens_total": 0, "vllm:prompt_tokens_total": 0, "vllm:num_preemptions_total": 0,
        'vllm:request_success_total{finished_reason="stop"}': 0,
    }  # fmt: skip
    lines |= {f"vllm:{name}": value for name, value in values.items()}
    return "".join(f"{name} {value}\n" for name, value in lines.items())


def judged(*pages: str) -> Diagnosis:
    entries = [Entry(1000.0 + 10 * index, "exposition", text) for index, text in enumerate(pages)]
    return judge(observe("t", entries), None, (), is_live=False, target="t")


def test_no_booked_prompt_is_no_proof_that_none_ran():
    growing = judged(page(), page(generation_tokens_total=50, kv_cache_usage_perc=0.6))
    assert verdicts(growing)["prefill_interference"] is UNDETERMINED
    empty = judged(page(num_requests_running=0), page(num_requests_running=0))
    assert verdicts(empty)["prefill_interference"] is REFUTED, "nothing ran at either scrape"


def test_no_booked_preemption_is_no_proof_beside_a_full_pool():
    full = judged(
        page(kv_cache_usage_perc=1.0, num_requests_waiting=3),
        page(kv_cache_usage_perc=1.0, num_requests_waiting=3, generation_tokens_total=50),
    )
    assert verdicts(full)["preemption_storm"] is UNDETERMINED
    roomy = judged(page(), page(generation_tokens_total=50))
    assert verdicts(roomy)["preemption_storm"] is REFUTED


def test_clients_that_leave_are_not_taken_for_preempted():
    """Running falls, nothing finishes, and nobody waits: aborted, not preempted."""
    signals = signals_of(page(num_requests_running=8), page(num_requests_running=2, generation_tokens_total=9))
    assert signals.delta("preemptions") == 0


def test_aborts_are_no_failures_and_errors_are():
    def of(reason: str) -> str:
        return page() + f'vllm:request_success_total{{finished_reason="{reason}"}} '

    aborted = signals_of(of("abort") + "0\n", of("abort") + "5\n")
    assert aborted.failures == {"request_error": 0}
    failed = signals_of(of("error") + "0\n", of("error") + "5\n")
    assert failed.failures == {"request_error": 5}


def test_sampled_block_times_are_no_evictions():
    def of(count: int) -> str:
        return (
            page()
            + "".join(f'vllm:kv_block_lifetime_seconds_bucket{{le="{le}"}} {count}\n' for le in ("1", "+Inf"))
            + f"vllm:kv_block_lifetime_seconds_sum {count}\n"
        )

    signals = signals_of(of(0), of(86))
    assert "evictions" not in signals.counters
    assert "not evictions" in signals.histograms["block_residency"].coverage


def test_a_frozen_page_is_not_a_hung_engine():
    """During a step of 7 s all pages are alike; only a window longer than any sane step tells."""
    same = page(generation_tokens_total=50)
    assert verdicts(judged(same, same))["engine_hung"] is UNDETERMINED
