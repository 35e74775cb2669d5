import pytest
from hypothesis import given
from hypothesis import strategies as st

from probes.arithmetic import PLAN_ASSUMPTIONS, attention_pairs, plan_chunks
from tests.requirements import covers


@covers("S2.7", "S7.4")
def test_the_lessons_trace():
    assert plan_chunks(2048, 4, 512) == [508, 508, 508, 508, 16]


@covers("S8.3")
def test_exercise_2():
    assert plan_chunks(3500, 300, 1024) == [724, 724, 724, 724, 604]


def test_smaller_budgets_take_more_steps():
    """S2.18: the price of small chunks is paid per step, on the host."""
    plans = {budget: plan_chunks(2048, 4, budget) for budget in (256, 512, 1024)}
    assert plans[256] == [252] * 8 + [32]
    assert [len(plans[budget]) for budget in (256, 512, 1024)] == [9, 5, 3]
    assert plans[1024] == [1020, 1020, 8]


@covers("S2.8", "S8.4")
def test_what_a_plan_takes_for_granted_is_stated():
    assert len(PLAN_ASSUMPTIONS) == 3
    decodes, slots, blocks = PLAN_ASSUMPTIONS
    assert "decodes" in decodes
    assert "slot" in slots
    assert "KV" in blocks


@covers("S2.23")
@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ((10, 0, 0), "max_batched_tokens must be positive, got 0"),
        ((10, 0, -3), "max_batched_tokens must be positive, got -3"),
        ((-1, 0, 8), "total_prompt_tokens must be non-negative, got -1"),
        ((10, -2, 8), "active_decodes must be non-negative, got -2"),
    ],
)
def test_values_that_make_no_sense_are_named(arguments: tuple[int, int, int], text: str):
    with pytest.raises(ValueError, match="must be") as caught:
        plan_chunks(*arguments)
    assert str(caught.value) == text


@covers("S2.24")
@pytest.mark.parametrize("decodes", [512, 600])
def test_an_exhausted_budget_is_an_error_with_both_numbers(decodes: int):
    with pytest.raises(RuntimeError) as caught:
        plan_chunks(100, decodes, 512)
    assert str(caught.value) == (
        f"No prefill progress possible: active_decodes ({decodes}) >= max_batched_tokens (512). "
        "Prefill cannot be scheduled without violating budget."
    )


@covers("S2.25")
def test_no_tokens_no_chunks():
    assert plan_chunks(0, 4, 512) == []


@covers("S2.3")
@pytest.mark.parametrize(
    ("chunks", "pairs"),
    [
        ([508, 508, 508, 508, 16], [129_286, 387_350, 645_414, 903_478, 32_648]),
        ([724, 724, 724, 724, 604], [262_450, 786_626, 1_310_802, 1_834_978, 1_931_894]),
    ],
)
def test_attention_pairs_per_chunk(chunks: list[int], pairs: list[int]):
    starts = [sum(chunks[:i]) for i in range(len(chunks))]
    assert [attention_pairs(start, size) for start, size in zip(starts, chunks, strict=True)] == pairs
    assert sum(pairs) == attention_pairs(0, sum(chunks))


@covers("S2.3")
@given(st.integers(0, 5000), st.integers(0, 600), st.integers(1, 1200))
def test_chunking_conserves_tokens_and_attention_pairs(prompt: int, decodes: int, budget: int):
    if decodes >= budget:
        return
    position, pairs = 0, 0
    for chunk in plan_chunks(prompt, decodes, budget):
        assert 0 < chunk <= budget - decodes
        pairs += attention_pairs(position, chunk)
        position += chunk
    assert (position, pairs) == (prompt, prompt * (prompt + 1) // 2)


def test_a_larger_chunk_makes_the_worst_step_worse():
    """S2.19: with a budget of 1024 the second chunk alone has this many pairs."""
    assert attention_pairs(1020, 1020) == 1_561_110
