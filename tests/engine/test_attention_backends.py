"""Layouts, and which backend is taken for which device, model and pool."""

import importlib.util
import sys
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from engine.errors import ConfigError
from engine.runner.attention import backends, flash_kernels
from engine.runner.attention.backends import AttentionSpec, build_attention, choose
from engine.runner.attention.flash_kernels import FlashKernels, installed_generations, usable_generations
from engine.runner.attention.layout import StepLayout, pack_step, pad_decodes
from tests.engine.model_helpers import BLOCK_SIZE, blocks_for, chunk_of, decode_of, make_plan, make_prompt, make_request

HOPPER, AMPERE, BLACKWELL, CONSUMER, TURING = (9, 0), (8, 0), (10, 0), (12, 0), (7, 5)


def make_spec(**values: Any) -> AttentionSpec:
    defaults: dict[str, Any] = {
        "num_layers": 1,
        "num_kv_heads": 2,
        "head_dim": 64,
        "num_blocks": 8,
        "block_size": 16,
        "max_position": 256,
        "dtype": torch.bfloat16,
        "device": torch.device("cpu"),
        "capability": HOPPER,
        "num_processors": 132,
    }
    return AttentionSpec(**(defaults | values))


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch):
    """Call it with what is installed: `triton`, and generations of FlashAttention."""

    def install(*names: str | int) -> None:
        generations = frozenset(name for name in names if isinstance(name, int))
        monkeypatch.setattr(backends, "installed_generations", lambda: generations)
        spec = object() if "triton" in names else None
        monkeypatch.setattr(backends, "importlib", SimpleNamespace(util=SimpleNamespace(find_spec=lambda _: spec)))

    return install


def test_a_layout_holds_decodes_then_chunks():
    decode = make_request(make_prompt(20), [7, 2])
    decode.output_token_ids.append(5)
    chunk, whole = make_request(make_prompt(40, seed=2), blocks_for(40, 3)), make_request(make_prompt(3, seed=3), [9])
    plan = make_plan(decodes=[decode_of(decode)], prefills=[chunk_of(chunk, 10, 8), chunk_of(whole, 0, 3)])
    packed = pack_step(plan)
    layout = packed.unpack(torch.tensor(packed.values))
    assert layout.token_ids.tolist() == [5, *chunk.prompt_token_ids[10:18], *whole.prompt_token_ids]
    assert layout.positions.tolist() == [20, *range(10, 18), 0, 1, 2]
    assert layout.slots.tolist() == plan.slots
    assert layout.context_lens.tolist() == [21, 18, 3]
    assert layout.prefill_starts.tolist() == [0, 8, 11]
    assert layout.kv_starts.tolist() == [0, 18, 21]
    assert layout.sample_rows.tolist() == [0, 11]
    assert layout.block_tables.tolist() == [[7, 2], [3, 4], [9, 0]]
    assert (layout.num_decodes, layout.max_query_len, layout.max_prefill_context) == (1, 8, 18)


def test_padding_adds_rows_that_use_a_block_of_nobody():
    request = make_request(make_prompt(20), [7, 2])
    request.output_token_ids.append(5)
    plan = make_plan(decodes=[decode_of(request)])
    padded = pad_decodes(plan, 3, block=50, block_size=BLOCK_SIZE)
    packed = pack_step(padded)
    layout = packed.unpack(torch.tensor(packed.values))
    assert layout.num_decodes == 3
    assert layout.slots.tolist() == [2 * BLOCK_SIZE + 4, 50 * BLOCK_SIZE, 50 * BLOCK_SIZE]
    assert layout.context_lens.tolist() == [21, 1, 1]
    assert layout.block_tables.tolist() == [[7, 2], [50, 0], [50, 0]]
    assert layout.sample_rows.tolist() == [0]
    assert plan.token_ids == [5], "the plan itself is untouched"


@pytest.mark.parametrize(
    ("have", "spec", "name", "reason"),
    [
        ((), {}, "torch", "flash_attn is not installed; triton triton is not installed"),
        (("triton",), {}, "triton", "flash_attn is not installed"),
        (("triton", 3), {}, "flash_attn", "the fastest one there is"),
        (("triton", 2), {}, "triton", "version 2 is installed, but pages are a multiple of 256 tokens, not 16"),
        (("triton", 2), {"block_size": 256}, "flash_attn", "the fastest"),
        (("triton", 3), {"capability": AMPERE}, "triton", "no paged KV on compute capability 8.0"),
        (("triton", 3), {"dtype": torch.float32}, "triton", "takes float16 and bfloat16, not float32"),
        (("triton", 3), {"head_dim": 320}, "torch", "head size of at most 256, not 320"),
        (("triton",), {"dtype": torch.float64}, "torch", "has no kernel for float64"),
        (("triton", 2, 3, 4), {"capability": None}, "torch", "needs a CUDA device"),
    ],
)
def test_the_best_usable_backend_is_taken_and_the_reason_kept(installed, have, spec, name, reason):
    installed(*have)
    chosen, why = choose("auto", make_spec(**spec))
    assert chosen == name
    assert reason in why


def test_what_is_asked_for_is_taken_or_refused_in_one_line(installed):
    installed(2)
    assert choose("torch", make_spec()) == ("torch", "asked for")
    with pytest.raises(ConfigError, match="--attention triton: triton triton is not installed"):
        choose("triton", make_spec())
    with pytest.raises(ConfigError, match=r"--attention flash_attn: .* 256 tokens, not 16 \(try --block-size 256\)"):
        choose("flash_attn", make_spec())


@pytest.mark.parametrize(
    ("capability", "block_size", "expected"),
    [
        (HOPPER, 16, [3, 4]),
        (HOPPER, 512, [3, 2, 4]),
        (AMPERE, 256, [2]),
        (AMPERE, 16, []),
        (BLACKWELL, 16, [4]),
        (CONSUMER, 256, [2]),
        (TURING, 256, []),
    ],
)
def test_generations_by_device_and_page(capability, block_size, expected):
    usable, refused = usable_generations(capability, block_size)
    assert usable == expected
    assert set(refused) == {2, 3, 4} - set(expected)


def test_installed_generations_are_found_without_importing(tmp_path, monkeypatch):
    assert installed_generations() == frozenset()
    package = tmp_path / "flash_attn"
    (package / "cute").mkdir(parents=True)
    (package / "__init__.py").write_text("")
    (package / "cute" / "__init__.py").write_text("raise RuntimeError('imported')")
    monkeypatch.syspath_prepend(str(tmp_path))
    importlib.invalidate_caches()
    assert installed_generations() == {2, 4}
    sys.modules.pop("flash_attn", None)


def test_the_choice_is_logged(caplog):
    with caplog.at_level("INFO", "stallscope.engine"):
        attention = build_attention("torch", make_spec(dtype=torch.float32, capability=None))
    assert attention.name == "torch"
    assert "attention backend torch: asked for" in caplog.text


class RecordingModule:
    """Any function: notes its arguments, returns its first one."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, set[str], dict[str, Any]]] = []

    def __getattr__(self, name: str):
        def call(query, keys, values, **options):
            self.calls.append((name, set(options), options))
            return query

        return call


def mixed_layout() -> StepLayout:
    decode, chunk = make_request(make_prompt(20), [1, 2]), make_request(make_prompt(30, seed=2), [3, 4])
    decode.output_token_ids.append(5)
    plan = make_plan(decodes=[decode_of(decode)], prefills=[chunk_of(chunk, 10, 8)])
    packed = pack_step(plan)
    return packed.unpack(torch.tensor(packed.values))


@pytest.mark.parametrize(
    ("generation", "decode", "prefill"),
    [
        (
            2,
            ("flash_attn_with_kvcache", {"cache_seqlens", "causal", "block_table"}),
            (
                "flash_attn_varlen_func",
                {"cu_seqlens_q", "cu_seqlens_k", "max_seqlen_q", "max_seqlen_k", "causal", "block_table"},
            ),
        ),
        (
            3,
            ("flash_attn_with_kvcache", {"cache_seqlens", "causal", "page_table"}),
            ("flash_attn_with_kvcache", {"cache_seqlens", "causal", "page_table", "cu_seqlens_q", "max_seqlen_q"}),
        ),
        (
            4,
            ("flash_attn_varlen_func", {"cu_seqlens_q", "max_seqlen_q", "seqused_k", "page_table", "causal"}),
            ("flash_attn_varlen_func", {"cu_seqlens_q", "max_seqlen_q", "seqused_k", "page_table", "causal"}),
        ),
    ],
)
def test_each_generation_is_called_in_its_own_form(monkeypatch, generation, decode, prefill):
    """Against a module that takes anything: the forms are the documented ones, no GPU has confirmed them."""
    module = RecordingModule()
    monkeypatch.setattr(flash_kernels, "importlib", SimpleNamespace(import_module=lambda _: module))
    kernels = FlashKernels(generation)
    layout = mixed_layout()
    kernels.begin(layout)
    keys, values = torch.zeros((2, 6, BLOCK_SIZE, 2, 8))
    key = torch.randn(9, 2, 8)
    kernels.write(layout, key, -key, keys, values)
    assert torch.equal(keys[2, 4], key[0]) and torch.equal(values[2, 4], -key[0])
    assert torch.equal(keys[3, 10:], key[1:7]) and torch.equal(keys[4, :2], key[7:])
    query = torch.randn(9, 4, 8)
    assert kernels.decode(layout, query[:1], keys, values).shape == (1, 4, 8)
    assert kernels.prefill(layout, query[1:], keys, values).shape == (8, 4, 8)
    assert [call[:2] for call in module.calls] == [decode, prefill]
    options = module.calls[1][2]
    assert options["cu_seqlens_q"].tolist() == [0, 8]
    assert options["max_seqlen_q"] == 8
    table_name = "block_table" if generation == 2 else "page_table"
    assert options[table_name].tolist() == [[3, 4]]
