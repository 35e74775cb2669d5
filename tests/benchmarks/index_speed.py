"""What the two prefix indexes cost, side by side: `python -m tests.benchmarks.index_speed [largest pool]`.

Prints a table and asserts nothing. Thread CPU time, the best of several rounds: the machine may be shared.
"""

import sys
from collections.abc import Callable
from functools import partial
from hashlib import blake2b
from itertools import chain
from typing import Any

from engine.block_pool import BlockPool
from engine.prefix_cache import HASH_FUNCTIONS, HashChainIndex, PrefixIndex
from engine.radix_index import RadixIndex
from tests.benchmarks.policy_speed import Row, best, timed_us
from tests.engine.builders import SCOPE

TOKENS = list(range(4096))
CHAIN = 64
"""Blocks of each sequence that fills a pool."""
CANDIDATES = {**HASH_FUNCTIONS, "blake2b64, not offered": lambda preimage: blake2b(preimage, digest_size=8).digest()}
INDEXES: dict[str, Callable[[], Any]] = {
    **{f"hash_chain {name}": partial(HashChainIndex, 16, SCOPE, digest) for name, digest in CANDIDATES.items()},
    "radix": partial(RadixIndex, 16, SCOPE),
}


def key_of(index: PrefixIndex[Any], tokens: list[int], salt: str = "") -> Any:
    key = index.start(salt)
    index.extend(key, tokens)
    return key


def path_rows(name: str, num_nodes: int) -> list[Row]:
    """A path of 256 blocks from which `num_nodes` - 1 other sequences branch off."""
    index = INDEXES[name]()
    index.insert_sequence(TOKENS, range(256))
    for i in range(1, num_nodes):
        index.insert_sequence([*TOKENS[: i * 64], *range(9000, 9016)], [*range(i * 4), 1000 + i])
    key, other = key_of(index, TOKENS), key_of(index, TOKENS, "other tenant")
    size = f"4096 tokens, {num_nodes - 1} branches"
    return [
        (f"{name}: prepare key", size, best(lambda: timed_us(lambda: key_of(index, TOKENS))) / 4.096, "us/1k"),
        (f"{name}: match, hit", size, best(lambda: timed_us(lambda: index.match(key))) / 4.096, "us/1k"),
        (f"{name}: match, miss", size, best(lambda: timed_us(lambda: index.match(other))), "us/lookup"),
        (f"{name}: prepare + match", size, best(lambda: timed_us(lambda: index.lookup(TOKENS))) / 4.096, "us/1k"),
    ]


def pool_rows(name: str, num_blocks: int) -> list[Row]:
    """A pool full of sequences that have nothing in common, of which some are found, evicted and put in."""
    index = INDEXES[name]()
    pool = BlockPool(num_blocks, 16, on_evict=index.forget)
    sequences = num_blocks // CHAIN
    for first in range(sequences):
        blocks = pool.allocate(CHAIN)
        pool.mark_cached(index.insert_sequence(list(range(first, first + 1024)), blocks))
        pool.release(blocks)
    pool.allocate(num_blocks % CHAIN)
    key = key_of(index, list(range(sequences - 1, sequences + 1023)))
    new = [key_of(index, list(range(first, first + 1024))) for first in range(1 << 24, (1 << 24) + 20)]
    inserts = [timed_us(partial(index.insert, one, pool.allocate(CHAIN), 0, CHAIN)) for one in new]
    size = f"{num_blocks} blocks"
    return [
        (f"{name}: match, hit", size, best(lambda: timed_us(lambda: index.match(key))) / 1.024, "us/1k"),
        (f"{name}: insert", size, min(inserts) / 1.024, "us/1k"),
        (
            f"{name}: evict + allocate",
            size,
            best(lambda: timed_us(lambda: pool.allocate(CHAIN)), 40) / CHAIN,
            "us/block",
        ),
    ]


def main(largest: int = 1_000_000) -> None:
    print(f"{'operation':<52} {'size':<26} {'best':>10}  unit")
    paths = (path_rows(name, num_nodes) for num_nodes in (1, 64) for name in INDEXES)
    sizes = [size for size in (10_000, 100_000, 1_000_000) if size <= largest]
    pools = (pool_rows(name, size) for size in sizes for name in ("hash_chain sha256", "radix"))
    for operation, size, value, unit in chain.from_iterable(chain(paths, pools)):
        print(f"{operation:<52} {size:<26} {value:>10.3f}  {unit}")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
