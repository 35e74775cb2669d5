"""Separate prefill and decode instances: four inputs, no verdict, and no rule on a link's speed."""

import json
from dataclasses import replace

import pytest

from diagnose.diagnosis import Diagnosis, diagnose
from diagnose.disaggregation import Placement, Stated, advise, still_shared
from probes.arithmetic import ByteRate
from probes.kv_stream import stream_timeline
from tests.builders import make_signals
from tests.diagnose import cases
from tests.diagnose.cases import look, texts, verdict
from tests.diagnose.commands import complaint
from tests.requirements import covers

LESSON = Stated(prompt_tokens=4096, output_tokens=200, bytes_per_token=163_840)
"""Exercise 4: 40 layers, 8 KV heads of 128, FP16."""
ALL_FOUR = Stated(
    prompt_tokens=4096,
    output_tokens=200,
    placement=Placement.CROSS_RACK,
    chunk_tokens=512,
    cost_saved=0.2,
    bytes_per_token=163_840,
)
SHARED = ("switch contention", "NIC queueing", "memory bus")


@covers("S6.10")
def test_four_inputs_are_asked_for_and_the_missing_ones_are_named():
    advice = advise(Stated(), None)
    assert [found.name for found in advice.inputs] == ["sequence lengths", "placement", "overlap", "cost saved"]
    assert advice.missing == ("sequence lengths", "placement", "overlap", "cost saved")
    assert advice.headline.startswith(
        "no verdict: 4 of 4 inputs are missing: sequence lengths, placement, overlap, cost"
    )
    assert all("--" in found.ask for found in advice.inputs)
    assert advise(LESSON, None).missing == ("placement", "overlap", "cost saved")
    assert advise(Stated(prompt_tokens=4096), None).missing[0] == "sequence lengths", "outputs belong to them"


@covers("S6.10")
@pytest.mark.parametrize("gigabits", [1, 25, 100, 200, 400, 800])
def test_no_speed_of_a_link_is_a_verdict(gigabits):
    """The same words at 1 and at 800 Gb/s; only the figures differ."""
    stated = Stated(
        prompt_tokens=4096, output_tokens=200, placement=Placement.INTRA_RACK, chunk_tokens=0, cost_saved=0.0,
        link=ByteRate.from_gigabits_per_second(gigabits), bytes_per_token=163_840,
    )  # fmt: skip
    advice = advise(stated, None)
    assert advice.missing == ()
    assert advice.headline == advise(ALL_FOUR, None).headline
    assert advice.headline.startswith("no verdict")
    text = " ".join((advice.headline, *advice.arithmetic)).lower()
    for word in ("viable", "enough", "too slow", "recommend", "worth"):
        assert word not in text


@covers("S6.10")
def test_sequence_lengths_come_from_a_window_and_what_is_stated_wins():
    window = make_signals(
        counters={"tokens_prefill": 60_000, "tokens_decode": 8000, "requests_finished": 40,
                  "prefix_query_tokens": 80_000, "prefix_hit_tokens": 20_000},
        histograms={"queue_time": {0.01: 40}},
        info={"kv_bytes_per_token": "163840"},
    )  # fmt: skip
    case = diagnose(cases.TARGET, window).case
    advice = advise(Stated(), case)
    assert advice.inputs[0].known == "1,500 prompt tokens to compute and 200 output tokens a request"
    assert "a prompt's KV: 1,500 tokens x 163,840 B = 245,760,000 B (234.4 MiB)" in advice.arithmetic
    assert advice.arithmetic[0].startswith(
        "3,000 prompt tokens/s (the window's mean; bursts send more) send 0.4915 GB/s"
    )
    stated = advise(Stated(prompt_tokens=4096, output_tokens=7), case)
    assert stated.inputs[0].known == "4,096 prompt tokens to compute and 7 output tokens a request"


def test_the_exercises_payload_has_its_ideal_time_and_what_that_leaves_out():
    """4096 tokens of 160 KiB: 640 MiB, 26.8435 ms at 200 Gb/s."""
    stated = Stated(
        prompt_tokens=4096, bytes_per_token=163_840, link=ByteRate.from_gigabits_per_second(200), prefill_rate=10_000
    )
    needed, payload, ideal = advise(stated, None).arithmetic
    assert needed.startswith("10,000 prompt tokens/s send 1.638 GB/s = 13.11 Gb/s of KV")
    assert payload.endswith("= 671,088,640 B (640 MiB)")
    assert ideal.startswith("over 200 Gb/s: 26.844 ms ideal payload time (analytical, not a latency; excludes framing")


@pytest.mark.parametrize(
    ("compute_ms", "exposed_ms"),
    [(5.0, 3.3554432), (1.0, 27.8435456 - 8.0)],
)
def test_overlap_leaves_the_last_chunk_or_what_the_link_could_not_keep_up_with(compute_ms, exposed_ms):
    """Eight chunks of 512 tokens: 43.355 ms and 27.844 ms in all, of which the computing takes 40 and 8."""
    link = ByteRate.from_gigabits_per_second(200)
    found = stream_timeline([512] * 8, [compute_ms / 1e3] * 8, bytes_per_token=163_840, link=link).exposed_seconds
    assert found == pytest.approx(exposed_ms / 1e3)


def test_what_overlap_hides_needs_an_instances_speed():
    slow = replace(LESSON, link=ByteRate.from_gigabits_per_second(200), chunk_tokens=512)
    assert "--prefill-rate" in advise(slow, None).arithmetic[-1]
    fast = replace(slow, prefill_rate=102_400)
    text = advise(fast, None).arithmetic[-1]
    assert text.startswith(
        "sent per chunk (8 of up to 512 tokens, 5.0 ms to compute and 3.4 ms to send): at least 3.4 ms"
    )
    whole = advise(replace(fast, chunk_tokens=10_000), None).arithmetic[-1]
    assert "1 of up to 4,096 tokens" in whole, "a chunk is no longer than its prompt"


def test_without_the_models_geometry_no_byte_is_made_up():
    assert "--model-config" in advise(Stated(prompt_tokens=4096, prefill_rate=1e4), None).arithmetic[0]


def test_what_a_window_shows_of_either_cost_is_told_with_its_samples():
    stalled = advise(Stated(), look(cases.interference()).case).observed
    assert "stalls hold" in stalled[0]
    assert "of their excess is co-scheduled prefill" in stalled[0]
    moved = advise(Stated(), cases.transfers().case).observed
    assert moved == ("measured transfers: 1.50 s on average (n=40, x_seconds)",)


# ---- what stays shared


def with_dram(values: tuple[float, ...]) -> Diagnosis:
    signals = make_signals(
        counters={"transfer_failures": 0},
        gauges={"waiting_transfer": 0, "gpu_dram_active": values},
        histograms={"kv_transfer": {1.5: 40}, "time_to_first_token": {2.0: 40}},
    )
    return diagnose(cases.TARGET, signals)


@covers("S6.7")
@pytest.mark.parametrize(("seconds", "expected"), [(1.5, "supported"), (0.6, "undetermined"), (0.05, "refuted")])
def test_a_judged_transfer_lists_what_separate_instances_still_share_as_untested(seconds, expected):
    diagnosis = cases.transfers(seconds=seconds)
    assert verdict(diagnosis, "transfer_stall") == expected
    for name in SHARED:
        assert f"{name}: untested" in texts(diagnosis, "transfer_stall")


@covers("S6.7")
def test_a_measured_memory_bus_is_told_with_its_figure_and_the_others_stay_untested():
    text = texts(with_dram((0.4, 0.6)), "transfer_stall")
    assert "memory bus: DRAM active 50 % of the time (n=2, x_gpu_dram_active)" in text
    assert "switch contention: untested, NIC queueing: untested" in text


@covers("S6.7")
def test_the_advisor_lists_it_too_with_the_measurement():
    shared = advise(ALL_FOUR, None).shared
    assert tuple(item.name for item in shared) == SHARED
    assert all(str(item).endswith(": untested") and item.measure for item in shared)
    measured = still_shared(with_dram((0.4, 0.6)).case.signals)
    assert [bool(item.measured) for item in measured] == [False, False, True]


def test_a_target_that_is_not_disaggregated_is_not_told_of_it():
    assert "switch" not in texts(look(cases.quiet()), "transfer_stall")


# ---- the command


def test_the_command_asks_says_and_exits(stallscope, files):
    code, out, err = stallscope("disaggregation")
    assert (code, err) == (3, "")
    assert "no verdict: 4 of 4 inputs are missing" in out
    assert out.count("missing: --") == 4
    code, out, _ = stallscope("disaggregation", files["stalled"])
    assert code == 3
    assert "Seen on this target" in out
    code, out, _ = stallscope(
        "disaggregation", files["stalled"], "--prompt-tokens", "2048", "--output-tokens", "100", "--link", "12.5GB/s",
        "--placement", "intra-rack", "--overlap", "none", "--cost-saved", "20%",
    )  # fmt: skip
    assert code == 0
    assert "[x] placement: intra-rack, 100 Gb/s" in out, "12.5 GB/s are 100 Gb/s"
    assert "NIC queueing: untested" in out
    assert max(map(len, out.splitlines())) <= 80


def test_the_models_config_gives_the_bytes(stallscope, tmp_path):
    config = tmp_path / "config.json"
    dimensions = {"num_hidden_layers": 40, "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128}
    config.write_text(
        json.dumps({**dimensions, "hidden_size": 4096, "vocab_size": 32_000, "intermediate_size": 11_008})
    )
    _, out, _ = stallscope("disaggregation", "--model-config", config, "--prompt-tokens", "4096", "--link", "200Gb/s")
    assert "671,088,640 B (640 MiB)" in out
    assert "26.844 ms ideal payload time" in out


@pytest.mark.parametrize(
    ("option", "value", "said"),
    [
        ("--link", "100", "write 100Gb/s (bits) or 12.5GB/s (bytes)"),
        ("--link", "0Gb/s", "is no rate"),
        ("--overlap", "some", "neither a number of tokens per chunk nor none"),
        ("--cost-saved", "0.2", "write 20%"),
        ("--cost-saved", "120%", "is no share"),
        ("--prompt-tokens", "0", "not in the range"),
        ("--prefill-rate", "0", "not in the range"),
        ("--placement", "here", "intra-rack"),
    ],
)
def test_a_wrong_value_is_refused_with_what_would_do(stallscope, option, value, said):
    code, out, err = stallscope("disaggregation", option, value)
    assert (code, out) == (2, "")
    assert said in err


def test_an_unreadable_source_is_one_line(stallscope, tmp_path):
    assert "cannot be read" in complaint(stallscope("disaggregation", tmp_path / "none.rec"))
