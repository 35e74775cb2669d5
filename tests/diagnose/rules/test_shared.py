"""What rules share, from both sides of each condition: the pool's occupancy, prompt tokens per request, and commands."""

from dataclasses import replace
from typing import Any

import pytest

from diagnose.case import Case
from diagnose.dialects.base import Usage
from diagnose.hypotheses import base
from diagnose.hypotheses.pool import amount_text, bucket_text, occupancy
from diagnose.hypotheses.prefill_work import prefill_work, say_prefill_work
from diagnose.signals import Signals
from diagnose.verdict import Argument, Verdict
from probes.records import BlockCensus
from tests.builders import make_signals
from tests.diagnose.rules.alone import make_case, said
from tests.probes.records import make_record


def buckets(active: Any, reclaimable: float | None, free: float | None, included: bool | None = False) -> Signals:
    named = {"blocks_active": active, "blocks_reclaimable": reclaimable, "blocks_free": free}
    gauges = {name: level for name, level in named.items() if level is not None}
    return make_signals(gauges=gauges, free_includes_reclaimable=included)


@pytest.mark.parametrize(
    ("signals", "expected"),
    [
        (buckets(20, 30, 50), (20, 20, 30, 50, 100)),
        (buckets((40, 20), 30, 50), (40, 20, 30, 50, 100)),
        (buckets(20, 30, 80, included=True), (20, 20, 30, 50, 100)),
        (buckets(20, 30, 30, included=True), (20, 20, 30, 0, 50)),
        (buckets(20, 30, 29, included=True), None),  # they contradict each other
        (buckets(20, 30, 50, included=None), None),
        (buckets(None, 30, 50), None),
        (buckets(20, None, 50), None),
        (buckets(20, 30, None), None),
        (buckets(0, 0, 0), None),
        (buckets(0, 0, 1), (0, 0, 0, 1, 1)),
        (buckets(0, 1, 0), (0, 0, 1, 0, 1)),
        (buckets(1, 0, 0), (1, 1, 0, 0, 1)),
    ],
)
def test_buckets(signals, expected):
    pool = occupancy(signals)
    found = None if pool is None else (pool.active_peak, pool.active, pool.reclaimable, pool.free, pool.total)
    assert found == expected
    if pool is not None:
        assert pool.is_split
        assert (pool.unit, pool.source, pool.series[-1]) == ("blocks", "x_blocks_active", pool.active)


@pytest.mark.parametrize(
    ("censuses", "peak"), [((BlockCensus(60, 0, 40), None), 60), ((BlockCensus(10, 0, 90),), 20), ((None,), 20)]
)
def test_step_records_see_peaks_between_the_samples(censuses, peak):
    signals = buckets(20, 30, 50)
    signals.steps = tuple(make_record(i, census=census) for i, census in enumerate(censuses))
    pool = occupancy(signals)
    assert pool is not None
    assert (pool.active_peak, pool.active) == (peak, 20)


def used(usage: Any, size: float | None, counts: Usage | None = Usage.ACTIVE, unit: str = "blocks") -> Signals:
    gauges = {"pool_usage": usage} | ({} if size is None else {f"pool_{unit}": size})
    return make_signals(gauges=gauges, usage=counts, pool_unit=unit)


@pytest.mark.parametrize(
    ("signals", "expected"),
    [
        (used((0.5, 0.25), 100), (50, 25, 100, "blocks", (50, 25))),
        (used(0.25, 100, unit="tokens"), (25, 25, 100, "tokens", (25,))),
        (used((0.5, 0.25), None), (0.5, 0.25, 1, "share", (0.5, 0.25))),
        (used(0.25, 0), (0.25, 0.25, 1, "share", (0.25,))),
        (used(0.25, 100, Usage.WITH_CACHED), None),
        (used(0.25, 100, None), None),
        (make_signals(usage=Usage.ACTIVE), None),
    ],
)
def test_a_usage_figure_tells_occupancy_where_it_counts_what_live_requests_hold(signals, expected):
    pool = occupancy(signals)
    found = None if pool is None else (pool.active_peak, pool.active, pool.total, pool.unit, pool.series)
    assert found == expected
    if pool is not None:
        assert not pool.is_split
        assert (pool.reclaimable, pool.free) == (None, None)


@pytest.mark.parametrize(
    ("signals", "text", "amount"),
    [
        (buckets(20, 30, 50), "20 active, 30 reclaimable, 50 free of 100 blocks", "1 blocks"),
        (used(0.25, 100), "25 % of 100 blocks active, the rest not split into reclaimable and free", "1 blocks"),
        (
            used(0.25, None),
            "25 % of the pool active, the rest not split into reclaimable and free",
            "100 % of the pool",
        ),
    ],
)
def test_occupancy_in_words(signals, text, amount):
    pool = occupancy(signals)
    assert pool is not None
    assert bucket_text(pool) == text
    assert amount_text(1, pool) == amount


def looked_up(queries: float | None, hits: float | None, queued: int | None = 10, first: int | None = None) -> Signals:
    """`queued` and `first`: requests that were started, by one histogram or the other."""
    counters = {"prefix_query_tokens": queries, "prefix_hit_tokens": hits}
    histograms = {"queue_time": queued, "time_to_first_token": first}
    return make_signals(
        counters={name: n for name, n in counters.items() if n is not None},
        histograms={name: {1.0: n} if n else {} for name, n in histograms.items() if n is not None},
    )


@pytest.mark.parametrize(
    ("signals", "expected"),
    [
        (looked_up(1000, 250), (75, 0.25)),
        (looked_up(1000, 0), (100, 0)),
        (looked_up(1000, 250, None, 5), (150, 0.25)),
        (looked_up(1000, 250, 10, 5), (75, 0.25)),
        (looked_up(1000, 250, 0), None),
        (looked_up(1000, 250, None), None),
        (looked_up(0, 0), None),
        (looked_up(None, 0), None),
        (looked_up(1000, None), None),
    ],
)
def test_prompt_tokens_left_to_compute_per_request(signals, expected):
    assert prefill_work(signals) == expected


@pytest.mark.parametrize(
    ("now", "before", "expected", "ends"),
    [
        (looked_up(1000, 350), looked_up(1000, 500), "refuted +1.3", "(baseline: 50 %)"),
        (looked_up(1000, 360), looked_up(1000, 500), "refuted .1.28", "(baseline: 50 %)"),
        (looked_up(2000, 1020), looked_up(1000, 500), "refuted +1.96", "more hits, and more prefill all the same"),
        (looked_up(2000, 1000), looked_up(1000, 500), "refuted +2", "(baseline: 50 %)"),
        (looked_up(1000, 600), looked_up(1000, 500), "refuted .0.8", "(baseline: 50 %)"),
        (looked_up(2000, 1500), looked_up(1000, 500), "refuted .1", "(baseline: 50 %)"),
        (looked_up(1000, 350), None, "refuted", None),
        (looked_up(1000, 350), looked_up(1000, 1000), "refuted", None),
        (looked_up(1000, None), looked_up(1000, 500), "refuted", None),
        (looked_up(1000, 350), looked_up(1000, None), "refuted", None),
    ],
)
def test_more_hits_can_go_with_more_prefill(now, before, expected, ends):
    argument = Argument()
    say_prefill_work(make_case(now, before), argument)
    assert said(argument.conclude(Verdict.REFUTED)) == expected
    if ends:
        assert argument.evidence[0].text.endswith(ends)


def of(dialect: str = "stallscope", live: bool = True, arguments: str | None = None, **fields: Any) -> Case:
    return replace(make_case(make_signals(dialect=dialect, **fields)), is_live=live, arguments=arguments)


LIVE = "stallscope diagnose http://127.0.0.1:8000 --window 60s"


@pytest.mark.parametrize(
    ("case", "topic", "expected"),
    [
        (of("vllm", advice={"limits": "ask"}), "limits", "# ask"),
        (of("unknown", advice={"steps": "look there"}), "steps", "# look there"),
        (of("unknown"), "steps", LIVE),
        (of("stallscope + vllm", advice={"steps": "ask"}), "steps", base.command_for(of(), "steps")),
        (of("stallscope + vllm", advice={"limits": "ask"}), "limits", "# ask"),
    ],
)
def test_how_to_get_a_topic(case, topic, expected):
    assert base.command_for(case, topic).endswith(expected)


def test_commands_name_the_target():
    assert "http://127.0.0.1:8000" in base.command_for(of(), "steps")
    assert "{" not in base.command_for(of(), "steps") + base.command_census(of())
    assert base.command_for(of("unknown"), "steps", "otherwise") == "otherwise"
    assert base.command_census(of("unknown", advice={"blocks": "x"})) == "# x"
    both = base.command_for(of("vllm", advice={"steps": "ask"}), "steps")
    alone = base.command_for(of("vllm"), "steps")
    assert both in (f"{alone}   # ask", "# ask")


@pytest.mark.parametrize(
    ("case", "serving", "command"),
    [
        (of(), True, "-d '{\"max_sequences\": 8}'"),
        (of("vllm"), False, "# start the server again with --max-num-seqs 8"),
        (of("unknown"), False, "# start the server again with max_sequences 8"),
    ],
)
def test_a_limit_is_set_while_serving_or_with_the_next_start(case, serving, command):
    assert base.set_while_serving(case) == serving
    assert base.set_knob(case, "max_sequences", 8).endswith(command)
    assert base.set_knob(case, "max_sequences", None).endswith(command.replace("8", "N"))


@pytest.mark.parametrize(("length", "window"), [(600, "30m"), (601, "31m"), (620, "31m"), (1200, "60m"), (None, "30m")])
def test_a_longer_look_at_a_prometheus_is_three_times_the_window(length, window):
    case = of(arguments="--prometheus URL", length_seconds=length)
    assert base.command_live(case) == f"stallscope diagnose --prometheus URL --window {window}"


@pytest.mark.parametrize(
    ("case", "expected"),
    [
        (of("unknown"), LIVE),
        (of("unknown", live=False), "stallscope record http://127.0.0.1:8000 --for 60s"),
        (of("unknown", live=False, advice={"steps": "ask"}), "# ask"),
        (of(is_traced=True, num_scrapes=0), "curl -X POST http://127.0.0.1:8000/start_profile"),
        (of("unknown", is_traced=True, num_scrapes=1), LIVE),
        (of("unknown", is_traced=False, num_scrapes=0), LIVE),
    ],
)
def test_how_to_get_step_records(case, expected):
    assert base.command_records(case).startswith(expected)


def test_a_look_at_the_host_takes_its_process():
    assert base.command_host(of()).startswith("stallscope diagnose http://127.0.0.1:8000 --pid PID")
