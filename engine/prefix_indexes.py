"""The prefix indexes that a scheduler can be given, by the name its configuration uses."""

from collections.abc import Callable
from typing import Any

from engine.config import SchedulerConfig
from engine.prefix_cache import HASH_FUNCTIONS, CacheScope, HashChainIndex, PrefixIndex
from engine.radix_index import RadixIndex

Factory = Callable[[SchedulerConfig, CacheScope], PrefixIndex[Any]]


def _hash_chain(config: SchedulerConfig, scope: CacheScope) -> PrefixIndex[Any]:
    return HashChainIndex(config.block_size, scope, HASH_FUNCTIONS[config.prefix_hash])


def _radix(config: SchedulerConfig, scope: CacheScope) -> PrefixIndex[Any]:
    return RadixIndex(config.block_size, scope)


FACTORIES: dict[str, Factory] = {"hash_chain": _hash_chain, "radix": _radix}


def make_prefix_index(config: SchedulerConfig, scope: CacheScope) -> PrefixIndex[Any]:
    return FACTORIES[config.prefix_index](config, scope)
