"""What limits a step follows from its inputs, all of them named, and from no threshold."""

import pytest

from diagnose.roofline import (
    DeviceCeilings,
    Limit,
    ModelShape,
    PrefillChunk,
    StepShape,
    kv_read_bytes,
    read_bytes,
    statement,
)
from diagnose.signals import Gauge, Signals
from probes.arithmetic import ByteRate, attention_pairs
from probes.records import StepKind
from tests.probes.records import make_record
from tests.requirements import covers

# The lesson's 8B model: 32 layers, 32 query heads, 8 KV heads, head dim 128, 2 bytes per element.
MODEL = ModelShape(
    num_layers=32,
    num_query_heads=32,
    head_dim=128,
    num_parameters=8 * 10**9,
    weight_bytes=16 * 10**9,
    kv_bytes_per_token=131_072,
    dtype="bfloat16",
)
DEVICE = DeviceCeilings(ByteRate.from_gigabytes_per_second(4800), 989e12, "FlashDecoding")


def decode(batch: int, context: int = 4096) -> StepShape:
    return StepShape.of([context] * batch)


def prefill(tokens: int, start: int = 0) -> StepShape:
    return StepShape.of(chunks=[PrefillChunk(start, tokens)])


@covers("S1.3")
def test_nominal_decode_traffic_of_the_lesson():
    assert kv_read_bytes(decode(32), MODEL) == 17_179_869_184
    assert read_bytes(decode(32), MODEL) == 17_179_869_184 + 16 * 10**9
    lines = statement(decode(32), MODEL, DEVICE).lines()
    assert any("nominal traffic model" in line and "not measured traffic" in line for line in lines)


@covers("S1.3")
def test_traffic_is_the_sum_of_unequal_contexts():
    assert kv_read_bytes(StepShape.of([10, 200, 3000]), MODEL) == 3210 * 131_072


@covers("S1.2")
def test_linear_intensity_rises_with_the_decode_batch():
    one, many = (statement(decode(batch), MODEL, DEVICE) for batch in (1, 256))
    assert (one.linear_intensity, many.linear_intensity) == (1.0, 256.0)


@covers("S1.2", "S1.4")
@pytest.mark.parametrize("batch", [1, 64, 1024])
def test_no_batch_size_decides_by_itself(batch):
    """The same batch is limited by memory on one device and by compute on another."""
    step = decode(batch, context=64)
    slow_memory = DeviceCeilings(ByteRate.from_gigabytes_per_second(1), 989e12, "FlashDecoding")
    slow_compute = DeviceCeilings(ByteRate.from_gigabytes_per_second(4800), 1e9, "FlashDecoding")
    assert statement(step, MODEL, slow_memory).limit is Limit.MEMORY
    assert statement(step, MODEL, slow_compute).limit is Limit.COMPUTE


@covers("S1.4")
@pytest.mark.parametrize("tokens", [16, 512, 8192])
def test_no_prompt_length_decides_by_itself(tokens):
    step = prefill(tokens)
    slow_memory = DeviceCeilings(ByteRate.from_gigabytes_per_second(1), 989e12, "FlashAttention")
    slow_compute = DeviceCeilings(ByteRate.from_gigabytes_per_second(4800), 1e9, "FlashAttention")
    assert statement(step, MODEL, slow_memory).limit is Limit.MEMORY
    assert statement(step, MODEL, slow_compute).limit is Limit.COMPUTE


@covers("S1.4")
def test_a_short_prompt_can_be_limited_by_memory_where_a_long_one_is_not():
    assert statement(prefill(16), MODEL, DEVICE).limit is Limit.MEMORY
    assert statement(prefill(2048), MODEL, DEVICE).limit is Limit.COMPUTE


@covers("S1.2")
def test_batched_decode_of_short_contexts_can_be_limited_by_compute():
    assert statement(decode(512, context=16), MODEL, DEVICE).limit is Limit.COMPUTE


@covers("S1.5")
def test_a_statement_lists_every_input():
    found = statement(decode(32), MODEL, DEVICE)
    assert found.missing == ()
    names = ("batch 32", "prompt 0", "context 131072", "precision bfloat16", "bandwidth", "tensor throughput", "kernel")
    for name in names:
        assert any(text.startswith(name) for text in found.inputs), name


@covers("S1.5")
@pytest.mark.parametrize(
    ("field", "name"),
    [
        ("dtype", "precision"),
        ("num_layers", "num_layers"),
        ("num_query_heads", "num_query_heads"),
        ("head_dim", "head_dim"),
        ("num_parameters", "num_parameters"),
        ("weight_bytes", "weight_bytes"),
        ("kv_bytes_per_token", "kv_bytes_per_token"),
    ],
)
def test_a_missing_model_input_is_named_and_leaves_the_limit_unknown(field, name):
    values = {key: getattr(MODEL, key) for key in ModelShape.__dataclass_fields__} | {field: None}
    found = statement(decode(32), ModelShape(**values), DEVICE)
    assert (found.limit, found.missing) == (Limit.UNKNOWN, (name,))
    assert found.lines()[0] == f"limiting resource (analytical): unknown: {name} not known"


@covers("S1.5")
@pytest.mark.parametrize(
    ("ceilings", "name"),
    [
        (DeviceCeilings(None, 989e12, "FlashDecoding"), "bandwidth"),
        (DeviceCeilings(ByteRate(1e12), None, "FlashDecoding"), "tensor throughput"),
        (DeviceCeilings(ByteRate(1e12), 989e12, None), "kernel"),
    ],
)
def test_a_missing_ceiling_is_named_and_leaves_the_limit_unknown(ceilings, name):
    found = statement(decode(32), MODEL, ceilings)
    assert (found.limit, found.missing) == (Limit.UNKNOWN, (name,))


@covers("S4.8")
def test_a_statement_says_that_it_is_analytical_and_what_it_excludes():
    text = "\n".join(statement(prefill(504, start=2496), MODEL, DEVICE).lines())
    for word in ("analytical", "softmax attention", "activations", "norms", "rotary embedding", "kernel launches"):
        assert word in text


@covers("S4.9")
def test_flops_of_the_lesson_suffix():
    found = statement(prefill(504, start=2496), MODEL, DEVICE)
    assert (found.linear_flops, found.attention_flops) == (8_064_000_000_000, 726_266_806_272)


def test_utilisation_of_a_measured_step():
    found = statement(decode(32), MODEL, DEVICE)
    assert found.memory_utilisation(0.020) == pytest.approx((17_179_869_184 + 16e9) / 4.8e12 / 0.020)
    assert found.compute_utilisation(0.020) == pytest.approx(
        (2 * 32 * 8e9 + 4 * 32 * 32 * 32 * 4096 * 128) / 989e12 / 0.020
    )
    assert statement(decode(1), MODEL, DeviceCeilings()).memory_utilisation(0.020) is None


def test_shape_from_a_record_of_one_chunk():
    """The history of a single chunk follows from its tokens and pairs."""
    record = make_record(
        kind=StepKind.MIXED,
        num_decode_seqs=4,
        decode_context_tokens=400,
        num_prefill_seqs=1,
        prefill_tokens=508,
        prefill_attention_pairs=attention_pairs(1016, 508),
    )
    shape = StepShape.from_record(record)
    assert shape is not None
    assert shape.prefill_context_tokens == 1016 + 508
    assert shape.context_tokens == 400 + 1524
    assert shape.query_tokens == 512


def test_a_record_without_contexts_has_no_shape():
    """A profiler's trace does not show them; zero would read as a step without attention."""
    assert StepShape.from_record(make_record(decode_context_tokens=None)) is None


def test_the_history_of_several_chunks_is_not_guessed():
    record = make_record(
        kind=StepKind.PREFILL, num_decode_seqs=0, num_prefill_seqs=2, prefill_tokens=40, prefill_attention_pairs=900
    )
    shape = StepShape.from_record(record)
    assert shape is not None
    assert shape.context_tokens is None
    found = statement(shape, MODEL, DEVICE)
    assert found.limit is Limit.UNKNOWN
    assert found.missing == ("context",)


def test_model_shape_from_engine_info():
    labels = {"num_layers": "32", "weight_bytes": "16000000000", "dtype": "float16", "head_dim": "many"}
    shape = ModelShape.from_labels(labels)
    assert (shape.num_layers, shape.weight_bytes, shape.dtype) == (32, 16 * 10**9, "float16")
    assert (shape.head_dim, shape.kv_bytes_per_token) == (None, None)


def test_an_engine_that_measured_its_device_lacks_no_ceiling():
    gauges = {
        "bandwidth_ceiling": Gauge((10e9,), "device_bandwidth_bytes_per_second"),
        "flops_ceiling": Gauge((50e9,), "device_flops_per_second"),
    }
    signals = Signals("stallscope", 10.0, 2, gauges=gauges, info={"attention_backend": "torch"})
    ceilings = DeviceCeilings.from_signals(signals)
    assert ceilings == DeviceCeilings(ByteRate(10e9), 50e9, "torch")
    found = statement(decode(1), MODEL, ceilings)
    assert (found.limit, found.missing) == (Limit.MEMORY, ())
    assert DeviceCeilings.from_signals(Signals("vllm", 10.0, 2)) == DeviceCeilings()
