"""llama.cpp: gauges that reading resets, slots, and its lines of the log."""

import pytest

from diagnose.dialects.base import Usage
from diagnose.hypotheses.pool import occupancy
from diagnose.sources.engine_log import read_log
from diagnose.verdict import Verdict
from tests.diagnose.pages import log, signals, state, verdict


def test_llamacpp_throughput_gauges_are_not_used():
    """Every reader of /metrics starts them anew."""
    page = "llamacpp:n_decode_total {}\nllamacpp:predicted_tokens_seconds 55\nllamacpp:prompt_tokens_seconds 99\n"
    found = signals(page.format(0), page.format(5))
    sources = [gauge.source for gauge in found.gauges.values()] + [
        counter.source for counter in found.counters.values()
    ]
    assert not any("_tokens_seconds" in source for source in sources)


def test_llamacpp_steps_tell_work_before_tokens_are_booked():
    page = "llamacpp:n_decode_total {}\nllamacpp:tokens_predicted_total 5\nllamacpp:requests_processing 2\n"
    assert signals(page.format(0), page.format(70)).worked is True
    assert verdict("engine_hung", page.format(0), page.format(70)) is Verdict.REFUTED


def test_llamacpp_never_preempts():
    page = "llamacpp:n_decode_total {}\n"
    assert verdict("preemption_storm", page.format(0), page.format(70)) is Verdict.REFUTED


def test_llamacpp_slots_and_props():
    slots = [
        {"n_ctx": 4096, "is_processing": True, "n_prompt_tokens": 1000, "next_token": [{"n_decoded": 24}]},
        {"n_ctx": 4096, "is_processing": False, "n_prompt_tokens": 1024, "next_token": [{"n_decoded": 0}]},
    ]
    found = state(slots)
    assert (found.last("running"), found.last("max_sequences"), found.last("pool_usage")) == (1, 2, 0.25)
    assert found.usage is Usage.SLOTS
    assert occupancy(found) is None, "an idle slot's cache is not occupied"
    props = {
        "total_slots": 2,
        "default_generation_settings": {"n_ctx": 4096},
        "model_path": "m.gguf",
        "build_info": "b1",
    }
    assert state(props).last("max_sequences") == 2


LLAMACPP_LINES = {
    "older": "slot print_timing: id  0 | task 124 | prompt eval time =    5093.47 ms /  1360 tokens (    3.75 ms per token,   "
    "267.01 tokens per second)",
    "newer": "[53409] 3.44.875.501 I slot print_timing: id  0 | task 124 | prompt eval time =    5093.47 ms /  1360 tokens ( x",
}


@pytest.mark.parametrize("line", LLAMACPP_LINES.values(), ids=LLAMACPP_LINES.keys())
def test_llamacpp_timings_in_both_forms(line):
    found = log(line, line.replace("prompt eval", "eval").replace("1360 tokens", "60 tokens"))
    assert (found.delta("tokens_prefill"), found.delta("tokens_decode")) == (1360, 60)


def test_llamacpp_without_a_slot_for_a_batch():
    line = "srv  update_slots: failed to find free space in the KV cache, retrying with smaller batch size, i = 0, n_batch = 512"
    assert [event.kind for event in read_log("log", [line]).events] == ["no_kv_space"]
