"""Subject: nano-vllm's BlockManager and Scheduler. nano-vllm itself is on no package index; `nano-vllm-npu` is a port of
its runner to other hardware that ships the policy unchanged, and is imported here without that runner.
"""

import sys
from collections.abc import Iterator
from functools import lru_cache, partial
from importlib import import_module
from importlib.metadata import version
from importlib.util import find_spec
from itertools import count, cycle
from types import ModuleType, SimpleNamespace
from typing import Any

from tests.benchmarks.peers.protocol import (
    BLOCK,
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

PACKAGE = "nanovllmnpu"
LINEAR = 1_000_000
"""From this pool size on, one repetition of what costs O(pool) per block is enough."""


class Nano:
    """The names of nano-vllm's that are used, imported once, without the package's own import of its model runner."""

    def __init__(self) -> None:
        found = find_spec(PACKAGE)
        if found is None:
            raise ModuleNotFoundError(f"no module named {PACKAGE}")
        bare = ModuleType(PACKAGE)
        bare.__path__ = list(found.submodule_search_locations or [])
        sys.modules[PACKAGE] = bare
        config = ModuleType(f"{PACKAGE}.config")
        config.Config = SimpleNamespace  # type: ignore[attr-defined]
        sys.modules[f"{PACKAGE}.config"] = config
        self.manager: Any = import_module(f"{PACKAGE}.engine.block_manager").BlockManager
        self.scheduler: Any = import_module(f"{PACKAGE}.engine.scheduler").Scheduler
        self.sequence: Any = import_module(f"{PACKAGE}.engine.sequence").Sequence
        self.sampling: Any = import_module(f"{PACKAGE}.sampling_params").SamplingParams
        self.sequence.block_size = BLOCK


names = lru_cache(maxsize=1)(Nano)


@lru_cache(maxsize=1)
def full(size: int) -> tuple[Any, list[int]]:
    """A block manager whose free list holds computed prompts only, and which of them are asked for."""
    manager = names().manager(size, BLOCK)
    prompts = 0
    for tokens in filling_prompts(size):
        sequence = names().sequence(tokens)
        manager.allocate(sequence)
        manager.deallocate(sequence)
        prompts += 1
    return manager, spread(prompts)


def give_back(manager: Any, block_ids: list[int]) -> None:
    """The loop of `deallocate`."""
    for block_id in reversed(block_ids):
        block = manager.blocks[block_id]
        block.ref_count -= 1
        if block.ref_count == 0:
            manager._deallocate_block(block_id)


def hand_out(manager: Any, num_blocks: int) -> list[int]:
    """The loop of `allocate` after a miss."""
    blocks = []
    for _ in range(num_blocks):
        block_id = manager.free_block_ids[0]
        manager._allocate_block(block_id)
        blocks.append(block_id)
    return blocks


def hash_64(size: int) -> Round:
    sequence = names().sequence(prompt_tokens(0, PROMPT))
    compute = names().manager.compute_hash

    def action() -> None:
        last = -1
        for i in range(sequence.num_blocks):
            last = compute(sequence.block(i), last)

    return repeated("hash_64", action, PROMPT / 1000)


def hash_insert(size: int) -> Round:
    manager = names().manager(size, BLOCK)
    sequences = (names().sequence(prompt_tokens(number)) for number in count(NEW_TOKENS // SEQUENCE))
    return consuming("hash_insert", (partial(manager.allocate, s) for s in sequences), SEQUENCE / 1000, 12)


def allocate_free(size: int) -> Round:
    manager = names().manager(size, BLOCK)

    def action() -> None:
        for _ in range(200):
            give_back(manager, hand_out(manager, 16))

    return repeated("allocate_free", action, 3200)


def take(size: int) -> Round:
    manager, places = full(size)
    length = 16 if size >= LINEAR else PROMPT // BLOCK
    hits = cycle([cached(manager, prompt_tokens(place, PROMPT))[:length] for place in places])

    def action(blocks: list[int]) -> None:
        for block_id in blocks:
            block = manager.blocks[block_id]
            content = block.hash, block.token_ids
            manager._allocate_block(block_id).update(*content)
        give_back(manager, blocks)

    return consuming("take", (partial(action, b) for b in hits), length, 1 if size >= LINEAR else 5)


def cached(manager: Any, tokens: list[int]) -> list[int]:
    last, blocks = -1, []
    for at in range(0, len(tokens), BLOCK):
        last = manager.compute_hash(tokens[at : at + BLOCK], last)
        blocks.append(manager.hash_to_block_id[last])
    return blocks


def admit(size: int) -> Round:
    manager, places = full(size)

    def action(sequence: Any) -> None:
        manager.allocate(sequence)
        assert sequence.num_cached_tokens == PROMPT
        manager.deallocate(sequence)

    def sequences() -> Iterator[Any]:
        for number, place in zip(count(), cycle(places), strict=False):
            tail = range(NEW_TOKENS + number * 64, NEW_TOKENS + number * 64 + 64)
            yield names().sequence([*prompt_tokens(place, PROMPT), *tail])

    actions = (partial(action, s) for s in sequences())
    return consuming("admit", actions, (PROMPT + 64) / 1000, 1 if size >= LINEAR else 5)


def evict(row: str) -> Case:
    def case(size: int) -> Round:
        manager = full(size)[0]
        while manager.blocks[manager.free_block_ids[0]].hash == -1:
            hand_out(manager, 1)
        return repeated(row, lambda: hand_out(manager, SEQUENCE_BLOCKS), SEQUENCE_BLOCKS, EVICTIONS)

    return case


def one_step(scheduler: Any) -> tuple[int, int]:
    made: list[Any] = []
    schedule = timed_ns(lambda: made.append(scheduler.schedule()))
    sequences, _ = made[0]
    tokens = [7] * len(sequences)
    return schedule, timed_ns(lambda: scheduler.postprocess(sequences, tokens))


def decodes(size: int) -> Round:
    scheduler = names().scheduler(
        SimpleNamespace(
            max_num_seqs=DECODES + 8,
            max_num_batched_tokens=8192,
            eos=-1,
            num_kvcache_blocks=size,
            kvcache_block_size=BLOCK,
        )
    )
    sampling = names().sampling(max_tokens=1 << 16, ignore_eos=True)
    for i in range(DECODES):
        scheduler.add(names().sequence(prompt_tokens(i, 20), sampling))
    one_step(scheduler)
    one_step(scheduler)

    def measure() -> Rows:
        times = [one_step(scheduler) for _ in range(STEPS)]
        schedule, update = (sum(part) / STEPS for part in zip(*times, strict=True))
        return {"schedule_decodes": [schedule], "update_decodes": [update], "step_decodes": [schedule + update]}

    return measure


def load() -> dict[str, Case]:
    names()
    return {
        "hash_64": hash_64,
        "hash_insert": hash_insert,
        "allocate_free": allocate_free,
        "take": take,
        "admit": admit,
        "evict": evict("evict"),
        "evict_bare": evict("evict_bare"),
        "decodes": decodes,
    }


if __name__ == "__main__":
    serve("nano", lambda: f"nano-vllm-npu {version('nano-vllm-npu')}", load)
