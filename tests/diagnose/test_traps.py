"""The traps of the method: situations in which a reasonable reader draws the wrong conclusion."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from diagnose.diagnosis import Diagnosis, diagnose
from diagnose.hypotheses.pool import occupancy
from diagnose.signals import Signals
from diagnose.slo import parse_slo
from probes.records import BlockCensus
from tests.builders import (
    Engine,
    Machine,
    Plan,
    make_signals,
    make_steps,
    varied,
    watch,
    with_prefill,
)
from tests.diagnose import cases
from tests.diagnose.cases import finding, look, texts, verdict
from tests.requirements import covers

BARE_GAUGES: dict[str, float | Sequence[float]] = {
    "device_memory_total": 100e9,
    "device_memory_reserved": 98e9,
    "running": (8.0, 8.0, 8.0),
}


def thrice_as_slow(**options) -> Diagnosis:
    """Scenario A: 98 % memory, 40 % hit rate, ITL three times the baseline's, histograms only."""
    incident = make_signals(
        counters={
            "tokens_decode": 4000,
            "tokens_prefill": 6000,
            "prefix_query_tokens": 10_000,
            "prefix_hit_tokens": 4000,
        },
        gauges=BARE_GAUGES,
        histograms={"inter_token_latency": {0.036: 3900, 0.25: 100}},
    )
    baseline = make_signals(gauges=BARE_GAUGES, histograms={"inter_token_latency": {0.012: 3900, 0.08: 100}})
    return diagnose(cases.TARGET, incident, baseline, is_live=True, **options)


@covers("S5.1", "S5.3", "S5.12")
def test_98_percent_memory_and_thrice_the_latency_without_an_objective_asks_to_measure():
    diagnosis = thrice_as_slow()
    assert diagnosis.case.itl_moved()
    assert diagnosis.decision.kind == "measure"
    assert diagnosis.exit_code == 3
    assert diagnosis.primary is None
    assert verdict(diagnosis, "kv_exhaustion") == "undetermined"
    explanations = ("prefill_interference", "scheduler_contention", "bandwidth_saturation", "expected_reservation")
    for name in explanations:
        assert verdict(diagnosis, name) == "undetermined"
        assert finding(diagnosis, name).judgement.missing, f"{name} names the measurement that decides"


@covers("S5.15")
def test_nothing_is_reconfigured_while_the_evidence_decides_nothing():
    """No command that changes anything, and no advice to shrink cache or concurrency."""
    decision = thrice_as_slow().decision
    advice = " ".join((decision.summary, *map(str, decision.steps), decision.trade)).lower()
    for word in ("-x post", "shrink", "lower", "halve", "restart", "fewer", "reduce"):
        assert word not in advice
    assert "before any configuration is changed" in decision.summary
    assert [step.text for step in decision.steps] == [
        "block buckets", "step durations by kind", "host scheduling and lock", "controlled comparison",
    ]  # fmt: skip


@covers("S5.2")
def test_reserved_memory_is_not_called_occupied():
    diagnosis = thrice_as_slow()
    assert "98 % of device memory is reserved" in texts(diagnosis, "expected_reservation")
    assert "only occupancy tells a reserved pool from a full one" in texts(diagnosis, "expected_reservation")


@covers("S5.14")
def test_thrice_the_latency_inside_an_absolute_objective_is_no_hard_failure():
    inside = thrice_as_slow(objectives=parse_slo("itl_p50=60ms"))
    assert verdict(inside, "hard_failure") != "supported"
    assert inside.decision.kind == "measure"
    assert inside.exit_code == 3


@covers("S5.11", "S5.12")
def test_a_breached_absolute_objective_contains_at_once():
    """The same telemetry, with an objective that it certainly breaks."""
    diagnosis = thrice_as_slow(objectives=parse_slo("itl_p50=20ms"))
    assert verdict(diagnosis, "hard_failure") == "supported"
    assert diagnosis.decision.kind == "contain"
    assert diagnosis.exit_code == 4
    steps = " ".join(map(str, diagnosis.decision.steps))
    assert "for 15 minutes" in steps
    assert "verify" in steps
    assert "undo" in steps
    assert "stays open" in diagnosis.decision.trade
    assert diagnosis.primary == "hard_failure", "the fact leads the page; what caused it stays open"


def test_an_objective_inside_the_bucket_is_open_not_breached():
    """p50 lies in (30, 50] ms: 40 ms may or may not be met. At 30 ms it certainly is not; at 50 ms it certainly is."""
    inside = thrice_as_slow(objectives=parse_slo("itl_p50=40ms"))
    assert verdict(inside, "hard_failure") == "undetermined"
    assert "the limit lies inside the bucket" in texts(inside, "hard_failure")
    assert inside.exit_code == 3
    assert verdict(thrice_as_slow(objectives=parse_slo("itl_p50=30ms")), "hard_failure") == "supported"
    assert "itl_p50=50ms" not in texts(thrice_as_slow(objectives=parse_slo("itl_p50=50ms")), "hard_failure")


def test_an_objective_judged_on_a_handful_of_samples_is_open_not_breached():
    """On fewer than 1/(1 - q) samples the quantile is the slowest one alone: no containment follows from that."""
    diagnosis = look(cases.queue(), slo="ttft_p99.99=1ms")
    assert verdict(diagnosis, "hard_failure") == "undetermined"
    assert "at least 10000 samples for ttft_p99.99=1ms" in texts(diagnosis, "hard_failure")


def test_a_changed_version_or_setting_is_said_before_anything_else():
    """Same load, other build: not a KV problem."""
    before, after = (
        cases.quiet(info={"version": "0.1.0", "kv_blocks": "600"}),
        cases.interference(info={"version": "0.2.0", "kv_blocks": "600"}),
    )
    diagnosis = look(after, before)
    assert diagnosis.warnings[0] == "changed since the baseline: build (version) 0.1.0 -> 0.2.0"
    assert not any("changed since" in text for text in look(cases.interference(), cases.quiet()).warnings)


@covers("S5.13")
def test_interference_in_breach_halves_the_budget_and_says_how_to_undo_it():
    diagnosis = look(cases.interference(), slo="itl_p99=20ms")
    assert diagnosis.exit_code == 4
    assert diagnosis.primary == "prefill_interference"
    decision = diagnosis.decision
    assert "2048 -> 1024" in decision.summary
    assert "15 minutes" in decision.summary
    act, verify, undo = map(str, decision.steps)
    assert '"max_batched_tokens": 1024' in act
    assert "--slo itl_p99=20ms" in verify
    assert undo.startswith("undo: ")
    assert '"max_batched_tokens": 2048' in undo


def test_an_objective_without_samples_is_open():
    diagnosis = look(cases.quiet(), slo="ttft_p95=2s")
    assert verdict(diagnosis, "hard_failure") == "undetermined"
    assert "samples for ttft_p95=2s" in texts(diagnosis, "hard_failure")


@covers("S5.16", "S8.6", "S8.7")
def test_a_rising_hit_rate_does_not_acquit_prefill():
    """Exercise 3: memory constant at 95 %, hits from 20 to 55 %, prompts from 256 to 2048 tokens, p99 ITL at least doubled."""
    memory = {**cases.HIGH_MEMORY, "reserved": 95 << 30}
    before = watch(
        make_steps(300, with_prefill(5, 256)),
        memory_bytes=memory,
        engine=Hits(query=256 * 60, hit=round(256 * 60 * 0.2)),
    )
    after = watch(
        make_steps(300, with_prefill(5, 2048)),
        memory_bytes=memory,
        engine=Hits(query=2048 * 60, hit=round(2048 * 60 * 0.55)),
    )
    diagnosis = look(after, before)
    now, then = diagnosis.case.incident, diagnosis.case.baseline
    assert then is not None
    assert hit_rate(now.signals) > 2 * hit_rate(then.signals)
    assert now.analysis.quantile(0.99) > 2 * then.analysis.quantile(0.99)
    assert diagnosis.primary == "prefill_interference"
    assert verdict(diagnosis, "kv_exhaustion") == "refuted"
    assert verdict(diagnosis, "cache_thrashing") != "supported", "95 % reserved says nothing of thrashing"
    assert "95 % of device memory is reserved" in texts(diagnosis, "expected_reservation")
    assert verdict(diagnosis, "prefill_interference") == "supported", "never confirmed by telemetry alone"
    assert diagnosis.exit_code == 1
    assert diagnosis.decision.kind == "experiment"
    assert "2048 with 512" in diagnosis.decision.summary
    assert any("random order" in step.text for step in diagnosis.decision.steps)
    assert any("undo" in step.text for step in diagnosis.decision.steps)


@covers("S8.10", "S9.4")
def test_prefill_work_is_counted_per_request_and_not_read_from_the_hit_rate():
    """256 x 0.8 = 204.8 prompt tokens per request before, 2048 x 0.45 = 921.6 now: 4.5 times the work at more hits."""

    def window(prompt: int, hit_rate: float) -> Signals:
        return make_signals(
            counters={
                "tokens_prefill": prompt * (1 - hit_rate) * 100,
                "prefix_query_tokens": prompt * 100,
                "prefix_hit_tokens": prompt * hit_rate * 100,
            },
            histograms={"queue_time": {0.01: 100}},
        )

    diagnosis = diagnose(cases.TARGET, window(2048, 0.55), window(256, 0.2), is_live=True)
    text = texts(diagnosis, "prefill_interference")
    assert "921.6 prompt tokens are computed per request, 4.5x the baseline's 204.8" in text
    assert "at a hit rate of 55 % (baseline: 20 %): more hits, and more prefill all the same" in text
    assert "first token" not in text, "a hit rate says nothing of a time to first token"
    changed = "changed since the baseline: prompt length 256 tokens -> 2048 tokens; prefix hit rate 20 % -> 55 %"
    assert diagnosis.warnings[0] == changed, "the load leads the page, beside version and settings"


@covers("S8.8")
def test_the_first_two_measurements_are_the_buckets_and_the_step_times():
    advised = [step.text for step in thrice_as_slow().decision.steps]
    assert advised[:2] == ["block buckets", "step durations by kind"]


class Hits(Engine):
    """Looked up and found prompt tokens grow with each page."""

    def __init__(self, query: int, hit: int) -> None:
        super().__init__()
        self.growth, self.pages = (query, hit), 0

    def page(self, **state):
        query, hit = self.growth
        text = super().page(prefix_query_tokens=query * self.pages, prefix_hit_tokens=hit * self.pages, **state)
        self.pages += 1
        return text


def hit_rate(signals: Signals) -> float:
    return signals.counters["prefix_hit_tokens"].delta / signals.counters["prefix_query_tokens"].delta


@covers("S5.7")
def test_mixed_steps_three_times_as_slow_support_and_do_not_confirm():
    """60 ms against 20 ms."""
    machine = Machine(base_us=20_000, per_sequence_us=0, per_context_ns=0, per_prefill_token_us=40, per_pair_ns=0)
    diagnosis = look(watch(make_steps(300, lambda i: replace(varied(i), prefill=1000 * (i % 5 == 4)), machine)))
    assert "mixed steps take 3.0x" in texts(diagnosis, "prefill_interference")
    assert verdict(diagnosis, "prefill_interference") == "supported"


@covers("S5.10")
@pytest.mark.parametrize(
    "situation", [cases.interference, cases.exhaustion, cases.slow_host, cases.queue, cases.long_contexts]
)
def test_telemetry_alone_confirms_nothing(situation):
    diagnosis = look(situation(), cases.short_contexts())
    assert all(f.verdict != "confirmed" for f in diagnosis.findings)
    assert diagnosis.decision.kind != "change"


@covers("S5.4")
def test_free_and_reclaimable_are_added_only_where_they_are_disjoint():
    """20 active, 60 reclaimable, and a free count of 80 that contains them, or of 20 that does not: the same pool of 100."""
    for includes, free in ((True, 80), (False, 20)):
        pool = occupancy(pool_signals(free, includes))
        assert pool is not None
        assert (pool.total, pool.free, pool.active_peak / pool.total) == (100, 20, 0.2)
    assert occupancy(pool_signals(80, None)) is None, "unknown: a sum would be a guess"


def test_a_pool_whose_counts_may_overlap_is_not_judged():
    diagnosis = diagnose("t", pool_signals(80, None))
    for name in ("kv_exhaustion", "expected_reservation"):
        assert verdict(diagnosis, name) == "undetermined"
        assert "whether free includes reclaimable" in texts(diagnosis, name)
    assert not diagnosis.protocol[0].done


def pool_signals(free: float, includes: bool | None):
    gauges: dict[str, float | Sequence[float]] = {
        "blocks_active": 20,
        "blocks_reclaimable": 60,
        "blocks_free": free,
        **BARE_GAUGES,
    }
    return make_signals(gauges=gauges, counters={"preemptions": 0}, free_includes_reclaimable=includes)


@covers("S5.2", "S5.5")
def test_substantial_reclaimable_and_free_blocks_refute_exhaustion():
    """20 active, 60 reclaimable, 20 empty at 98 % device memory: reservation, and nothing to do."""
    diagnosis = look(cases.quiet(census=cases.MOSTLY_FREE, memory_bytes=cases.HIGH_MEMORY), cases.quiet())
    assert verdict(diagnosis, "kv_exhaustion") == "refuted"
    assert verdict(diagnosis, "expected_reservation") == "supported"
    assert diagnosis.primary == "expected_reservation"
    assert diagnosis.decision.kind == "none"
    assert (
        "98 % is the configured pool (20 active, 60 reclaimable, 20 free of 100 blocks)" in diagnosis.decision.summary
    )
    assert diagnosis.exit_code == 0


def test_a_full_gauge_of_reclaimable_blocks_is_no_exhaustion():
    """No block is free, and 95 of 100 are reclaimable: all of them can be had."""
    diagnosis = look(cases.quiet(census=BlockCensus(5, 95, 0)))
    assert verdict(diagnosis, "kv_exhaustion") == "refuted"


def test_mirrored_control_true_exhaustion_is_called_so():
    diagnosis = look(cases.exhaustion(), cases.quiet())
    assert diagnosis.primary == "kv_exhaustion"
    assert verdict(diagnosis, "expected_reservation") == "refuted", "98 % memory, and really full"
    assert verdict(diagnosis, "prefill_interference") == "refuted"
    assert diagnosis.exit_code == 1


def test_mirrored_control_uniformly_slow_decode_is_bandwidth_not_interference():
    diagnosis = look(cases.long_contexts(), cases.short_contexts())
    assert diagnosis.primary == "bandwidth_saturation"
    assert verdict(diagnosis, "prefill_interference") == "refuted"
    assert verdict(diagnosis, "kv_exhaustion") == "refuted"


@covers("S0.2")
def test_a_prefill_stall_is_attributed_to_the_prefill_of_its_step():
    """4 decodes, and one 4096-token prompt computed whole in step 60: the four gaps that end there hold it, no other does."""

    def plan(index: int) -> Plan:
        return Plan(4, 4000, prefill=4096 if index == 60 else 0)

    diagnosis = look(watch(make_steps(90, plan)))
    slow = [gap for gap in diagnosis.case.analysis.gaps if gap.seconds > 0.05]
    assert [(gap.step.step_id, gap.tokens) for gap in slow] == [(60, 4)]
    account = diagnosis.account_p99
    assert account is not None
    assert max(account.parts, key=lambda name: account.parts[name]) == "prefill"
    assert verdict(diagnosis, "kv_exhaustion") == "refuted", "not memory"
