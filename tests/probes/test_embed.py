"""An engine of somebody else with our probes: the documented example as it stands, and what each call makes of it."""

import importlib
import json
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from probes.embed import EngineProbes
from probes.records import BlockCensus, StepKind

ROOT = Path(__file__).resolve().parent.parent.parent


class Clock:
    def __init__(self) -> None:
        self.now_ns = 1_000

    def __call__(self) -> int:
        return self.now_ns


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    for name in ("probes.embed.perf_counter_ns", "probes.embed.thread_time_ns"):
        monkeypatch.setattr(name, clock)
    return clock


def make_probes(**over: Any) -> EngineProbes:
    return EngineProbes(model="toy", version="1", max_batched_tokens=64, max_sequences=4, **over)


def run_step(probes, clock, decodes=(), prefills=None, emitted=(), finished=None, took=100, **scheduled) -> None:
    probes.step_begins()
    clock.now_ns += 10
    probes.scheduled(decodes, prefills or {}, **scheduled)
    clock.now_ns += took
    probes.emitted(emitted)
    clock.now_ns += 5
    probes.step_ends(finished)


def records(probes: EngineProbes):
    return probes.recorder.steps_since(0).records


def test_a_request_from_arrival_to_its_trace(clock):
    probes = make_probes()
    probes.arrived("a", 20)
    clock.now_ns += 100
    run_step(probes, clock, prefills={"a": 16})
    run_step(probes, clock, prefills={"a": 4}, emitted=["a"])
    run_step(probes, clock, decodes=["a"], emitted=["a"], finished={"a": "length"})
    first, second, third = records(probes)
    assert [record.kind for record in (first, second, third)] == [StepKind.PREFILL, StepKind.PREFILL, StepKind.DECODE]
    assert (first.prefill_tokens, second.prefill_tokens, third.decode_context_tokens) == (16, 4, 21)
    assert (first.prefill_attention_pairs, second.prefill_attention_pairs) == (16 * 17 // 2, 4 * 16 + 10)
    assert [record.num_regular_gaps for record in (first, second, third)] == [0, 0, 1]
    assert (third.schedule_ns, third.forward_ns, third.postprocess_ns, third.host_gap_ns) == (10, 100, 5, 0)
    assert (second.num_running, third.num_running, third.num_waiting) == (1, 1, 0)
    assert (probes.snapshot().num_running, probes.snapshot().num_waiting) == (0, 0)
    (trace,) = probes.recorder.traces_since(0).traces
    assert (trace.first_scheduled_ns, trace.first_token_ns, trace.num_output_tokens) == (1110, 1325, 2)
    counters = probes.recorder.counters
    assert (counters.queue_time.sum_ns, counters.time_to_first_token.sum_ns) == (110, 325)
    assert (counters.e2e.count, counters.finished["length"], counters.probe_errors) == (1, 1, 0)


def test_a_preempted_request_computes_again_and_ends_a_late_gap(clock):
    probes = make_probes()
    for name in "ab":
        probes.arrived(name, 10)
    run_step(probes, clock, prefills={"a": 10, "b": 10}, emitted=["a", "b"])
    run_step(probes, clock, decodes=["b"], emitted=["b"], preempted=["a"])
    run_step(probes, clock, decodes=["b"], prefills={"a": 11}, emitted=["a", "b"])
    preempting, recomputing = records(probes)[1:]
    assert (preempting.num_preempted, preempting.num_running, preempting.num_waiting) == (1, 1, 1)
    assert (recomputing.recomputed_tokens, recomputing.prefill_tokens, recomputing.kind) == (10, 1, StepKind.MIXED)
    assert (recomputing.num_regular_gaps, len(recomputing.late_gaps_ns)) == (1, 1)
    assert recomputing.late_gaps_ns[0] == recomputing.emit_ns - records(probes)[0].emit_ns


def test_cached_tokens_are_no_work(clock):
    probes = make_probes(census=lambda: BlockCensus(1, 2, 3))
    probes.arrived("a", 100)
    run_step(probes, clock, prefills={"a": 20}, cached={"a": 80}, emitted=["a"])
    (record,) = records(probes)
    assert (record.prefill_tokens, record.cached_tokens, record.census) == (20, 80, (1, 2, 3))
    assert record.prefill_attention_pairs == 20 * 80 + 210
    assert (probes.snapshot().prefix_query_tokens, probes.snapshot().prefix_hit_tokens) == (100, 80)


def test_the_parts_of_a_step_add_up(clock):
    probes = make_probes()
    schedule = probes.lock.site("schedule")
    probes.arrived("a", 1)
    probes.step_begins()
    with schedule:
        clock.now_ns += 7
    probes.scheduled([], {"a": 1}, site=schedule)
    clock.now_ns += 3
    probes.prepared()
    clock.now_ns += 50
    probes.computed()
    clock.now_ns += 4
    probes.emitted(["a"])
    clock.now_ns += 2
    probes.step_ends(deferral="kv_blocks")
    (record,) = records(probes)
    parts = (record.schedule_ns, record.prepare_ns, record.forward_ns, record.sample_ns, record.postprocess_ns)
    assert parts == (7, 3, 50, 4, 2)
    assert (record.lock_hold_ns, record.lock_wait_ns, record.end_ns - record.start_ns) == (7, 0, 66)
    assert (record.deferral, record.num_deferred, record.host_gap_ns) == ("kv_blocks", 1, None)


@pytest.mark.parametrize(("on_thread", "expected"), [(True, 100), (False, None)])
def test_cpu_time_is_told_where_it_means_something(clock, on_thread, expected):
    """A thread that waits for a GPU uses no processor, and lacks none."""
    probes = make_probes(computes_on_thread=on_thread)
    probes.arrived("a", 1)
    run_step(probes, clock, prefills={"a": 1}, emitted=["a"])
    assert records(probes)[0].forward_cpu_ns == expected


def test_idle_time_is_no_host_gap(clock):
    probes = make_probes()
    probes.arrived("a", 1)
    run_step(probes, clock, prefills={"a": 1}, emitted=["a"])
    clock.now_ns += 30
    run_step(probes, clock, decodes=["a"], emitted=["a"])
    probes.idle()
    clock.now_ns += 1000
    run_step(probes, clock, decodes=["a"], emitted=["a"])
    assert [record.host_gap_ns for record in records(probes)] == [None, 30, None]


def test_requests_that_end_otherwise_and_failures_are_counted(clock):
    probes = make_probes()
    probes.arrived("a", 1)
    probes.aborted("a")
    probes.aborted("never heard of")
    probes.failed("oom")
    counters = probes.recorder.counters
    assert (counters.finished["abort"], counters.failures["oom"], counters.probe_errors) == (1, 1, 0)


FAULTS = {
    "arrived": lambda probes: probes.arrived([], 1),
    "scheduled": lambda probes: probes.scheduled(["unknown"], {}),
    "emitted": lambda probes: probes.emitted(["unknown"]),
    "step_ends": lambda probes: probes.step_ends({"unknown": "stop"}),
    "aborted": lambda probes: probes.aborted({}),
}


@pytest.mark.parametrize("call", FAULTS)
def test_a_misused_probe_never_raises_into_the_engine(call, caplog):
    probes = make_probes()
    probes.step_begins()
    for _ in range(3):
        FAULTS[call](probes)
    assert probes.recorder.counters.probe_errors == 3
    assert len(caplog.records) == 1, "told once, counted ever after"


def two_steps_of(probes, clock, second) -> None:
    """A step as it should be, `second`, and another as it should be."""
    probes.arrived("a", 1)
    run_step(probes, clock, prefills={"a": 1}, emitted=["a"])
    second()
    run_step(probes, clock, decodes=["a"], emitted=["a"])


def forgets_to_end(probes, clock):
    probes.step_begins()
    probes.scheduled(["a"], {})
    clock.now_ns += 1000
    probes.emitted(["a"])


def forgets_to_begin(probes, clock):
    probes.scheduled(["a"], {})
    probes.emitted(["a"])
    probes.step_ends()


def schedules_what_never_arrived(probes, clock):
    probes.step_begins()
    probes.scheduled(["a", "stranger"], {})
    probes.emitted(["a"])
    probes.step_ends()


def ends_the_forward_pass_after_its_tokens(probes, clock):
    probes.step_begins()
    probes.scheduled(["a"], {})
    probes.emitted(["a"])
    clock.now_ns += 5
    probes.computed()
    probes.step_ends()


def names_a_site_taken_elsewhere(probes, clock):
    site = probes.lock.site("elsewhere")
    with site:
        pass
    site.last_wait_ns = 10**9
    probes.step_begins()
    probes.scheduled(["a"], {}, site=site)
    probes.emitted(["a"])
    probes.step_ends()


@pytest.mark.parametrize(
    ("mistake", "says"),
    [
        (forgets_to_end, "the step before never ended"),
        (forgets_to_begin, "step_ends without step_begins"),
        (schedules_what_never_arrived, "KeyError: 'stranger'"),
        (ends_the_forward_pass_after_its_tokens, "another order"),
        (names_a_site_taken_elsewhere, "was not taken between"),
    ],
)
def test_a_step_that_was_told_wrongly_leaves_no_record_and_the_log_says_what_is_wrong(clock, caplog, mistake, says):
    """Figures of hours, from a moment that nobody told, would drown the report of every other step."""
    probes = make_probes()
    two_steps_of(probes, clock, lambda: mistake(probes, clock))
    assert len(records(probes)) == 2
    for record in records(probes):
        assert record.postprocess_ns == 5, "what was told is as ever"
        assert record.host_gap_ns in (None, 0), "a step that was lost is nobody's host gap"
    assert probes.recorder.counters.probe_errors >= 1
    assert says in caplog.text


def begin(probes):
    probes.step_begins()
    probes.scheduled(["a"], {})


def test_steps_that_two_threads_tell_at_the_same_time_leave_no_record(clock, caplog):
    """One after the other is fine; within a step of one, the other would end it."""
    probes = make_probes()
    probes.arrived("a", 1)
    run_step(probes, clock, prefills={"a": 1}, emitted=["a"])
    with ThreadPoolExecutor(1) as other:
        other.submit(run_step, probes, clock, ["a"], emitted=["a"]).result()
        probes.step_begins()
        probes.idle()
        other.submit(run_step, probes, clock, ["a"], emitted=["a"]).result()
        assert (len(records(probes)), probes.recorder.counters.probe_errors) == (3, 0)
        other.submit(probes.step_begins).result()
        run_step(probes, clock, ["a"], emitted=["a"])
        assert "another thread is within a step" in caplog.text
        faults = probes.recorder.counters.probe_errors
        other.submit(begin, probes).result()
        probes.emitted(["a"])
        probes.step_ends()
        assert probes.recorder.counters.probe_errors == faults + 1
    assert len(records(probes)) == 3


def test_a_step_that_raised_is_given_up_without_a_fault(clock):
    probes = make_probes()

    def raises() -> None:
        probes.step_begins()
        probes.scheduled(["a"], {})
        clock.now_ns += 1000
        probes.failed("forward_error")

    two_steps_of(probes, clock, raises)
    counters = probes.recorder.counters
    assert (counters.failures["forward_error"], counters.probe_errors, len(records(probes))) == (1, 0, 2)


def test_a_step_with_nothing_to_compute_may_be_left(clock):
    probes = make_probes()

    def finds_nothing() -> None:
        probes.step_begins()
        probes.scheduled([], {})
        probes.idle()

    two_steps_of(probes, clock, finds_nothing)
    assert (probes.recorder.counters.probe_errors, len(records(probes))) == (0, 2)


def test_a_step_without_tokens_need_not_say_so(clock):
    """A chunk of a prompt that is not the last."""
    probes = make_probes(computes_on_thread=True)
    probes.arrived("a", 100)
    probes.step_begins()
    probes.scheduled([], {"a": 50})
    clock.now_ns += 70
    probes.step_ends()
    (record,) = records(probes)
    assert (record.emitted_tokens, record.forward_ns, record.forward_cpu_ns, record.postprocess_ns) == (0, 70, 70, 0)
    assert probes.recorder.counters.probe_errors == 0


def example() -> str:
    page = (ROOT / "docs" / "embedding.md").read_text(encoding="utf-8")
    return str(re.findall(r"```python\n(.*?)```", page, re.DOTALL)[0])


def test_the_documented_example_is_short():
    assert len(example().splitlines()) < 60


def test_the_documented_example_runs_and_is_diagnosed(tmp_path):
    """From the outside, as any other target: its long prompts delay the tokens of the others."""
    (tmp_path / "engine.py").write_text(example())
    engine = subprocess.Popen(
        [sys.executable, str(tmp_path / "engine.py"), "60"], stdout=subprocess.PIPE, text=True,
        env={"PYTHONPATH": str(ROOT), "PATH": ""},
    )  # fmt: skip
    try:
        assert engine.stdout is not None
        url = engine.stdout.readline().strip()
        assert url.startswith("http://127.0.0.1:")
        done = subprocess.run(
            [sys.executable, "-P", "-m", "diagnose.cli", "diagnose", url, "--window", "5s", "--format", "json"],
            env={"PYTHONPATH": str(ROOT), "PATH": ""}, capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip
        assert done.stdout, done.stderr
        report = json.loads(done.stdout)
        judged = report["verdicts"]["prefill_interference"]
        # On a machine that is busy otherwise the share that is the prompts' may not be most of it.
        assert judged["verdict"] in ("supported", "undetermined"), done.stdout
        assert "mixed steps take" in " ".join(item["text"] for item in judged["evidence"])
        assert report["account"]["p50"]["basis"] == "fitted", "from step records"
        assert "faults inside" not in " ".join(report["warnings"])
    finally:
        engine.kill()
        engine.wait()
        if engine.stdout is not None:
            engine.stdout.close()


def test_without_the_extra_the_import_says_what_brings_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    for module in ("probes.prometheus", "probes.embed_server"):
        monkeypatch.delitem(sys.modules, module, raising=False)
    with pytest.raises(ModuleNotFoundError, match=r"pip install 'stallscope\[embed\]'"):
        importlib.import_module("probes.embed_server")
