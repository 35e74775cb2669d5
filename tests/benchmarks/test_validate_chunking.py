"""The validation's own arithmetic, and a small run of it: right chunks pass, wrong ones do not."""

from collections.abc import Sequence

import pytest
import torch

from engine.model.registry import load_model
from tests.benchmarks.validate_chunking import (
    TOLERANCES,
    Prefiller,
    PromptResult,
    TaskItem,
    Tolerance,
    compare_logits,
    read_task,
    report,
    split_endings,
    summarise,
    validate,
)
from tests.requirements import covers

STRICT = Tolerance(p99_logit_difference=1e-3, top1_agreement=0.999, task_score=0.0)


def result(
    differences: Sequence[float] = (0.0,) * 4,
    chunked: Sequence[int] = (1, 2, 3, 4),
    rights: tuple[bool | None, bool | None] = (None, None),
) -> PromptResult:
    return PromptResult(tuple(differences), (1, 2, 3, 4), tuple(chunked), *rights)


@covers("S2.5")
def test_equal_prompts_pass():
    summary = summarise([result(rights=(True, True)), result(rights=(False, False))], STRICT)
    assert summary.passed
    assert (summary.prompts, summary.positions) == (2, 8)
    assert (summary.top1_agreement, summary.first_divergence) == (1.0, None)
    assert (summary.whole_score, summary.chunked_score) == (0.5, 0.5)


@covers("S2.5")
def test_every_measure_can_fail_by_itself():
    far = summarise([result(differences=[0.0, 0.0, 0.0, 0.01])], STRICT)
    assert far.failures == ("p99 logit difference 1.00e-02 > 0.001",)
    other = summarise([result(), result(chunked=(1, 2, 9, 4))], STRICT)
    assert other.failures == ("top-1 agreement 0.8750 < 0.999",)
    worse = summarise([result(rights=(True, False)), result(rights=(True, True))], STRICT)
    assert worse.failures == ("task score 1.000 -> 0.500, more than 0 apart",)


@covers("S2.4")
def test_the_first_divergent_position_is_reported():
    summary = summarise([result(chunked=(1, 2, 3, 9)), result(chunked=(1, 9, 3, 9))], STRICT)
    assert summary.first_divergence == 1


@covers("S2.5")
def test_quantiles_are_values_that_occurred():
    summary = summarise([result(differences=[0.1, 0.2, 0.3, 0.4])], STRICT)
    assert summary.difference_quantiles == {"p50": 0.2, "p90": 0.4, "p99": 0.4, "p100": 0.4}


def test_a_better_score_is_outside_the_tolerance_too():
    """A change of the answers is what is looked for, whichever way it goes."""
    assert not summarise([result(rights=(False, True))], STRICT).passed


def test_nothing_compared_is_an_error():
    with pytest.raises(ValueError, match="no position"):
        summarise([], STRICT)


def test_scores_are_absent_without_a_task():
    summary = summarise([result()], STRICT)
    assert (summary.whole_score, summary.chunked_score) == (None, None)


def test_the_answer_is_the_likeliest_ending_at_the_last_position():
    whole = torch.tensor([[0.0, 0.0, 9.0], [5.0, 4.0, 9.0]])
    chunked = torch.tensor([[0.0, 0.0, 9.0], [4.0, 5.0, 9.0]])
    compared = compare_logits(whole, chunked, endings=[0, 1])
    assert (compared.whole_right, compared.chunked_right) == (True, False)


@pytest.fixture(scope="module")
def model():
    return load_model("tiny", "float64")


@covers("S2.5", "S2.4")
def test_the_tiny_model_validates(model):
    results = validate(model, read_task()[:4], budget=32, decodes=4, passage_tokens=60)
    summary = summarise(results, TOLERANCES["float64"])
    assert summary.passed, summary.failures
    assert summary.positions == sum(len(prompt.differences) for prompt in results) > 4 * 60
    lines = report(model, summary, TOLERANCES["float64"], [28, 28])
    assert lines[-1] == "within the tolerance"
    assert any(line.startswith("tolerance: p99_logit_difference 1e-10") for line in lines)


@covers("S2.5")
def test_a_wrong_chunk_is_found(model):
    """The tolerance tells rounding from a defect: a chunk that is left out does not pass."""
    tokens = list(range(60))
    prefiller = Prefiller(model, len(tokens))
    whole = prefiller.logits(tokens, [60])
    second_half_alone = torch.cat([whole[:30], prefiller.logits(tokens[30:], [30])])
    summary = summarise([compare_logits(whole, second_half_alone)], TOLERANCES["bfloat16"])
    assert not summary.passed


def test_every_item_of_the_task_can_be_scored(model):
    items = read_task()
    assert len(items) == 30
    for item in items:
        shared, choices = split_endings(model, item)
        assert shared == [ord(" ")]
        assert len(choices) == 4


def test_endings_that_begin_alike_are_refused(model):
    with pytest.raises(ValueError, match="not told apart"):
        split_endings(model, TaskItem("A cat has four", (" wings", " wheels", " legs", " doors")))
