"""The frontier between many short steps and few long ones, and the sentence that an experiment gets from it."""

from typing import Any

import pytest

from diagnose.account import StepAnalysis, analyse_steps
from diagnose.chunking import (
    FrontierRow,
    TypicalPrompt,
    budget_trade,
    chunk_frontier,
    frontier_lines,
    typical_prompt,
)
from diagnose.decision import DecisionKind
from diagnose.diagnosis import diagnose
from diagnose.policy import DEFAULT_POLICY
from probes.arithmetic import attention_pairs
from probes.records import StepKind, StepRecord
from tests.diagnose.windows import signals, step_records
from tests.probes.records import make_record
from tests.requirements import covers


def row(prompt: int, decodes: int, budget: int) -> FrontierRow:
    (found,) = chunk_frontier(prompt, decodes, [budget])
    return found


@covers("S2.18", "S2.19")
@pytest.mark.parametrize(
    ("budget", "steps", "chunks"),
    [(512, 5, (508,) * 4 + (16,)), (256, 9, (252,) * 8 + (32,)), (1024, 3, (1020, 1020, 8))],
)
def test_steps_of_the_lesson_prompt(budget, steps, chunks):
    found = row(2048, 4, budget)
    assert (found.steps, found.chunks) == (steps, chunks)


@covers("S2.19")
def test_a_larger_chunk_makes_the_worst_step_longer():
    assert row(2048, 4, 1024).worst_pairs == 1020 * 1020 + 1020 * 1021 // 2 == 1_561_110
    assert row(2048, 4, 512).worst_pairs == 903_478


@covers("S2.13")
def test_pairs_rise_from_step_to_step_while_tokens_do_not():
    found = row(2048, 4, 512)
    assert found.pairs == (129_286, 387_350, 645_414, 903_478, 32_648)
    assert len(set(found.chunks[:4])) == 1


@covers("S2.14")
def test_history_read_before_each_chunk():
    found = row(2048, 4, 512)
    assert found.history == (0, 508, 1016, 1524, 2032)
    assert found.history_positions == 5_080


@covers("S2.14")
@pytest.mark.parametrize(("budget", "positions"), [(2048, 0), (256, 7_168), (512, 3_072)])
def test_history_without_decodes(budget, positions):
    assert row(2048, 0, budget).history_positions == positions


@covers("S2.3")
@pytest.mark.parametrize("budget", [16, 256, 512, 1024, 4096])
def test_no_budget_saves_attention(budget):
    assert row(2048, 4, budget).total_pairs == 2_098_176


def test_a_budget_that_the_decodes_take_is_shown_as_blocked():
    blocked, free = chunk_frontier(2048, 64, [64, 512])
    assert blocked.steps == 0
    assert "No prefill progress possible" in blocked.blocked
    assert free.blocked == ""
    assert any("No prefill progress possible" in line for line in frontier_lines([blocked, free]))


@covers("S2.17")
def test_the_frontier_recommends_nothing():
    lines = frontier_lines(chunk_frontier(2048, 4, [256, 512, 1024]))
    text = "\n".join(lines)
    assert len(lines) == 6
    assert "no row is best by itself" in text
    assert "assumes" in text
    assert not any(word in text for word in ("recommend", "optimal", "should"))


@covers("S2.18")
def test_steps_times_host_cost():
    lines = frontier_lines(chunk_frontier(2048, 4, [256, 512, 1024]), host_seconds_per_step=0.002)
    assert [line.rsplit(maxsplit=2)[1] for line in lines[1:4]] == ["18", "10", "6.0"]
    assert all(line.endswith(" ms") for line in lines[1:4])


def test_sentence_for_two_budgets():
    text = budget_trade(TypicalPrompt(450, 4), (512, 64))
    assert text == (
        "by arithmetic, the window's mean prompt (450 tokens to compute, beside 4 decodes) "
        "takes 1 step of 450 against 8 steps of up to 60"
    )


def test_no_sentence_where_a_budget_blocks_the_prompt():
    assert budget_trade(TypicalPrompt(450, 64), (512, 64)) is None


def prefill_steps(count: int, tokens: int = 450, **fields: Any) -> list[StepRecord]:
    """Mixed steps beside 4 decodes; each finishes one prefill of `tokens` tokens."""
    values: dict[str, Any] = {
        "kind": StepKind.MIXED,
        "num_decode_seqs": 4,
        "num_prefill_seqs": 1,
        "prefill_tokens": tokens,
        "prefill_attention_pairs": attention_pairs(0, tokens),
        "emitted_tokens": 5,
    }
    return [make_record(step_id, **(values | fields)) for step_id in range(count)]


def analysis(steps: list[StepRecord]) -> StepAnalysis:
    return analyse_steps(steps, DEFAULT_POLICY)


def test_mean_prompt_from_whole_prefills():
    assert typical_prompt(analysis(prefill_steps(3)), DEFAULT_POLICY) == TypicalPrompt(450, 4)


def test_mean_prompt_from_chunks():
    """Only the last chunk of a prompt emits: six steps of half a prompt are three prompts."""
    first, last = prefill_steps(1, 225, emitted_tokens=4), prefill_steps(1, 225)
    assert typical_prompt(analysis([*first, *last] * 3), DEFAULT_POLICY) == TypicalPrompt(450, 4)


@pytest.mark.parametrize(
    "steps",
    [
        [],
        [make_record(step_id) for step_id in range(20)],
        prefill_steps(2),
        prefill_steps(9, emitted_tokens=4),
        [*prefill_steps(3), make_record(3, num_prefill_seqs=1, recomputed_tokens=7)],
    ],
    ids=["nothing", "no prefill", "too few", "none finished", "recomputed"],
)
def test_nothing_is_said_where_the_prompt_length_is_not_known(steps):
    assert typical_prompt(analysis(steps), DEFAULT_POLICY) is None


@covers("S2.16")
def test_the_proposed_experiment_says_what_both_budgets_do_to_the_mean_prompt():
    found = diagnose("http://engine", signals(steps=step_records(stall_ms=600, every=10)))
    assert found.primary == "prefill_interference"
    assert found.decision.kind is DecisionKind.EXPERIMENT
    assert "delays the first token" in found.decision.trade
    assert found.decision.trade.endswith(
        "(450 tokens to compute, beside 4 decodes) takes 1 step of 450 against 4 steps of up to 124"
    )
