"""The account: exclusive parts that add up, against engines whose composition is known."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from diagnose.account import PARTS, Gap, StepAnalysis, analyse_steps, excess_parts, mixed_ratio, typical_floor
from diagnose.observation import observe
from diagnose.policy import DEFAULT_POLICY
from diagnose.stats import median
from probes.recording import Entry
from probes.records import StepRecord
from tests.builders import (
    MS,
    Engine,
    Machine,
    Plan,
    build_signals,
    constant,
    make_step,
    make_steps,
    varied,
    with_prefill,
)
from tests.probes.records import known
from tests.requirements import covers

MACHINE = Machine()
HOST_US = MACHINE.lock_us + MACHINE.schedule_us + MACHINE.prepare_us + MACHINE.postprocess_us + MACHINE.idle_us


def analyse(steps: list[StepRecord]) -> StepAnalysis:
    return analyse_steps(steps, DEFAULT_POLICY)


def part(gap: Gap, name: str) -> float:
    return gap.parts[PARTS.index(name)]


def assert_adds_up(analysis: StepAnalysis) -> None:
    for gap in analysis.gaps:
        assert sum(gap.parts) == pytest.approx(gap.seconds, abs=1e-9)
        assert min(gap.parts) >= -1e-9, dict(zip(PARTS, gap.parts, strict=True))


MACHINES = st.builds(
    Machine,
    base_us=st.floats(500, 8000),
    per_sequence_us=st.floats(0, 800),
    per_context_ns=st.floats(0, 500),
    lock_us=st.floats(0, 3000),
    idle_us=st.floats(0, 3000),
    unbooked_us=st.floats(0, 3000),
    slowdown=st.floats(1, 4),
    noise=st.floats(0, 0.5),
)


@settings(max_examples=60)
@given(MACHINES, st.integers(1, 1000), st.sampled_from([varied, constant]), st.integers(2, 9), st.integers(0, 2000))
def test_parts_add_up_to_every_gap_and_none_is_negative(machine, seed, base, every, tokens):
    plan = with_prefill(every, tokens + 2, base)
    assert_adds_up(analyse(make_steps(60, plan, machine, seed=seed)))


TIMES = st.integers(0, 50 * MS)


@settings(max_examples=60)
@given(st.lists(st.tuples(*[TIMES] * 8), min_size=20, max_size=30))
def test_parts_add_up_even_where_an_engine_books_nonsense(rows):
    """Stamps and durations that contradict each other: more booked than went by, a step that starts before the last one ended."""
    records, clock = [], 0
    for index, (emit, end, schedule, prepare, forward, cpu, lock, late) in enumerate(rows):
        record = make_step(
            index, start_ns=clock, emit_ns=clock + emit, end_ns=clock + emit + end, schedule_ns=schedule, prepare_ns=prepare,
            forward_ns=forward, forward_cpu_ns=cpu, lock_wait_ns=lock, num_regular_gaps=2, late_gaps_ns=(late,),
        )  # fmt: skip
        records.append(record)
        clock += emit + end // 2
    assert_adds_up(analyse(records))


@covers("S5.6", "S5.8")
def test_a_known_composition_is_recovered_exactly():
    """No noise: each part of each gap is what the engine was built from."""
    steps = make_steps(100, with_prefill(5, 400))
    analysis = analyse(steps)
    assert len(analysis.gaps) == 99
    for gap in analysis.gaps:
        record = known(gap.step)
        decode = MACHINE.decode_us(record.num_decode_seqs, record.decode_context_tokens) / 1e6
        prefill = MACHINE.prefill_us(record.prefill_tokens, record.prefill_attention_pairs) / 1e6
        assert part(gap, "decode_floor") == pytest.approx(decode, rel=1e-4)
        assert part(gap, "prefill") == pytest.approx(prefill, rel=1e-3, abs=2e-6)
        assert part(gap, "schedule") == pytest.approx(200e-6)
        assert part(gap, "prepare") == pytest.approx(150e-6)
        assert part(gap, "postprocess") == pytest.approx(120e-6)
        assert part(gap, "idle") == pytest.approx(100e-6)
        assert part(gap, "lock_wait") == pytest.approx(20e-6)
        assert part(gap, "other") == pytest.approx(0, abs=1e-6)
        assert part(gap, "off_cpu") == pytest.approx(0, abs=1e-6)


@pytest.mark.parametrize("slowdown", [1.0, 2.0])
@pytest.mark.parametrize("seed", range(4))
def test_a_known_composition_is_recovered_under_noise_and_contention(seed, slowdown):
    """Within 10 % per part of the stalls' mean at 10 % noise, on a machine that gives the engine half of its time, too."""
    machine = replace(MACHINE, noise=0.10, slowdown=slowdown)
    plan = with_prefill(5, 800)
    analysis = analyse(make_steps(400, plan, machine, seed=seed))
    account = analysis.account_stalled(2.0)
    assert account is not None and analysis.model is not None
    slow = [gap for gap in analysis.gaps if gap.seconds >= 2 * gap.floor]
    tokens = sum(gap.tokens for gap in slow)
    steps = [(known(gap.step), gap.tokens) for gap in slow]
    decode = sum(MACHINE.decode_us(s.num_decode_seqs, s.decode_context_tokens) * count for s, count in steps)
    prefill = sum(MACHINE.prefill_us(s.prefill_tokens, s.prefill_attention_pairs) * count for s, count in steps)
    assert account.parts["decode_floor"] == pytest.approx(slowdown * decode / tokens / 1e6, rel=0.10)
    assert account.parts["prefill"] == pytest.approx(slowdown * prefill / tokens / 1e6, rel=0.10)
    assert account.parts["off_cpu"] <= 0.02 * account.total_seconds
    assert account.total_seconds == pytest.approx(sum(account.parts.values()))
    assert analysis.model.slowdown == pytest.approx(slowdown, rel=0.01)


def test_a_thread_without_a_core_is_not_prefill():
    """Elapsed time beyond the usual slowdown, in decode and mixed steps alike, is time off the core."""

    def disturbed(index: int) -> Plan:
        return replace(with_prefill(5, 400)(index), disturbed_us=30_000 if index % 10 in (0, 4) else 0)

    analysis = analyse(make_steps(200, disturbed))
    hit = [gap for gap in analysis.gaps if gap.step.step_id % 10 in (0, 4)]
    for gap in hit:
        record = known(gap.step)
        assert part(gap, "off_cpu") == pytest.approx(0.030, rel=0.05)
        prefill = MACHINE.prefill_us(record.prefill_tokens, record.prefill_attention_pairs) / 1e6
        assert part(gap, "prefill") == pytest.approx(prefill, rel=0.05, abs=1e-4)


def test_without_cpu_time_the_elapsed_time_is_fitted():
    steps = [record._replace(forward_cpu_ns=None) for record in make_steps(100, with_prefill(5, 400))]
    account = analyse(steps).account_p99()
    assert account is not None
    assert account.parts["off_cpu"] == 0
    assert account.parts["prefill"] > 0.01


def test_recompute_and_prefill_share_a_chunk_by_tokens():
    def plan(index: int) -> Plan:
        return replace(varied(index), prefill=300, recompute=100) if index % 5 == 4 else varied(index)

    mixed = [gap for gap in analyse(make_steps(60, plan)).gaps if gap.step.prefill_tokens]
    assert all(part(gap, "prefill") == pytest.approx(3 * part(gap, "recompute"), rel=1e-6) for gap in mixed)


def test_what_no_part_books_is_other():
    account = analyse(make_steps(60, machine=replace(MACHINE, unbooked_us=700))).account_all()
    assert account is not None
    assert account.parts["other"] == pytest.approx(700e-6, rel=0.01)


def test_engines_that_book_time_twice_are_found_out():
    sound = make_steps(60)
    assert analyse(sound).overbooked_share() == pytest.approx(0, abs=1e-6)
    doubled = [record._replace(schedule_ns=record.emit_ns - record.start_ns) for record in sound]
    assert analyse(doubled).overbooked_share() > 0.5


@pytest.mark.parametrize(
    "broken",
    [
        lambda r: {"schedule_ns": -r.start_ns, "forward_ns": r.emit_ns},  # the end of scheduling was not told
        lambda r: {"end_ns": r.emit_ns - 10**12},
        lambda r: {"lock_wait_ns": -(10**12)},
        lambda r: {"prepare_ns": -(10**12), "postprocess_ns": -(10**12)},
    ],
)
def test_moments_out_of_order_make_no_part_negative_and_none_larger_than_its_gap(broken):
    """A report of them had parts of hours, and bars as long."""
    steps = make_steps(60)
    for index in range(20, 60, 7):
        steps[index] = steps[index]._replace(**broken(steps[index]))
    assert_adds_up(analyse(steps))


def test_a_gap_across_lost_records_is_left_out():
    steps = make_steps(60)
    analysis = analyse(steps[:20] + steps[25:])
    assert len(analysis.gaps) == 19 + 34
    assert 25 not in {gap.step.step_id for gap in analysis.gaps}


@pytest.mark.parametrize(("recomputed", "name"), [(50, "preempted"), (0, "deferred")])
def test_a_late_gap_is_waiting_beyond_its_last_step(recomputed, name):
    def plan(index: int) -> Plan:
        return replace(varied(index), recompute=recomputed, late_ms=(500.0,)) if index == 30 else varied(index)

    gaps = [gap for gap in analyse(make_steps(60, plan)).gaps if gap.step.step_id == 30]
    regular, late = gaps
    assert late.tokens == 1
    assert late.seconds == 0.5
    assert part(late, name) == pytest.approx(0.5 - regular.seconds)
    assert part(late, "decode_floor") == pytest.approx(part(regular, "decode_floor"))


def test_a_gap_that_began_between_two_steps_is_not_charged_with_what_lay_before():
    """A prefill instance gave the first token while this one had nothing to do for a second."""
    before, after = make_steps(60), make_steps(60, start_ns=3_000 * MS, first_id=60)
    waited_ns = 2 * MS
    first = after[0]
    after[0] = first._replace(num_regular_gaps=0, late_gaps_ns=(first.emit_ns - first.start_ns + waited_ns,))
    (gap,) = [gap for gap in analyse(before + after).gaps if gap.step.step_id == 60]
    assert part(gap, "idle") == pytest.approx(waited_ns / 1e9)
    assert part(gap, "postprocess") == 0
    assert sum(gap.parts) == pytest.approx(gap.seconds)
    assert gap.booked <= gap.seconds * 1.001


def test_gaps_are_never_joined_across_an_engine_restart():
    """The new engine counts from zero, or, worse, goes on where the old one stopped: neither makes a gap."""
    old, new = Engine(engine_id="old"), Engine(engine_id="new")
    for first_id in (0, 20):
        entries = [
            Entry(0, "exposition", old.page()),
            Entry(1, "steps", old.steps(make_steps(20))),
            Entry(2, "steps", new.steps(make_steps(30, first_id=first_id, start_ns=90_000 * MS))),
        ]
        analysis = analyse(list(build_signals(observe("t", entries)).steps))
        assert len(analysis.gaps) == 29
        assert max(gap.seconds for gap in analysis.gaps) < 0.1


def test_stall_share_by_hand():
    """98 gaps of 10 ms and 2 of 410 ms, floor 10 ms: 2 % of the tokens hold 820 of 1800 ms."""
    step = make_step()
    parts = (0.0,) * len(PARTS)
    analysis = StepAnalysis(
        (), [], [], None, [Gap(0.010, 98, parts, 0.010, 0.0, step), Gap(0.410, 2, parts, 0.010, 0.0, step)]
    )
    assert analysis.stall_share(2.0) == pytest.approx(820 / 1800)
    assert analysis.stalled_tokens_share(2.0) == pytest.approx(0.02)
    assert analysis.quantile(0.95) == 0.010, "p95 does not see it"
    assert analysis.num_gaps == 100


def test_too_few_decode_steps_give_no_account():
    analysis = analyse(make_steps(40, lambda index: replace(varied(index), prefill=100 if index > 5 else 0)))
    assert analysis.model is None
    assert analysis.gaps == []
    assert analysis.account_p50() is None
    assert analysis.account_p99() is None
    assert analysis.account_all() is None
    assert typical_floor(analysis) is None
    assert mixed_ratio(analysis) is None
    assert analysis.stall_share(2.0) == 0.0


def test_nothing_at_all():
    assert analyse([]).gaps == []


def test_p50_and_p99_are_the_middle_and_the_tail():
    analysis = analyse(make_steps(300, with_prefill(50, 1000)))
    p50, p99 = analysis.account_p50(), analysis.account_p99()
    assert p50 is not None and p99 is not None
    assert p50.parts["prefill"] < 0.05 * p50.total_seconds
    assert p99.parts["prefill"] > 0.5 * p99.total_seconds
    assert p99.quantile_seconds <= p99.total_seconds
    assert sum(
        p50.parts[name] for name in ("schedule", "prepare", "postprocess", "idle", "lock_wait")
    ) == pytest.approx(HOST_US / 1e6, rel=0.01)


def test_the_excess_is_all_but_an_undisturbed_decode():
    account = analyse(make_steps(100, with_prefill(5, 400))).account_stalled(2.0)
    assert account is not None
    excess = excess_parts(account, account.parts["decode_floor"] / 2)
    assert excess["decode_floor"] == pytest.approx(account.parts["decode_floor"] / 2)
    assert excess["prefill"] == account.parts["prefill"]
    assert excess_parts(account, 99.0)["decode_floor"] == 0.0


def test_mixed_ratio_is_against_a_like_decode_step():
    """Each mixed step is compared with the decode step that it could have been, whatever the other steps were."""
    analysis = analyse(make_steps(100, lambda index: replace(varied(index), prefill=400 if index % 5 == 4 else 0)))
    likes = []
    for record in map(known, analysis.mixed_steps):
        floor = MACHINE.decode_us(record.num_decode_seqs, record.decode_context_tokens)
        likes.append(1 + MACHINE.prefill_us(400, record.prefill_attention_pairs) / floor)
    assert mixed_ratio(analysis) == pytest.approx(median(likes), rel=1e-3)
