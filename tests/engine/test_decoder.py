"""The decoder over paged KV, in float64, where any difference above 1e-12 is a defect and not rounding."""

import dataclasses

import pytest
import torch

from engine.model.ops import Linear
from engine.model.registry import LoadedModel
from engine.model.tiny import TINY_CONFIG, RandomSource
from engine.model.weights import assemble
from engine.runner.cpu import CpuRunner
from engine.step import BlockCopy
from probes.optime import LapTimer
from tests.engine.model_helpers import (
    BLOCK_SIZE,
    all_logits,
    blocks_for,
    chunk_of,
    decode_of,
    dense_logits,
    generate,
    make_plan,
    make_prompt,
    make_request,
    make_runner,
    prefill_logits,
    tiny,
)
from tests.requirements import covers

TOLERANCE = 1e-12
PROMPT_LENGTH = 600


@pytest.fixture(scope="module")
def model() -> LoadedModel:
    return tiny("float64")


@pytest.fixture(scope="module")
def runner(model: LoadedModel) -> CpuRunner:
    return make_runner(model)


@pytest.fixture(scope="module")
def dense(model: LoadedModel) -> torch.Tensor:
    return dense_logits(model, make_prompt(PROMPT_LENGTH))


def max_difference(first: torch.Tensor, second: torch.Tensor) -> float:
    assert first.shape == second.shape
    return float((first - second).abs().max())


@covers("S2.1")
@pytest.mark.parametrize("chunk_size", [1, 7, 16, 508, PROMPT_LENGTH])
def test_chunked_prefill_equals_dense_reference(runner, dense, chunk_size):
    """A chunk attends to the KV of all earlier chunks and causally within itself."""
    request = make_request(make_prompt(PROMPT_LENGTH), blocks_for(PROMPT_LENGTH))
    assert max_difference(prefill_logits(runner, request, chunk_size), dense) <= TOLERANCE


@covers("S2.2")
@pytest.mark.parametrize("chunk_size", [7, 16, 508])
def test_restarting_positions_at_each_chunk_breaks_the_result(runner, dense, chunk_size):
    """Rotary positions are absolute: the test above would notice if they were not."""
    request = make_request(make_prompt(PROMPT_LENGTH), blocks_for(PROMPT_LENGTH))
    parts = []
    for start in range(0, PROMPT_LENGTH, chunk_size):
        plan = make_plan(prefills=[chunk_of(request, start, min(chunk_size, PROMPT_LENGTH - start))])
        plan.positions = list(range(len(plan.positions)))
        parts.append(all_logits(runner, plan))
    assert max_difference(torch.cat(parts), dense) > 1e-3


@covers("S3.16")
def test_physical_block_order_is_arbitrary(runner, dense):
    """Only the block table knows where a logical block lies."""
    shuffled = torch.randperm(128, generator=torch.Generator().manual_seed(3)).tolist()
    request = make_request(make_prompt(PROMPT_LENGTH), shuffled[: len(blocks_for(PROMPT_LENGTH))])
    assert max_difference(prefill_logits(runner, request, 100), dense) <= TOLERANCE


def test_decode_steps_equal_prefill(runner, dense):
    """Fed one token at a time through the decode path, a sequence yields the logits of its prefill."""
    tokens = make_prompt(PROMPT_LENGTH)
    num_prompt = 60
    request = make_request(tokens[:num_prompt], blocks_for(PROMPT_LENGTH))
    prefill_logits(runner, request, num_prompt)
    for position in range(num_prompt, 120):
        request.output_token_ids.append(tokens[position])
        logits = all_logits(runner, make_plan(decodes=[decode_of(request)]))
        assert max_difference(logits[0], dense[position]) <= TOLERANCE


def test_mixed_batch_equals_separate_batches(model, runner):
    """Decodes of very different lengths (several padding buckets) and two prefill chunks share one step."""
    lengths = [5, 16, 17, 150, 152, 400]
    prompts = [make_prompt(length, seed=length) for length in lengths]
    first_block, requests = 0, []
    for prompt in prompts:
        request = make_request(prompt[:-1], blocks_for(len(prompt), first_block))
        first_block += len(request.block_ids)
        prefill_logits(runner, request, 64)
        request.output_token_ids.append(prompt[-1])
        requests.append(request)
    fresh = make_request(make_prompt(33, seed=90), blocks_for(33, first_block))
    resumed = make_request(make_prompt(40, seed=91), blocks_for(40, first_block + 3))
    all_logits(runner, make_plan(prefills=[chunk_of(resumed, 0, 21)]))
    plan = make_plan(
        decodes=[decode_of(request) for request in requests],
        prefills=[chunk_of(fresh, 0, 33), chunk_of(resumed, 21, 19)],
    )
    logits = all_logits(runner, plan)
    expected = [dense_logits(model, prompt)[-1:] for prompt in prompts]
    expected += [dense_logits(model, fresh.prompt_token_ids), dense_logits(model, resumed.prompt_token_ids)[21:]]
    assert max_difference(logits, torch.cat(expected)) <= TOLERANCE


def test_a_batch_beyond_the_gather_budget(model, runner):
    """Several hundred short decodes go through the scratch memory in portions; a partial last block counts whole."""
    prompt = make_prompt(17, seed=4)
    request = make_request(prompt[:-1], [3, 7])
    prefill_logits(runner, request, 64)
    request.output_token_ids.append(prompt[-1])
    logits = all_logits(runner, make_plan(decodes=[decode_of(request)] * 700))
    expected = dense_logits(model, prompt)[-1:].expand(700, -1)
    assert max_difference(logits, expected) <= TOLERANCE


def test_block_copy_gives_a_private_block(model, runner):
    """Copy-on-write: a second sequence continues from a copied partial block; the original keeps its content."""
    shared = make_prompt(24, seed=5)
    first = make_request([*shared, *make_prompt(30, seed=6)], [0, 1, 2, 3])
    all_logits(runner, make_plan(prefills=[chunk_of(first, 0, 24)]))
    # The second sequence shares block 0 and takes 8 of block 1's positions into block 9.
    second = make_request([*shared, *make_prompt(30, seed=7)], [0, 9, 10, 11])
    copies = [BlockCopy(1, 8, 8), BlockCopy(8, 9, 8)]  # in order: the second copy reads what the first wrote
    logits = all_logits(runner, make_plan(prefills=[chunk_of(second, 24, 30)], copies=copies))
    assert max_difference(logits, dense_logits(model, second.prompt_token_ids)[24:]) <= TOLERANCE
    logits = all_logits(runner, make_plan(prefills=[chunk_of(first, 24, 30)]))
    assert max_difference(logits, dense_logits(model, first.prompt_token_ids)[24:]) <= TOLERANCE


@covers("S1.1")
def test_prefill_writes_the_prompt_and_decode_appends_one(model):
    """After a prefill of P, P positions are in KV and one token is out; n decodes later P + n and n + 1."""
    runner = make_runner(model, num_blocks=8)
    assert runner._attention is not None
    kv = runner._attention.kv

    def num_written() -> set[int]:
        written = kv.abs().sum(dim=(-1, -2)).flatten(2) > 0  # [layers, 2, slots]
        assert not written[..., written.sum(-1).max() :].any(), "written positions are a prefix of the sequence"
        return set(written.sum(-1).flatten().tolist())

    request = make_request(make_prompt(20), range(4))
    generate(runner, request, 1)
    assert (num_written(), len(request.output_token_ids)) == ({20}, 1)
    generate(runner, request, 6)
    assert (num_written(), len(request.output_token_ids)) == ({25}, 6)


def test_a_chunk_before_the_last_samples_nothing(runner):
    request = make_request(make_prompt(40), blocks_for(40))
    assert runner.execute(make_plan(prefills=[chunk_of(request, 0, 30)])).token_ids == []
    assert len(runner.execute(make_plan(prefills=[chunk_of(request, 30, 10)])).token_ids) == 1


def test_only_wanted_rows_go_on_after_the_last_layers_attention(runner, dense, monkeypatch):
    """All rows write their KV, though: what follows a chunk without a wanted row attends to it in every layer."""
    rows_of_products: list[int] = []

    def counted(product: Linear) -> Linear:
        def linear(x: torch.Tensor) -> torch.Tensor:
            rows_of_products.append(x.shape[0])
            return product(x)

        return linear

    decoder = runner._decoder
    monkeypatch.setattr(decoder, "_products", [type(layer)(*map(counted, layer)) for layer in decoder._products])
    monkeypatch.setattr(decoder, "_lm_head", counted(decoder._lm_head))
    request = make_request(make_prompt(PROMPT_LENGTH), blocks_for(PROMPT_LENGTH))
    for start, num_tokens, wanted in ((0, 100, []), (100, 60, [59, 7, 59])):
        rows_of_products.clear()
        plan = make_plan(prefills=[chunk_of(request, start, num_tokens)])
        plan.sample_rows = wanted
        with torch.inference_mode():
            logits = runner.forward(plan, LapTimer())
        torch.testing.assert_close(logits, dense[[start + row for row in wanted]], rtol=0, atol=TOLERANCE)
        # Of a layer: QKV, output, gate and up, down.
        whole = 4 * (TINY_CONFIG.num_layers - 1) + 1
        assert rows_of_products == [num_tokens] * whole + [len(wanted)] * (4 if wanted else 0)


def test_stale_values_in_padding_do_not_matter(model):
    """The pool is reused without clearing: old KV behind a sequence's end must not leak into its result."""
    runner = make_runner(model, num_blocks=8)
    prefill_logits(runner, make_request(make_prompt(8 * BLOCK_SIZE, seed=8), range(8)), 64)
    prompt = make_prompt(20, seed=9)
    request = make_request(prompt[:-1], [5, 2])
    prefill_logits(runner, request, 64)
    request.output_token_ids.append(prompt[-1])
    logits = all_logits(runner, make_plan(decodes=[decode_of(request)]))
    assert max_difference(logits[0], dense_logits(model, prompt)[-1]) <= TOLERANCE


@pytest.mark.parametrize(
    "changes",
    [
        {"qkv_bias": True},
        {"qkv_bias": True, "output_bias": True},
        {"tie_embeddings": True},
        {"num_kv_heads": 4},
        {"num_kv_heads": 1},
        {"head_dim": 8},
    ],
    ids=str,
)
def test_variants_of_the_geometry(model, changes):
    """Biases, tied embeddings, MHA, MQA and a head_dim that is not hidden / heads."""
    config = dataclasses.replace(TINY_CONFIG, **changes)
    variant = dataclasses.replace(
        model, config=config, weights=assemble(config, RandomSource(config, 4), torch.float64)
    )
    request = make_request(make_prompt(50), blocks_for(50))
    logits = prefill_logits(make_runner(variant, num_blocks=8), request, 13)
    assert max_difference(logits, dense_logits(variant, request.prompt_token_ids)) <= TOLERANCE
