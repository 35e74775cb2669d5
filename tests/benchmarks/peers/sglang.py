"""Subject: SGLang's prefix trees. One process per tree: `radix` (radix_cache.py), and the unified cache with its
`python` or its `rust` core, the latter being SGLang's default.
"""

import sys
from array import array
from collections.abc import Sequence
from functools import lru_cache, partial
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.metadata import version
from itertools import count, cycle
from types import ModuleType
from typing import Any

from tests.benchmarks.peers.protocol import (
    BLOCK,
    NEW_TOKENS,
    PROMPT,
    SEQUENCE,
    SEQUENCE_BLOCKS,
    Case,
    Round,
    consuming,
    prompt_tokens,
    repeated,
    serve,
    spread,
)

BRANCHES = 63
FREE_BLOCKS = 4096
BESIDE_THE_TREES = (
    "sglang.kernels",
    "sglang.srt.configs",
    "sglang.srt.constrained",
    "sglang.srt.entrypoints",
    "sglang.srt.mem_cache.memory_pool",
    "sglang.srt.parser",
    "sglang.srt.utils.hf_transformers_patches",
    "torchvision",
    "transformers",
    "tvm_ffi",
)
"""Modules that the trees import and do not run: kernels, model configurations, grammars. They need GPU packages."""


class Nothing:
    """What a stand-in module answers for a name that starts in lower case: usable as a decorator, and nothing else."""

    def __init__(self, *_: object, **__: object) -> None:
        pass

    def __call__(self, *args: Any, **_: object) -> Any:
        return args[0] if len(args) == 1 and callable(args[0]) else Nothing()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return Nothing()


class StandIn(ModuleType):
    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        value = type(name, (), {}) if name[0].isupper() and not name.isupper() else Nothing()
        setattr(self, name, value)
        return value


class StandIns(MetaPathFinder, Loader):
    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        beside = any(fullname == one or fullname.startswith(one + ".") for one in BESIDE_THE_TREES)
        return ModuleSpec(fullname, self, is_package=True) if beside else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return StandIn(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        pass


class Allocator:
    """Takes back what a tree evicts. Cheaper than SGLang's own, which makes tensors of it."""

    device = "cpu"
    page_size = BLOCK

    def free(self, indices: object) -> None:
        pass

    def free_segment(self, indices: object, *, start_pos: int) -> None:
        pass


class Sglang:
    """The names of SGLang's that are used, imported once, and the tree that was asked for."""

    def __init__(self) -> None:
        sys.meta_path.insert(0, StandIns())
        self.torch: Any = import_module("torch")
        self.torch.set_num_threads(1)
        self.base: Any = import_module("sglang.srt.mem_cache.base_prefix_cache")
        self.radix: Any = import_module("sglang.srt.mem_cache.radix_cache")
        self.params: Any = import_module("sglang.srt.mem_cache.cache_init_params").CacheInitParams
        self.kind = sys.argv[1] if len(sys.argv) > 1 else "radix"
        if self.kind != "radix":
            self.component: Any = import_module("sglang.srt.mem_cache.unified_cache.component_type").ComponentType
            self.unified: Any = import_module("sglang.srt.mem_cache.unified_radix_cache").UnifiedRadixCache

    def make_cache(self) -> Any:
        common = {
            "disable": False,
            "req_to_token_pool": None,
            "token_to_kv_pool_allocator": Allocator(),
            "page_size": BLOCK,
        }
        if self.kind == "radix":
            return self.radix.RadixCache(self.params(**common))
        components = (self.component.FULL,)
        cache = self.unified(self.params(**common, tree_components=components, tree_core_backend=self.kind))
        assert cache._tree_core_backend == self.kind, f"SGLang chose its {cache._tree_core_backend} core"
        return cache

    def key(self, tokens: list[int]) -> Any:
        return self.radix.RadixKey(array("q", tokens), None)

    def slots(self, first_block: int, length: int) -> Any:
        return self.torch.arange(first_block * BLOCK, first_block * BLOCK + length, dtype=self.torch.int64)


names = lru_cache(maxsize=1)(Sglang)


class Tree:
    """A tree with sequences that have nothing in common and one path of 64 nodes."""

    def __init__(self, size: int) -> None:
        self.cache = names().make_cache()
        self.sequences = (size - FREE_BLOCKS) // SEQUENCE_BLOCKS
        self.next_block = 0
        for number in range(self.sequences):
            self.put(prompt_tokens(number))
        self.path = prompt_tokens(NEW_TOKENS // PROMPT - 1, PROMPT)
        self.put(self.path)
        for branch in range(1, BRANCHES + 1):
            self.put([*self.path[: branch * 64], *prompt_tokens(2 * NEW_TOKENS // BLOCK + branch, BLOCK)])
        assert self.match(names().key(self.path)).device_prefix_len == PROMPT

    def put(self, tokens: list[int]) -> None:
        self.insert(names().key(tokens), self.new_slots(len(tokens)))

    def new_slots(self, length: int) -> Any:
        first = self.next_block
        self.next_block += length // BLOCK
        return names().slots(first, length)

    def insert(self, key: Any, slots: Any) -> None:
        self.cache.insert(names().base.InsertParams(key=key, value=slots))

    def match(self, key: Any) -> Any:
        return self.cache.match_prefix(names().base.MatchPrefixParams(key=key))


tree = lru_cache(maxsize=1)(Tree)


def radix_prepare(size: int) -> Round:
    tokens = prompt_tokens(0, PROMPT)
    return repeated("radix_prepare", lambda: names().key(tokens), PROMPT / 1000)


def radix_match_1(size: int) -> Round:
    match = tree(size).match
    keys = cycle([names().key(prompt_tokens(place)) for place in spread(tree(size).sequences)])
    return consuming("radix_match_1", (partial(match, key) for key in keys), SEQUENCE / 1000, 16)


def radix_match_64(size: int) -> Round:
    match, key = tree(size).match, names().key(tree(size).path)
    return repeated("radix_match_64", lambda: match(key), PROMPT / 1000)


def radix_blocks_64(size: int) -> Round:
    match, cache, key = tree(size).match, tree(size).cache, names().key(tree(size).path)
    assert len(cache.path_device_indices(match(key).last_device_node)) == PROMPT

    def action() -> None:
        cache.path_device_indices(match(key).last_device_node)

    return repeated("radix_blocks_64", action, PROMPT / 1000)


def radix_miss(size: int) -> Round:
    match = tree(size).match
    key = names().key(prompt_tokens(3 * NEW_TOKENS // PROMPT, PROMPT))
    return repeated("radix_miss", lambda: [match(key) for _ in range(100)], 100)


def radix_pin_64(size: int) -> Round:
    match, cache, key = tree(size).match, tree(size).cache, names().key(tree(size).path)

    def action() -> None:
        node = match(key).last_device_node
        cache.path_device_indices(node)
        cache.unlock(cache.lock(node))

    return repeated("radix_pin_64", action, PROMPT / 1000)


def radix_insert(size: int) -> Round:
    here = tree(size)
    prepared = (
        (names().key(prompt_tokens(number)), here.new_slots(SEQUENCE)) for number in count(NEW_TOKENS // SEQUENCE)
    )
    actions = (partial(here.insert, *p) for p in prepared)
    return consuming("radix_insert", actions, SEQUENCE / 1000, repetitions=6)


def radix_again_64(size: int) -> Round:
    here, key, slots = tree(size), names().key(tree(size).path), tree(size).new_slots(PROMPT)
    return repeated("radix_again_64", lambda: here.insert(key, slots), PROMPT / 1000)


def radix_evict(size: int) -> Round:
    cache, params = tree(size).cache, names().base.EvictParams

    def action() -> None:
        assert cache.evict(params(num_tokens=SEQUENCE)).num_tokens_evicted == SEQUENCE

    return repeated("radix_evict", action, SEQUENCE_BLOCKS)


def load() -> dict[str, Case]:
    names().make_cache()
    cases = (
        radix_prepare,
        radix_match_1,
        radix_match_64,
        radix_blocks_64,
        radix_miss,
        radix_pin_64,
        radix_insert,
        radix_again_64,
        radix_evict,
    )
    return {case.__name__: case for case in cases}


if __name__ == "__main__":
    serve("sglang", lambda: f"{version('sglang')}, {names().kind}", load)
