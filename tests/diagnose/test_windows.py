"""Window deltas: growth, resets, absences, restarts and time."""

import re

import pytest

from diagnose.dialects.stallscope import STALLSCOPE
from diagnose.errors import NotEnough, SourceError
from diagnose.observation import Observation, observe
from diagnose.signals import Signals
from diagnose.stats import Bounds
from probes.recording import Entry
from tests.builders import ENGINE_INFO, START_UNIX, Engine, build_signals, make_steps, with_prefill
from tests.probes.gpus import whole_gpu
from tests.probes.records import known

TOKENS = 'stallscope_tokens_total{{phase="decode"}} {}\n'
DECLARED = "# TYPE stallscope_tokens_total counter\n"
FAILED = 'stallscope_failures_total{{kind="oom"}} {}\n'


def look(*pages: str, step: float = 10.0) -> Signals:
    return build_signals(seen(*pages, step=step))


def seen(*pages: str, step: float = 10.0) -> Observation:
    entries = [Entry(START_UNIX + index * step, "exposition", page) for index, page in enumerate(pages)]
    return observe("t", entries)


def counted(*values: object) -> str | float | None:
    """Delta of decode tokens over pages with these values; None is a page that does not know the family."""
    pages = ["stallscope_max_sequences 1\n" + (TOKENS.format(v) if v is not None else "") for v in values]
    return look(*pages).delta("tokens_decode")


def test_a_counter_grows():
    assert counted(5, 7, 12) == 7


def test_a_reset_counts_what_came_after_it():
    assert counted(100, 130, 4, 10) == 30 + 4 + 6
    assert counted(100, 1, 50, 2) == 1 + 49 + 2, "two resets"


def test_a_restart_resets_every_counter_even_one_that_has_passed_its_old_value():
    """The new process was faster than the scrape: 100 -> 130 looks like growth of 30 and is growth of 130."""
    started = "stallscope_process_start_time_seconds {}\n"
    signals = look(started.format(50) + TOKENS.format(100), started.format(900) + TOKENS.format(130))
    assert signals.delta("tokens_decode") == 130
    pages = [
        started.format(start) + histogram("queue_time_seconds", *counts, total=sum(counts))
        for start, counts in ((50, (1, 2, 3)), (900, (4, 5, 6)))
    ]
    assert look(*pages).histograms["queue_time"].count == 6


def test_an_absent_page_is_no_reset():
    """A page without the family says nothing: neither zero nor a fall."""
    assert counted(100, None, 110) == 10
    assert counted(None, 100, 110) == 10, "what it held before it was first seen is not growth of this window"
    assert counted(100, 110, None) == 10
    assert counted(None, 100, None) is None
    assert counted(None, None) is None


def test_a_label_not_there_yet_started_from_zero():
    other = DECLARED + 'stallscope_tokens_total{phase="prefill"} 3\n'
    signals = look(other, other + TOKENS.format(8))
    assert signals.delta("tokens_decode") == 8
    assert signals.delta("tokens_prefill") == 0


def test_a_declared_family_without_samples_is_zero():
    assert look(DECLARED, DECLARED).delta("tokens_decode") == 0
    assert look(DECLARED, DECLARED).delta("preemptions") is None


@pytest.mark.parametrize("nonsense", ["NaN", "+Inf", "-Inf"])
def test_what_is_no_number_is_not_counted(nonsense):
    assert counted(5, nonsense, 9) == 4
    page = 'stallscope_requests{{state="running"}} {}\n'
    assert look(page.format(3), page.format(nonsense)).gauges["running"].values == (3.0,)


def test_failures_by_kind():
    """A kind that first appears was zero; a page that lacks the family altogether does not turn old failures into new ones."""
    declared = "# TYPE stallscope_failures_total counter\n"
    signals = look(declared, declared + FAILED.format(2))
    assert signals.failures == {"oom": 2}
    assert signals.delta("failures") == 2
    assert look(declared, declared).delta("failures") == 0
    assert look(FAILED.format(5), "stallscope_max_sequences 1\n", FAILED.format(5)).failures == {"oom": 0}
    assert look("stallscope_max_sequences 1\n", FAILED.format(5)).delta("failures") is None


def histogram(name: str, *counts: int, total: float) -> str:
    bounds = ("0.1", "1.0", "+Inf")
    lines = [f'stallscope_{name}_bucket{{le="{le}"}} {count}' for le, count in zip(bounds, counts, strict=True)]
    return "\n".join([*lines, f"stallscope_{name}_sum {total}", f"stallscope_{name}_count {counts[-1]}"]) + "\n"


ITL = "inter_token_latency_seconds"


def test_a_histogram_is_its_growth():
    window = look(histogram(ITL, 10, 12, 12, total=2), histogram(ITL, 20, 25, 26, total=30)).histograms[
        "inter_token_latency"
    ]
    assert window.counts == (10, 3, 1)
    assert window.mean == pytest.approx(2.0)
    assert window.quantile(0.5) == Bounds(0.0, 0.1)


def test_a_reset_of_a_histogram_resets_all_of_its_buckets():
    """Buckets that happen to have grown past their old count began again all the same."""
    window = look(histogram(ITL, 10, 10, 40, total=100), histogram(ITL, 12, 20, 20, total=9)).histograms[
        "inter_token_latency"
    ]
    assert window.counts == (12, 8, 0)
    assert window.sum == 9


def test_a_histogram_that_a_page_lacks_is_no_reset():
    page = histogram(ITL, 10, 12, 12, total=2)
    window = look(page, "stallscope_max_sequences 1\n", histogram(ITL, 11, 13, 13, total=3)).histograms[
        "inter_token_latency"
    ]
    assert window.count == 1
    assert "inter_token_latency" not in look("stallscope_max_sequences 1\n", page).histograms


def test_a_histogram_without_an_infinite_bucket_or_with_a_broken_bound_is_not_used():
    page = f'stallscope_{ITL}_bucket{{le="0.1"}} 1\nstallscope_{ITL}_sum 1\n'
    assert "inter_token_latency" not in look(page, page).histograms
    broken = f'stallscope_{ITL}_bucket{{le="soon"}} 1\n' + histogram(ITL, 1, 1, 1, total=1)
    assert "inter_token_latency" not in look(broken, broken).histograms
    nan = f'stallscope_{ITL}_bucket{{le="NaN"}} 1\n' + histogram(ITL, 1, 1, 1, total=1)
    assert "inter_token_latency" not in look(nan, nan).histograms


def test_buckets_that_only_some_pages_have_are_merged():
    """A server that was updated in the window may have other buckets: the common ones are followed."""
    before = histogram(ITL, 1, 2, 2, total=1)
    after = histogram(ITL, 2, 4, 5, total=4) + f'stallscope_{ITL}_bucket{{le="0.5"}} 3\n'
    window = look(before, after).histograms["inter_token_latency"]
    assert window.bounds == (0.1, 1.0)
    assert window.counts == (1, 1, 1)


def test_an_empty_histogram_has_no_quantile():
    page = histogram(ITL, 1, 1, 1, total=1)
    window = look(page, page).histograms["inter_token_latency"]
    assert window.quantile(0.5) is None
    assert window.mean is None


def test_a_restart_is_seen_and_says_how_many_were_running():
    engine, again = Engine(), Engine(start_unix=START_UNIX + 100)
    signals = look(engine.page(num_running=3), engine.page(num_running=5), again.page(num_running=0))
    assert signals.restarted
    assert signals.running_before_restart == 5
    assert not look(engine.page(), engine.page()).restarted


def test_a_jitter_of_the_start_time_is_no_restart():
    assert not look(Engine().page(), Engine(start_unix=START_UNIX + 0.5).page()).restarted


def test_one_page_has_levels_and_of_counters_only_what_never_happened():
    found = look(Engine().page())
    assert found.length_seconds is None
    assert found.gauges["running"].values
    assert {name: counter.delta for name, counter in found.counters.items()}.get("evictions") == 0
    assert "tokens_decode" not in found.counters


def test_no_page_has_no_window():
    with pytest.raises(NotEnough, match="0 scrape"):
        look()


def test_one_page_of_a_target_that_went_away_is_enough():
    observation = observe(
        "t", [Entry(START_UNIX, "exposition", Engine().page()), Entry(START_UNIX, "event", "x", "gone")]
    )
    assert build_signals(observation).num_scrapes == 1


def test_one_page_and_step_records_give_gauges_and_no_growth():
    engine = Engine()
    entries = [Entry(START_UNIX, "exposition", engine.page()), Entry(START_UNIX, "steps", engine.steps(make_steps(20)))]
    signals = build_signals(observe("t", entries))
    assert not [name for name, counter in signals.counters.items() if counter.delta]
    assert signals.worked is None
    assert signals.histograms == {}
    assert signals.last("blocks_active") == 40
    assert len(signals.steps) == 20


def test_scrapes_stay_in_the_order_in_which_they_came():
    """A scraper whose clock was set back must not make a growing counter fall."""
    entries = [
        Entry(START_UNIX, "exposition", TOKENS.format(5)),
        Entry(START_UNIX - 900, "exposition", TOKENS.format(8)),
    ]
    observation = observe("t", entries)
    assert observation.length_seconds is None
    signals = build_signals(observation)
    assert signals.delta("tokens_decode") == 3
    assert signals.rate("tokens_decode") is None


@pytest.mark.parametrize("unknown", [-1.0, float("nan"), float("inf")])
def test_without_times_there_are_ratios_but_no_rates(unknown):
    entries = [Entry(unknown, "exposition", TOKENS.format(5)), Entry(START_UNIX, "exposition", TOKENS.format(8))]
    signals = build_signals(observe("t", entries))
    assert signals.length_seconds is None
    assert signals.delta("tokens_decode") == 3
    assert signals.rate("tokens_decode") is None


def test_two_scrapes_at_one_time_have_no_rate():
    signals = look(TOKENS.format(1), TOKENS.format(2), step=0.0)
    assert signals.rate("tokens_decode") is None


def test_the_exporter_and_the_dialect_agree():
    """Every signal of the dialect is found on a page of the engine, with what was done."""
    engine = Engine(state={"info": ENGINE_INFO | {"role": "decode"}, "num_transferring": 0})
    records = make_steps(40, with_prefill(4, 200))
    before = engine.page(gpu=whole_gpu())
    engine.run(records)
    engine.requests(3, 0.2, 0.1)
    signals = look(before, engine.page(gpu=whole_gpu(), waiting_by_reason={"kv_blocks": 2}, num_waiting=2))
    assert set(signals.counters) == {*STALLSCOPE.counters, "failures"}
    assert set(signals.gauges) == set(STALLSCOPE.gauges) - {"working_set_blocks"}, "this engine measures no reuse"
    assert set(signals.histograms) == set(STALLSCOPE.histograms) - {"block_residency", "block_reuse", "ghost_age"}
    assert signals.delta("tokens_prefill") == sum(known(record).prefill_tokens for record in records)
    assert signals.histograms["step_mixed"].count == 10
    assert signals.histograms["queue_time"].mean == pytest.approx(0.1)
    assert signals.last("waiting_blocks") == 2
    assert signals.number("weight_bytes") == 1e6
    assert signals.number("model") is None


def test_step_records_of_two_engines_are_not_joined():
    old, new = Engine(engine_id="old"), Engine(engine_id="new")
    entries = [
        Entry(START_UNIX, "steps", old.steps(make_steps(5, first_id=10), lost=3)),
        Entry(START_UNIX + 1, "steps", new.steps(make_steps(4))),
        Entry(START_UNIX + 2, "steps", new.steps(make_steps(2, first_id=4))),
    ]
    observation = observe("t", entries)
    assert [record.step_id for record in observation.steps] == [0, 1, 2, 3, 4, 5]
    assert observation.steps_lost == 0
    assert "restarted" in observation.warnings[0]


def test_overlapping_reads_count_each_step_once():
    engine = Engine()
    text = engine.steps(make_steps(5), lost=2)
    observation = observe("t", [Entry(0, "steps", text), Entry(1, "steps", engine.steps(make_steps(8)))])
    assert [record.step_id for record in observation.steps] == list(range(8))
    assert observation.steps_lost == 2


def test_an_unreadable_first_page_is_an_error_and_a_later_one_is_evidence():
    with pytest.raises(SourceError, match="t: not a readable metrics page: line 1"):
        seen("<html>", TOKENS.format(1))
    observation = seen(TOKENS.format(1), "<html>", TOKENS.format(2))
    assert [event.kind for event in observation.events] == ["bad_answer"]
    assert build_signals(observation).delta("tokens_decode") == 1


@pytest.mark.parametrize("body", ["", "nonsense", '{"stallscope_steps":9}', '{"a":' * 9999, "9" * 5000])
def test_unreadable_step_records_are_one_error(body):
    with pytest.raises(SourceError, match="t: step records: "):
        observe("t", [Entry(0, "steps", body)])


def test_entries_of_an_unknown_kind_are_named():
    assert "'trace'" in observe("t", [Entry(0, "trace", "")]).warnings[0]


@pytest.mark.parametrize(
    "field", ['"late_gaps_ns":["soon"]', '"late_gaps_ns":null', '"census":{"active":"1","reclaimable":2,"free":3}']
)
def test_a_step_record_with_a_wrong_type_inside_is_one_error(field):
    header, line = Engine().steps(make_steps(1)).splitlines()
    name = field.partition(":")[0]
    value = re.search(name + r":(\[.*?\]|\{.*?\})", line)
    assert value is not None
    with pytest.raises(SourceError, match="t: step records: line 2"):
        observe("t", [Entry(0, "steps", header + "\n" + line.replace(value[0], field))])
