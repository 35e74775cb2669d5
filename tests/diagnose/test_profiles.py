"""From a trace to verdicts: kernels attached to their steps, completeness first, and what is not shown stays unmeasured."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from diagnose.commands.diagnose import judge
from diagnose.diagnosis import Diagnosis
from diagnose.kernel_profile import KernelProfile, late_launch_share
from diagnose.observation import Observation
from diagnose.policy import DEFAULT_POLICY
from diagnose.profile_completeness import incomplete_because
from diagnose.profile_steps import step_records
from diagnose.rank_skew import rank_skew
from diagnose.sources import trace
from diagnose.sources.trace import read_trace
from probes.kernel_patterns import KernelClass
from probes.records import StepKind
from tests.builders import make_steps, watch
from tests.diagnose.cases import finding, texts, verdict
from tests.requirements import covers
from tests.traces import (
    KV_WRITE,
    Step,
    Trace,
    decode,
    prefill_first,
    sglang_decode,
    steady,
    with_prefill,
)


@pytest.fixture
def profile_of(tmp_path):
    """What a trace of these steps is read as."""

    def read(steps: list[Step], *, name: str = "t.json", **over) -> KernelProfile:
        return read_trace(Trace(**over).run(steps).write(tmp_path / name))

    return read


def look(*profiles: KernelProfile, baseline: KernelProfile | None = None) -> Diagnosis:
    before = None if baseline is None else Observation("good.json", profiles=[baseline])
    now = Observation("t.json", profiles=list(profiles))
    return judge(now, before, (), is_live=False, target="t.json")


# ---- attaching


@pytest.mark.parametrize(
    "over",
    [
        {},
        {"device_annotations": False},
        {"host_annotations": False},
        {"with_cpu_ops": False},
    ],
    ids=["both", "by launch alone", "by device range alone", "no operators"],
)
@pytest.mark.parametrize("in_graph", [False, True])
def test_every_kernel_belongs_to_the_step_that_launched_it(profile_of, over, in_graph):
    found = profile_of(steady(20, in_graph=in_graph), **over)
    assert [step.num_kernels for step in found.steps] == [8 * 4 + 2] * 20
    assert [step.num_kv_writes for step in found.steps] == [4] * 20
    assert found.num_layers == 4
    assert (found.unattached_ns, found.num_lost_kernels) == (0, 0)
    assert sum(step.device_ns for step in found.steps) == found.device_ns
    assert incomplete_because(found, DEFAULT_POLICY) == []


def test_device_time_is_split_by_class(profile_of):
    found = profile_of([decode(8)] * 3, layers=2)
    step = found.steps[1]
    assert step.class_ns[KernelClass.KV_WRITE] == 2 * 3000
    assert step.class_ns[KernelClass.MEMCPY] == 1000
    assert step.end_ns - step.start_ns == pytest.approx(step.device_ns, abs=5)
    assert step.kv_write_tokens == 8


def test_the_header_names_rank_and_device(profile_of):
    found = profile_of(steady(4), rank=3)
    assert (found.rank, found.device) == (3, "NVIDIA H200")


@pytest.mark.parametrize(("idle", "late"), [(900.0, True), (0.0, False)])
def test_whether_the_host_launched_late(profile_of, idle, late):
    share = late_launch_share(profile_of(steady(20, idle_us=idle)))
    assert (share is not None and share > 0.9) is late


# ---- records


def test_records_hold_what_the_annotation_says_and_none_for_the_rest(profile_of):
    records = step_records(profile_of(with_prefill(40)))
    assert [r.step_id for r in records] == list(range(1, 39)), "the recording may have cut the first and the last"
    chunk = records[3]
    assert (chunk.kind, chunk.num_decode_seqs, chunk.num_prefill_seqs, chunk.prefill_tokens) == (
        StepKind.MIXED,
        6,
        1,
        800,
    )
    assert chunk.device_ns is not None
    assert chunk.device_ns.attention_mixed > 0, "one launch serves both phases"
    assert chunk.device_ns.attention_prefill == chunk.device_ns.attention_decode == 0
    plain = records[0]
    assert plain.device_ns is not None
    assert plain.device_ns.attention_decode > 0
    for name in ("census", "decode_context_tokens", "cached_tokens", "schedule_ns", "lock_wait_ns", "num_waiting"):
        assert getattr(plain, name) is None


def test_streams_keep_their_gaps_across_prefill_steps(profile_of):
    """decode 8 | prefill 1 | decode 9: one regular gap from the prompt's first token, eight late ones across it."""
    steps = [
        sglang_decode(8),
        sglang_decode(8),
        Step("step[EXTEND bs=1 toks=900]", 0, 900),
        sglang_decode(9),
        sglang_decode(9),
    ]
    records = step_records(profile_of(steps))
    assert [(r.num_regular_gaps, len(r.late_gaps_ns)) for r in records] == [(0, 0), (0, 0), (1, 8)]
    assert set(records[2].late_gaps_ns) == {records[2].emit_ns - records[0].emit_ns}


def test_decodes_of_a_mixed_step_that_counts_requests_only(profile_of):
    """SGLang's MIXED and vLLM 0.12: the streams of the step before go on, and the KV writes count the prompt's tokens."""
    steps = [sglang_decode(8)] * 3 + [Step("step[MIXED bs=9]", 8, 700), sglang_decode(9), sglang_decode(9)]
    record = step_records(profile_of(steps))[2]
    assert (record.kind, record.num_decode_seqs, record.num_prefill_seqs, record.prefill_tokens) == (
        StepKind.MIXED,
        8,
        1,
        700,
    )


def test_kernels_tell_the_phase_where_the_annotation_does_not(profile_of):
    """vLLM 0.12 counts a later chunk of a prompt as a cached request."""
    plain = Step("execute_new_0_cached_8", 8)
    chunk = Step("execute_new_0_cached_8", 7, 1200)
    records = step_records(profile_of([plain] * 4 + [chunk] + [plain] * 3))
    assert [record.kind for record in records] == [StepKind.DECODE] * 3 + [StepKind.MIXED] + [StepKind.DECODE] * 2
    assert records[3].num_decode_seqs == 7


def test_generation_tokens_beyond_the_sequences_are_a_prefill_computed_again(profile_of):
    """A preempted sequence has outputs, so that vLLM counts its prefill as generation."""
    again = Step("execute_context_0(0)_generation_8(607)", 7, 600)
    records = step_records(profile_of([decode(8)] * 6 + [again] + [decode(8)] * 3))
    assert (records[5].kind, records[5].num_decode_seqs, records[5].recomputed_tokens) == (StepKind.MIXED, 7, 600)


def test_speculation_is_not_taken_for_it(profile_of):
    step = Step("execute_context_0(0)_generation_8(32)", 8)
    records = step_records(profile_of([step] * 8))
    assert {(r.kind, r.num_decode_seqs, r.recomputed_tokens) for r in records} == {(StepKind.DECODE, 8, None)}


# ---- completeness first

DEFECTS: dict[str, tuple[dict[str, Any], str]] = {
    "a lost kernel in twenty": ({"skip_every": 20}, "launches have no kernel: the profiler dropped them"),
    "no KV writes": ({"skip_kernels": frozenset({KV_WRITE})}, "no kernel writes the KV cache"),
    "no annotations": ({"host_annotations": False, "device_annotations": False}, "no step is annotated"),
}


@pytest.mark.parametrize("name", list(DEFECTS))
def test_an_incomplete_profile_is_named_and_no_verdict_rests_on_it(profile_of, name):
    over, text = DEFECTS[name]
    diagnosis = look(profile_of(with_prefill(), **over))
    assert any("incomplete profile, not used" in w and text in w for w in diagnosis.warnings), diagnosis.warnings
    for hypothesis in ("prefill_interference", "scheduler_contention", "bandwidth_saturation", "collective_stall"):
        assert verdict(diagnosis, hypothesis) == "undetermined"
    assert "/start_profile" in texts(diagnosis, "scheduler_contention")


def test_kernels_of_unknown_names_make_it_incomplete(profile_of, monkeypatch):
    monkeypatch.setattr("tests.traces.GEMM", "frobnicate<int>")
    warnings = incomplete_because(profile_of(steady(20)), DEFAULT_POLICY)
    assert len(warnings) == 1
    assert "of the device time is in kernels of unknown names: frobnicate<int>" in warnings[0]


def test_missing_layers_show_in_the_kernels_of_a_step(profile_of):
    """Every other step lacks half of its layers, as where a buffer ran over."""
    found = profile_of(steady(30))
    for step in found.steps[::2]:
        step.num_kv_writes, step.num_kernels = 2, 15
    text = "; ".join(incomplete_because(found, DEFAULT_POLICY))
    assert "steps write the KV cache of fewer than 4 layers (of 2 in one): kernels are missing" in text
    assert "steps have under 16 kernels for 4 layers (one has 15)" in text


def test_a_graph_as_one_row_is_incomplete(profile_of):
    found = profile_of(steady(30))
    for step in found.steps:
        step.num_kernels = 1
    assert any("under 16 kernels" in text for text in incomplete_because(found, DEFAULT_POLICY))


def test_a_file_cut_off_is_incomplete(tmp_path):
    path = Trace().run(steady(60)).write(tmp_path / "t.json")
    path.write_bytes(path.read_bytes()[:-20_000])
    assert "the file is cut off after" in incomplete_because(read_trace(path), DEFAULT_POLICY)[0]


def test_the_reader_stops_at_its_limit(tmp_path, monkeypatch):
    monkeypatch.setattr(trace, "MAX_KERNELS", 100)
    found = read_trace(Trace().run(steady(60)).write(tmp_path / "t.json"))
    assert (found.num_kernels, found.is_cut_off) == (100, True)


def test_the_edges_of_a_recording_are_no_defect(profile_of):
    found = profile_of(steady(30))
    for step in (found.steps[0], found.steps[-1]):
        step.num_kernels = step.num_kv_writes = 0
    assert incomplete_because(found, DEFAULT_POLICY) == []


# ---- verdicts


@covers("S5.6", "S5.7", "S2.15")
def test_interference_shows_in_mixed_against_pure_decode_steps(profile_of):
    diagnosis = look(profile_of(with_prefill()))
    assert diagnosis.primary == "prefill_interference"
    assert "a pure decode step of the same batch and context" in texts(diagnosis, "prefill_interference")
    assert verdict(diagnosis, "scheduler_contention") == "refuted"


def test_interference_of_an_engine_that_schedules_prefill_first(profile_of):
    diagnosis = look(profile_of(prefill_first()))
    assert diagnosis.primary == "prefill_interference"
    assert "streams that wait for a prefill step take" in texts(diagnosis, "prefill_interference")


def test_no_prefill_no_interference(profile_of):
    assert verdict(look(profile_of(steady())), "prefill_interference") == "refuted"


def test_a_late_host_shows_as_device_idle_between_steps(profile_of):
    diagnosis = look(profile_of(steady(idle_us=900)))
    assert diagnosis.primary == "scheduler_contention"
    said = texts(diagnosis, "scheduler_contention")
    assert "the next step had not been launched yet" in said
    assert "lock_wait" not in said, "what was not measured is not stated"


def test_bandwidth_needs_what_a_trace_does_not_show(profile_of):
    slow = [replace(step, slow=2.0) for step in steady()]
    diagnosis = look(profile_of(slow), baseline=profile_of(steady(), name="good.json"))
    assert verdict(diagnosis, "bandwidth_saturation") == "undetermined"
    assert "bytes per step" in texts(diagnosis, "bandwidth_saturation")


def test_bandwidth_is_judged_where_contexts_are_annotated_and_the_geometry_is_known(profile_of):
    """2 MB of weights and 2.3 MB of KV in 0.45 ms: 9.5 GB/s, where the engine's page states a ceiling of 10."""

    def run(slow: float, name: str) -> Observation:
        steps = [
            Step(
                f"execute_8_context_0(sq0sk0sqsq0sqsk0)_generation_8(sq8sk{2000 + 10 * i}sqsq8sqsk{2000})", 8, slow=slow
            )
            for i in range(60)
        ]
        info = {"weight_bytes": "2000000", "kv_bytes_per_token": "1000"}
        observation = watch(make_steps(60), show_records=False, info=info)
        observation.profiles = [profile_of(steps, name=name)]
        return observation

    diagnosis = judge(run(1.0, "t.json"), run(0.5, "good.json"), (), is_live=False, target="t.json")
    said = texts(diagnosis, "bandwidth_saturation")
    assert "of a pure decode step grows with context" in said
    assert "weights and KV at 9.5 GB/s, 95 % of the ceiling" in said
    assert verdict(diagnosis, "bandwidth_saturation") == "supported", said


@pytest.mark.parametrize("kind", ["vllm", "sglang"])
def test_a_report_says_that_times_are_the_devices(profile_of, kind):
    diagnosis = look(profile_of(steady() if kind == "vllm" else [sglang_decode(8)] * 30))
    assert any("end of their step on the device" in warning for warning in diagnosis.warnings)
    assert diagnosis.case.signals.dialect == "torch trace"


# ---- collectives


def test_without_collectives_there_is_none_to_stall(profile_of):
    assert verdict(look(profile_of(steady())), "collective_stall") == "not_applicable"


def test_one_rank_cannot_tell_transfer_from_waiting(profile_of):
    diagnosis = look(profile_of(steady(comm_us=60)))
    assert verdict(diagnosis, "collective_stall") == "undetermined"
    assert "a trace of every rank" in texts(diagnosis, "collective_stall")


def test_short_collectives_stall_nobody(profile_of):
    assert verdict(look(profile_of(steady(comm_us=3))), "collective_stall") == "refuted"


def test_the_rank_with_the_shortest_collectives_is_the_late_one(profile_of):
    ranks = [
        profile_of(steady(comm_us=us), rank=rank, name=f"rank{rank}.json") for rank, us in enumerate((90, 90, 8, 90))
    ]
    diagnosis = look(*ranks)
    assert verdict(diagnosis, "collective_stall") == "supported"
    assert "for the slowest, rank 2, whose collectives are the shortest" in texts(diagnosis, "collective_stall")


def test_long_collectives_on_every_rank_are_the_link(profile_of):
    ranks = [profile_of(steady(comm_us=60), rank=rank, name=f"rank{rank}.json") for rank in range(2)]
    diagnosis = look(*ranks)
    assert verdict(diagnosis, "collective_stall") == "supported"
    assert "what holds them is the transfer" in texts(diagnosis, "collective_stall")


@pytest.mark.parametrize("later", [0, 3])
def test_ranks_are_matched_by_annotation_and_time(profile_of, later):
    """Profilers start a few steps apart, and steps of a steady batch look alike. Which rank is late alternates here: matched to
    the wrong step it would seem that nobody waits, or everybody."""
    first = [decode(8, comm_us=60.0 if i % 2 else 10.0, idle_us=100.0 if i % 2 else 300.0) for i in range(40)]
    second = [decode(8, comm_us=10.0 if i % 2 else 60.0, idle_us=300.0 if i % 2 else 100.0) for i in range(40)]
    one = profile_of(first, rank=0, name="a.json")
    two = profile_of(second, rank=1, name="b.json")
    two.steps = two.steps[later:]
    found = rank_skew([one, two])
    assert found is not None
    assert found.steps == 40 - later
    assert found.wait_share == pytest.approx(0.5 * 4 * 50 / 692, rel=0.02)
    one.base_ns = None
    assert rank_skew([one, two]) is not None, "without a clock the longest overlap counts"


def test_data_parallel_ranks_are_not_compared(profile_of):
    one = profile_of(steady(40, comm_us=60), rank=0, name="a.json")
    other = profile_of([decode(30 + i) for i in range(40)], rank=1, name="c.json")
    assert "whose collectives" not in texts(look(one, other), "collective_stall")


def test_stalls_made_of_collectives_name_them(profile_of):
    """Every tenth step one rank comes late, and the others spin."""
    steps = [decode(8, comm_us=400.0 if i % 10 == 5 else 5.0) for i in range(60)]
    diagnosis = look(profile_of(steps))
    assert finding(diagnosis, "collective_stall").is_supported
    assert diagnosis.primary == "collective_stall"


def test_a_trace_of_our_engine_on_the_cpu_says_what_to_turn_on(tmp_path: Path):
    """torch's own profiler, on the tiny model: operators and no device kernels."""
    torch = pytest.importorskip("torch")
    from tests.engine.test_step_split import record_steps

    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler:
        record_steps()
    path = tmp_path / "engine.json"
    profiler.export_chrome_trace(str(path))
    found = read_trace(path)
    assert found.num_events > 1000
    assert not found.is_cut_off
    diagnosis = look(found)
    assert "it holds no device kernels: record with ProfilerActivity.CUDA" in " ".join(diagnosis.warnings)
    assert verdict(diagnosis, "prefill_interference") == "undetermined"
