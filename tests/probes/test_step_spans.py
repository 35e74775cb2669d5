"""Step annotations of every engine version that writes some."""

import pytest

from probes.records import StepKind
from probes.step_spans import StepSpan, parse_step_span


def span(name: str) -> StepSpan:
    found = parse_step_span(name)
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("name", "kind", "decodes", "prefills", "tokens", "requests"),
    [
        ("execute_context_0(0)_generation_8(8)", StepKind.DECODE, 8, 0, 0, 8),
        ("execute_context_2(900)_generation_0(0)", StepKind.PREFILL, 0, 2, 900, 2),
        ("execute_context_1(508)_generation_4(4)", StepKind.MIXED, 4, 1, 508, 5),
        ("execute_new_0_cached_7", None, None, None, None, 7),
        ("execute_new_2_cached_0", StepKind.PREFILL, 0, 2, None, 2),
        ("execute_new_1_cached_7", StepKind.MIXED, None, None, None, 8),
        ("step[DECODE bs=16]", StepKind.DECODE, 16, 0, 0, 16),
        ("step[EXTEND bs=2 toks=812]", StepKind.PREFILL, 0, 2, 812, 2),
        ("step[EXTEND bs=2]", StepKind.PREFILL, 0, 2, None, 2),
        ("step[MIXED bs=9]", StepKind.MIXED, None, None, None, 9),
        ("step[VERIFY bs=4]", StepKind.DECODE, 4, 0, 0, 4),
        ("step[DECODE bs=16] c_sq=0 forward_id=12", StepKind.DECODE, 16, 0, 0, 16),
    ],
)
def test_an_annotation_says_what_the_step_computed(name, kind, decodes, prefills, tokens, requests):
    found = span(name)
    assert (found.kind, found.num_decode_seqs, found.num_prefill_seqs) == (kind, decodes, prefills)
    assert (found.prefill_tokens, found.num_requests) == (tokens, requests)


def test_detailed_annotations_price_attention():
    """Two chunks: 100 tokens that end at position 100, and 60 that end at 160; 4 decodes over 900 positions."""
    sums = f"sq160sk260sqsq{100 * 100 + 60 * 60}sqsk{100 * 100 + 60 * 160}"
    found = span(f"execute_164_context_2({sums})_generation_4(sq4sk900sqsq4sqsk900)")
    assert found.kind is StepKind.MIXED
    assert found.decode_context_tokens == 900
    pairs = sum(range(1, 101)) + sum(range(101, 161))
    assert found.prefill_attention_pairs == pairs


def test_dummy_runs_keep_ranks_in_step_and_compute_nothing():
    assert span("execute_context_0(0)_generation_0(0)").is_dummy


@pytest.mark.parametrize(
    "name",
    [
        "gpu_model_runner: forward",
        "step[DRAFT bs=4]",
        "step[DRAFT_LOOP raw_bs=4]",
        "step[DECODE bs=4] sample",
        "scheduler.run_batch",
        "execute_context_1(508)_generation_4(4) ",
        "",
    ],
)
def test_what_is_no_step_of_its_own(name):
    assert parse_step_span(name) is None
