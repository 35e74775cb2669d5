"""Builders for tests of the decoder and its runner: hand-made batches and a dense reference without pages."""

from collections.abc import Sequence

import torch
from torch import Tensor

from engine.model.config import ModelConfig
from engine.model.registry import LoadedModel, load_model
from engine.model.weights import split_to_hf
from engine.request import Request, SamplingParams
from engine.runner.base import Runner
from engine.runner.cpu import CpuRunner
from engine.step import BatchPlan, ScheduledSequence, ScheduledStep, plan_batch
from probes.optime import LapTimer

# One thread: the tests must behave on a small shared machine, and sums then have one order.
torch.set_num_threads(1)

BLOCK_SIZE = 16


def tiny(dtype: str = "float64", seed: int = 0) -> LoadedModel:
    return load_model("tiny", dtype, seed=seed)


def make_runner(model: LoadedModel, num_blocks: int = 128, block_size: int = BLOCK_SIZE) -> CpuRunner:
    runner = CpuRunner(model, threads=1)
    runner.allocate_kv(num_blocks, block_size)
    return runner


def make_prompt(length: int, seed: int = 1, vocab: int = 256) -> list[int]:
    return torch.randint(0, vocab, (length,), generator=torch.Generator().manual_seed(seed)).tolist()


def make_request(
    prompt: Sequence[int], blocks: Sequence[int], params: SamplingParams | None = None, name: str = "r"
) -> Request:
    request = Request(name, list(prompt), params or SamplingParams(), arrival_ns=0)
    request.block_ids = list(blocks)
    return request


def chunk_of(request: Request, start: int, num_tokens: int) -> ScheduledSequence:
    samples = start + num_tokens == len(request.prompt_token_ids)
    return ScheduledSequence(request, start, num_tokens, is_decode=False, samples=samples)


def decode_of(request: Request) -> ScheduledSequence:
    return ScheduledSequence(request, request.num_tokens - 1, 1, is_decode=True, samples=True)


def make_plan(
    *, decodes: Sequence[ScheduledSequence] = (), prefills: Sequence[ScheduledSequence] = (), **step: object
) -> BatchPlan:
    return plan_batch(ScheduledStep(decodes=list(decodes), prefills=list(prefills), **step), BLOCK_SIZE)  # type: ignore[arg-type]


def all_logits(runner: CpuRunner, plan: BatchPlan) -> Tensor:
    """Logits of every row of a plan: [query tokens, vocab]."""
    plan.sample_rows = list(range(len(plan.token_ids)))
    with torch.inference_mode():
        return runner.forward(plan, LapTimer())


def prefill_logits(runner: CpuRunner, request: Request, chunk_size: int) -> Tensor:
    """Logits of every prompt position, computed in chunks: [prompt, vocab]."""
    length = len(request.prompt_token_ids)
    starts = range(0, length, chunk_size)
    chunks = [chunk_of(request, start, min(chunk_size, length - start)) for start in starts]
    return torch.cat([all_logits(runner, make_plan(prefills=[chunk])) for chunk in chunks])


def generate(
    runner: Runner,
    request: Request,
    num_tokens: int,
    *,
    chunk_size: int = 1 << 20,
    stop_ids: frozenset[int] = frozenset(),
) -> list[int]:
    """Prefill in chunks unless that was done, then decode; the request's output tokens."""
    length = 0 if request.output_token_ids else len(request.prompt_token_ids)
    for start in range(0, length, chunk_size):
        plan = make_plan(prefills=[chunk_of(request, start, min(chunk_size, length - start))])
        request.output_token_ids += runner.execute(plan).token_ids
    while len(request.output_token_ids) < num_tokens and request.output_token_ids[-1] not in stop_ids:
        request.output_token_ids += runner.execute(make_plan(decodes=[decode_of(request)])).token_ids
    return request.output_token_ids


def blocks_for(num_tokens: int, first: int = 0) -> range:
    return range(first, first + -(-num_tokens // BLOCK_SIZE))


def dense_logits(model: LoadedModel, tokens: Sequence[int]) -> Tensor:
    """[tokens, vocab] by a textbook decoder: whole sequence, explicit softmax, rotary positions as complex numbers.

    Shares with the engine only the weights; nothing is fused, paged or cached.
    """
    config = model.config
    weights = split_to_hf(config, model.weights)
    hidden = weights["model.embed_tokens.weight"][list(tokens)]
    for index in range(config.num_layers):
        layer = {name.split(f"layers.{index}.")[1]: t for name, t in weights.items() if f"layers.{index}." in name}
        hidden = hidden + _dense_attention(config, layer, _norm(hidden, layer["input_layernorm.weight"], config))
        normed = _norm(hidden, layer["post_attention_layernorm.weight"], config)
        gate, up = normed @ layer["mlp.gate_proj.weight"].T, normed @ layer["mlp.up_proj.weight"].T
        hidden = hidden + (gate * torch.sigmoid(gate) * up) @ layer["mlp.down_proj.weight"].T
    head = weights.get("lm_head.weight", weights["model.embed_tokens.weight"])
    return _norm(hidden, weights["model.norm.weight"], config) @ head.T


def _norm(hidden: Tensor, weight: Tensor, config: ModelConfig) -> Tensor:
    return hidden / (hidden.square().mean(-1, keepdim=True) + config.rms_eps).sqrt() * weight


def _dense_attention(config: ModelConfig, layer: dict[str, Tensor], normed: Tensor) -> Tensor:
    length = normed.shape[0]

    def project(name: str, num_heads: int) -> Tensor:
        projected = normed @ layer[f"self_attn.{name}.weight"].T
        if f"self_attn.{name}.bias" in layer:
            projected = projected + layer[f"self_attn.{name}.bias"]
        heads = projected.view(length, num_heads, config.head_dim)
        norm = f"self_attn.{name[0]}_norm.weight"
        if norm in layer:
            heads = _norm(heads, layer[norm], config)
        return heads.transpose(0, 1)

    query = _rotate(project("q_proj", config.num_query_heads), config)
    key = _rotate(project("k_proj", config.num_kv_heads), config)
    value = project("v_proj", config.num_kv_heads)
    causal = torch.ones(length, length, dtype=torch.bool).tril()
    heads = []
    for head in range(config.num_query_heads):
        kv_head = head * config.num_kv_heads // config.num_query_heads
        scores = query[head] @ key[kv_head].T / config.head_dim**0.5
        heads.append(scores.masked_fill(~causal, float("-inf")).softmax(-1) @ value[kv_head])
    output = torch.cat(heads, dim=-1) @ layer["self_attn.o_proj.weight"].T
    return output + layer["self_attn.o_proj.bias"] if "self_attn.o_proj.bias" in layer else output


def _rotate(heads: Tensor, config: ModelConfig) -> Tensor:
    half = config.head_dim // 2
    exponents = torch.arange(half, dtype=torch.float64) / half
    angles = torch.outer(torch.arange(heads.shape[1], dtype=torch.float64), config.rope_theta**-exponents)
    turned = torch.complex(heads[..., :half], heads[..., half:]) * torch.polar(torch.ones_like(angles), angles)
    return torch.cat((turned.real, turned.imag), dim=-1)
