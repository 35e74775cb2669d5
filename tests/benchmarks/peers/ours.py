"""Subject: this repository's policy, put together as the scheduler does it, with all its statistics on."""

from collections.abc import Iterator
from functools import lru_cache, partial
from itertools import count, cycle
from typing import Any

from engine.prefix_cache import HASH_FUNCTIONS, HashChainIndex, PrefixIndex
from engine.request import Request
from engine.scheduler import Scheduler
from engine.step import ScheduledStep
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
from tests.engine.builders import SCOPE, make_request, make_scheduler

BRANCHES = 63
FREE_BLOCKS = 4096
"""Left in the pools of the radix cases for what is inserted."""


def key_of(index: PrefixIndex[Any], tokens: list[int]) -> Any:
    key = index.start()
    index.extend(key, tokens)
    return key


def admit_and_index(scheduler: Scheduler, request: Request) -> None:
    """What the scheduler does for a request from its admission to the commit of its only chunk."""
    prefixes, pool = scheduler._prefixes, scheduler.pool
    plan = prefixes.plan(request, pool.num_available, True)
    assert plan is not None
    prefixes.bind(request, plan, ScheduledStep())
    request.block_ids += pool.allocate(-(-request.num_tokens // BLOCK) - len(request.block_ids))
    request.num_computed_tokens = request.num_tokens
    prefixes.index_full_blocks(request)
    prefixes.note_cached()


def leave(scheduler: Scheduler, request: Request) -> None:
    scheduler._prefixes.forget(request)
    scheduler._release(request)


def put(scheduler: Scheduler, name: str, tokens: list[int]) -> None:
    """Serves a prompt and lets it go: what is full of it stays cached."""
    request = make_request(name, tokens)
    admit_and_index(scheduler, request)
    leave(scheduler, request)


@lru_cache(maxsize=1)
def full(size: int, statistics: bool = True) -> tuple[Scheduler, list[int]]:
    """A scheduler whose pool is full of reclaimable prompts, and which of them are asked for."""
    scheduler = make_scheduler(kv_blocks=size, max_model_len=1 << 20, measure_reuse=statistics)
    prompts = 0
    for tokens in filling_prompts(size):
        put(scheduler, f"fill-{prompts}", tokens)
        prompts += 1
    return scheduler, spread(prompts)


def hash_with(name: str) -> Case:
    def case(size: int) -> Round:
        index = HashChainIndex(BLOCK, SCOPE, HASH_FUNCTIONS[name])
        tokens = prompt_tokens(0, PROMPT)
        return repeated(f"hash_{'64' if name == 'siphash64' else name}", lambda: key_of(index, tokens), PROMPT / 1000)

    return case


def lookup_hit(size: int) -> Round:
    scheduler, places = full(size)
    index = scheduler.index
    keys = cycle([key_of(index, prompt_tokens(place, PROMPT)) for place in places])
    assert all(len(index.match(next(keys))) * BLOCK == PROMPT for _ in places)
    return consuming("lookup_hit", (partial(index.match, key) for key in keys), PROMPT / 1000)


def lookup_miss(size: int) -> Round:
    index = full(size)[0].index
    key = key_of(index, prompt_tokens(NEW_TOKENS // PROMPT, PROMPT))
    return repeated("lookup_miss", lambda: [index.match(key) for _ in range(100)], 100)


def hash_lookup(size: int) -> Round:
    scheduler, places = full(size)
    prompts = cycle([prompt_tokens(place, PROMPT) for place in places])
    return consuming("hash_lookup", (partial(scheduler.index.lookup, p) for p in prompts), PROMPT / 1000)


def new_requests(scheduler: Scheduler, hashed: bool) -> Iterator[Request]:
    for number in count(NEW_TOKENS // SEQUENCE):
        request = make_request(f"new-{number}", prompt_tokens(number))
        if hashed:
            scheduler._prefixes.plan(request, scheduler.pool.num_available, True)
        yield request


def insert(row: str, hashed: bool) -> Case:
    def case(size: int) -> Round:
        scheduler = make_scheduler(kv_blocks=size, max_model_len=1 << 20)
        requests = new_requests(scheduler, hashed)
        actions = (partial(admit_and_index, scheduler, r) for r in requests)
        return consuming(row, actions, SEQUENCE / 1000, repetitions=12)

    return case


def allocate_free(size: int) -> Round:
    pool = make_scheduler(kv_blocks=size).pool

    def action() -> None:
        for _ in range(200):
            pool.release(pool.allocate(16))

    return repeated("allocate_free", action, 3200)


def take(size: int) -> Round:
    scheduler, places = full(size)
    pool, index = scheduler.pool, scheduler.index
    hits = cycle([index.match(key_of(index, prompt_tokens(place, PROMPT))) for place in places])

    def action(blocks: list[int]) -> None:
        pool.touch(blocks)
        pool.release(blocks)

    return consuming("take", (partial(action, b) for b in hits), PROMPT // BLOCK)


def admit(size: int) -> Round:
    scheduler, places = full(size)

    def action(request: Request) -> None:
        admit_and_index(scheduler, request)
        assert request.num_hashed_blocks == (PROMPT + 64) // BLOCK
        leave(scheduler, request)

    def requests() -> Iterator[Request]:
        for number, place in zip(count(), cycle(places), strict=False):
            tail = range(NEW_TOKENS + number * 64, NEW_TOKENS + number * 64 + 64)
            yield make_request(f"hit-{number}", [*prompt_tokens(place, PROMPT), *tail])

    return consuming("admit", (partial(action, r) for r in requests()), (PROMPT + 64) / 1000)


def evict(row: str, statistics: bool) -> Case:
    def case(size: int) -> Round:
        scheduler = full(size, statistics)[0]
        pool = scheduler.pool
        pool.allocate(pool.census().free)
        if scheduler.reuse is not None:  # the ghost list is full, as it is in the long run
            ghosts = scheduler.reuse._ghosts
            old = range(2 * ghosts.generation)
            ghosts.add(old, old, 0)
        return repeated(row, lambda: pool.allocate(SEQUENCE_BLOCKS), SEQUENCE_BLOCKS, EVICTIONS)

    return case


def steps(kind: str, chunk: int) -> Case:
    def case(size: int) -> Round:
        scheduler = make_scheduler(max_batched_tokens=8192, kv_blocks=size, max_model_len=1 << 20)
        for i in range(DECODES):
            scheduler.add(make_request(f"decode-{i}", prompt_tokens(i, 20), max_tokens=1 << 16))
        one_step(scheduler)
        if chunk:
            scheduler.set_limits(max_batched_tokens=DECODES + chunk)
            scheduler.add(make_request("prompt", prompt_tokens(1, 48 * 1024), max_tokens=1))
        one_step(scheduler)

        def measure() -> Rows:
            times = [one_step(scheduler) for _ in range(STEPS)]
            schedule, commit = (sum(part) / STEPS for part in zip(*times, strict=True))
            return {f"schedule_{kind}": [schedule], f"update_{kind}": [commit], f"step_{kind}": [schedule + commit]}

        return measure

    return case


def one_step(scheduler: Scheduler) -> tuple[int, int]:
    made: list[ScheduledStep] = []
    schedule = timed_ns(lambda: made.append(scheduler.schedule()))
    tokens = [7] * len(made[0].sampled)
    return schedule, timed_ns(lambda: scheduler.commit(made[0], tokens, 0))


class Tree:
    """A radix index and its pool, with sequences that have nothing in common and one path of 64 nodes."""

    def __init__(self, size: int) -> None:
        self.scheduler = make_scheduler(kv_blocks=size, max_model_len=1 << 20, prefix_index="radix")
        self.index, self.pool = self.scheduler.index, self.scheduler.pool
        self.sequences = (size - FREE_BLOCKS) // SEQUENCE_BLOCKS
        for number in range(self.sequences):
            put(self.scheduler, f"fill-{number}", prompt_tokens(number))
        self.path = prompt_tokens(NEW_TOKENS // PROMPT - 1, PROMPT)
        put(self.scheduler, "path", self.path)
        for branch in range(1, BRANCHES + 1):
            leaf = prompt_tokens(2 * NEW_TOKENS // BLOCK + branch, BLOCK)
            put(self.scheduler, f"branch-{branch}", [*self.path[: branch * 64], *leaf])
        self.path_key = key_of(self.index, self.path)
        self.path_blocks = self.index.match(self.path_key)
        assert len(self.path_blocks) * BLOCK == PROMPT


tree = lru_cache(maxsize=1)(Tree)


def radix_prepare(size: int) -> Round:
    """With the identities for the reuse statistics: the scheduler asks for them when it admits a prompt."""
    index = make_scheduler(prefix_index="radix").index
    tokens = prompt_tokens(0, PROMPT)
    return repeated("radix_prepare", lambda: index.identities(key_of(index, tokens)), PROMPT / 1000)


def radix_match_1(size: int) -> Round:
    index = tree(size).index
    keys = cycle([key_of(index, prompt_tokens(place)) for place in spread(tree(size).sequences)])
    return consuming("radix_match_1", (partial(index.match, key) for key in keys), SEQUENCE / 1000, 16)


def radix_match_64(row: str) -> Case:
    def case(size: int) -> Round:
        index, key = tree(size).index, tree(size).path_key
        return repeated(row, lambda: index.match(key), PROMPT / 1000)

    return case


def radix_miss(size: int) -> Round:
    index = tree(size).index
    key = key_of(index, prompt_tokens(3 * NEW_TOKENS // PROMPT, PROMPT))
    return repeated("radix_miss", lambda: [index.match(key) for _ in range(100)], 100)


def radix_pin_64(size: int) -> Round:
    index, pool, key = tree(size).index, tree(size).pool, tree(size).path_key

    def action() -> None:
        blocks = index.match(key)
        pool.touch(blocks)
        pool.release(blocks)

    return repeated("radix_pin_64", action, PROMPT / 1000)


def radix_insert(size: int) -> Round:
    scheduler = tree(size).scheduler
    prefixes = scheduler._prefixes

    def requests() -> Iterator[Request]:
        for number in count(NEW_TOKENS // SEQUENCE):
            request = make_request(f"new-{number}", prompt_tokens(number))
            scheduler.index.identities(prefixes._key(request, SEQUENCE_BLOCKS))
            request.block_ids = scheduler.pool.allocate(SEQUENCE_BLOCKS)
            request.num_computed_tokens = SEQUENCE
            yield request

    def action(request: Request) -> None:
        prefixes.index_full_blocks(request)
        prefixes.note_cached()

    actions = (partial(action, request) for request in requests())
    return consuming("radix_insert", actions, SEQUENCE / 1000, repetitions=6)


def radix_again_64(size: int) -> Round:
    index, key, blocks = tree(size).index, tree(size).path_key, tree(size).path_blocks
    return repeated("radix_again_64", lambda: index.insert(key, blocks, 0, len(blocks)), PROMPT / 1000)


def radix_evict(size: int) -> Round:
    pool = tree(size).pool
    pool.allocate(pool.census().free)
    return repeated("radix_evict", lambda: pool.allocate(SEQUENCE_BLOCKS), SEQUENCE_BLOCKS)


def load() -> dict[str, Case]:
    return {
        "hash_sha256": hash_with("sha256"),
        "hash_64": hash_with("siphash64"),
        "lookup_hit": lookup_hit,
        "lookup_miss": lookup_miss,
        "hash_lookup": hash_lookup,
        "insert": insert("insert", hashed=True),
        "hash_insert": insert("hash_insert", hashed=False),
        "allocate_free": allocate_free,
        "take": take,
        "admit": admit,
        "evict": evict("evict", statistics=True),
        "evict_bare": evict("evict_bare", statistics=False),
        "decodes": steps("decodes", 0),
        "mixed": steps("mixed", CHUNK),
        "radix_prepare": radix_prepare,
        "radix_match_1": radix_match_1,
        "radix_match_64": radix_match_64("radix_match_64"),
        "radix_blocks_64": radix_match_64("radix_blocks_64"),
        "radix_miss": radix_miss,
        "radix_pin_64": radix_pin_64,
        "radix_insert": radix_insert,
        "radix_again_64": radix_again_64,
        "radix_evict": radix_evict,
    }


if __name__ == "__main__":
    serve("ours", lambda: "this repository", load)
