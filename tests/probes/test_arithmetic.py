"""Prefix savings, bytes, FLOPs and ideal times: the lesson's numbers, exact, and what keeps them from being misread."""

from typing import Any

import pytest

from probes import arithmetic
from probes.arithmetic import (
    AttentionHeads,
    ByteRate,
    attention_flops,
    ideal_compute_time,
    ideal_payload_time,
    ideal_read_time,
    kv_bytes_per_token,
    kv_payload,
    linear_flops,
    prefix_savings,
    required_transfer_rate,
    ttft_from_flops,
)
from tests.requirements import covers


def lesson_kv_bytes(num_kv_heads: int, heads: AttentionHeads | None = None) -> int:
    """32 layers, head dimension 128, FP16."""
    return kv_bytes_per_token(num_layers=32, num_kv_heads=num_kv_heads, head_dim=128, bytes_per_element=2, heads=heads)


@covers("S4.1", "S4.2", "S4.3", "S4.4", "S4.5")
def test_savings_of_the_lesson():
    savings = prefix_savings(3000, 2500, 16)
    assert savings == (156, 2496, 504, 1_257_984, 127_260, 1_385_244, 3_116_256, 4_501_500)
    assert savings.computed_pairs + savings.skipped_pairs == savings.full_pairs


@covers("S8.1", "S8.2")
def test_savings_of_exercise_one():
    assert prefix_savings(4000, 3100, 32) == (96, 3072, 928, 2_850_816, 431_056, 3_281_872, 4_720_128, 8_002_000)


@covers("S4.11")
def test_pair_ratio_and_token_ratio_are_different_numbers():
    savings = prefix_savings(3000, 2500, 16)
    assert (round(savings.pair_ratio, 4), round(savings.token_ratio, 3)) == (0.3077, 0.168)


@covers("S3.8")
def test_a_full_hit_leaves_the_last_token_to_compute():
    savings = prefix_savings(2496, 2496, 16)
    assert (savings.blocks, savings.cached_tokens, savings.fresh_tokens) == (156, 2495, 1)
    assert savings.computed_pairs + savings.skipped_pairs == savings.full_pairs


@pytest.mark.parametrize("arguments", [(0, 0, 16), (10, 11, 16), (10, -1, 16), (10, 4, 0)])
def test_savings_refuse_what_is_no_prefix(arguments):
    with pytest.raises(ValueError, match=r"must be positive|is no prefix"):
        prefix_savings(*arguments)


@covers("S6.1", "S6.2", "S6.3")
def test_kv_bytes_of_the_lesson():
    one_layer = kv_bytes_per_token(num_layers=1, num_kv_heads=8, head_dim=128, bytes_per_element=2)
    per_token = lesson_kv_bytes(8)
    payload = kv_payload(2048, per_token)
    assert (one_layer, per_token, payload) == (4096, 131_072, 268_435_456)
    assert (payload.mebibytes, payload.gibibytes) == (256.0, 0.25)


@covers("S8.11", "S8.12")
def test_kv_bytes_of_exercise_four():
    per_token = kv_bytes_per_token(num_layers=40, num_kv_heads=8, head_dim=128, bytes_per_element=2)
    payload = kv_payload(4096, per_token)
    assert (per_token, payload, payload.mebibytes, payload.gibibytes) == (163_840, 671_088_640, 640.0, 0.625)


@covers("S6.4", "S4.10")
def test_query_heads_are_refused_where_kv_heads_are_known():
    wrong = kv_payload(2048, lesson_kv_bytes(32))
    assert wrong == 1_073_741_824, "four times too much, and plausible: hence the guard"
    with pytest.raises(ValueError, match=r"32 \(that is its number of query heads\).* of 8 heads"):
        lesson_kv_bytes(32, AttentionHeads(query=32, kv=8))
    assert lesson_kv_bytes(8, AttentionHeads(query=32, kv=8)) == 131_072


def test_heads_cannot_be_passed_by_position():
    with pytest.raises(TypeError):
        kv_bytes_per_token(32, 32, 128, 2)  # type: ignore[call-arg]
    with pytest.raises(TypeError):
        attention_flops(32, 8, 100, 128)  # type: ignore[call-arg]


@pytest.mark.parametrize("name", ["num_layers", "num_kv_heads", "head_dim", "bytes_per_element"])
def test_kv_bytes_refuse_zero(name):
    sizes: dict[str, Any] = {"num_layers": 32, "num_kv_heads": 8, "head_dim": 128, "bytes_per_element": 2}
    with pytest.raises(ValueError, match=f"{name} must be positive, got 0"):
        kv_bytes_per_token(**{**sizes, name: 0})


@covers("S4.7")
def test_linear_flops_of_the_lesson():
    assert linear_flops(504, 8 * 10**9) == 8_064_000_000_000
    assert linear_flops(3000, 8 * 10**9) == 48_000_000_000_000


@covers("S4.9")
@pytest.mark.parametrize(("pairs", "flops"), [(1_385_244, 726_266_806_272), (4_501_500, 2_360_082_432_000)])
def test_attention_flops_of_the_lesson(pairs, flops):
    assert attention_flops(num_layers=32, num_query_heads=32, pairs=pairs, head_dim=128) == flops


@covers("S6.5", "S8.13")
@pytest.mark.parametrize(
    ("payload", "gigabits", "rate", "seconds"),
    [(268_435_456, 100, 12_500_000_000, 0.02147483648), (671_088_640, 200, 25_000_000_000, 0.0268435456)],
)
def test_ideal_payload_time_of_the_lesson(payload, gigabits, rate, seconds):
    link = ByteRate.from_gigabits_per_second(gigabits)
    assert link.bytes_per_second == rate
    assert ideal_payload_time(payload, link).seconds == seconds


def test_bits_bytes_and_powers_of_two_are_told_apart():
    assert ByteRate.from_gigabytes_per_second(100).bytes_per_second == 8 * 12_500_000_000
    assert ByteRate(12.5e9).gigabytes_per_second == 12.5
    assert kv_payload(1, 1 << 30).gibibytes == 1.0
    assert kv_payload(1, 1 << 30).gigabytes == 1.073741824


@pytest.mark.parametrize("rate", [0, -1.0, float("nan")])
def test_a_rate_is_positive(rate):
    with pytest.raises(ValueError, match="must be positive"):
        ByteRate(rate)


@covers("S6.6")
def test_an_ideal_time_is_no_latency():
    time = ideal_payload_time(268_435_456, ByteRate.from_gigabits_per_second(100))
    assert str(time) == (
        "21.475 ms ideal payload time (analytical, not a latency; excludes framing (Ethernet/IP/TCP or InfiniBand/RoCE), "
        "PCIe and NIC traversal, staging copies, queueing)"
    )
    with pytest.raises(TypeError):
        float(time)  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        time + time  # type: ignore[operator]


@covers("S6.11")
def test_transfer_rate_that_keeps_up_with_a_prefill_worker():
    rate = required_transfer_rate(131_072, 10_000)
    assert rate.gigabytes_per_second == pytest.approx(1.311, abs=5e-4)
    assert rate.gigabits_per_second == pytest.approx(10.49, abs=5e-3)


@covers("S4.11")
def test_flops_give_no_time_to_first_token():
    with pytest.raises(TypeError, match="do not give a time to first token"):
        ttft_from_flops(8.064e12, 1e15)
    time = ideal_compute_time(8.064e12, 1e15)
    assert time.seconds == pytest.approx(0.008064)
    assert "not a latency" in str(time)
    with pytest.raises(ValueError, match="must be positive"):
        ideal_compute_time(1.0, 0.0)


def test_ideal_read_time():
    assert ideal_read_time(17_179_869_184, ByteRate.from_gigabytes_per_second(4800)).seconds == 17_179_869_184 / 4.8e12


@covers("S4.8")
def test_exclusions_are_named():
    assert "softmax attention" in arithmetic.LINEAR_FLOPS_EXCLUDE
    assert {"activations", "norms", "rotary embedding"} < set(arithmetic.LINEAR_FLOPS_EXCLUDE)
