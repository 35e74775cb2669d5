"""Which blocks hold the KV of which token prefix, and whose KV it may be.

A prefix is found by a chain of digests, one per full block, each over its parent's digest, the scope and the block's
tokens. The digest only finds the candidate: tokens and ancestry are compared exactly, so a collision costs a hit and
never truth. Whole blocks only: a policy that suits paged allocation, not a limit of hashing.
"""

import json
import struct
import sys
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from hashlib import sha256
from typing import NamedTuple, Protocol, TypeVar

from engine.config import check_bounds
from engine.errors import InvariantViolation

MAX_TOKEN_ID = 2**32 - 1
TOKEN_BYTES = 4
HashFunction = Callable[[bytes], bytes]


def sha256_digest(preimage: bytes) -> bytes:
    return sha256(preimage).digest()


def siphash64_digest(preimage: bytes) -> bytes:
    """The interpreter's own hash of bytes, keyed with a secret of this process: cheap, and of no meaning elsewhere."""
    return hash(preimage).to_bytes(8, "little", signed=True)


HASH_FUNCTIONS: dict[str, HashFunction] = {"sha256": sha256_digest, "siphash64": siphash64_digest}
"""Digests of 256 bits nobody can make collide, also between processes; those of 64 bits cost less, and a collision,
one in billions of blocks, costs the later of the two prefixes its hits. Wrong KV is never reused under either."""


def length_prefixed(*parts: bytes) -> bytes:
    """An unambiguous encoding: two different sequences of parts never give the same bytes."""
    return b"".join(struct.pack("<I", len(part)) + part for part in parts)


def pack_tokens(tokens: Sequence[int]) -> bytes:
    """Token ids as little-endian uint32. Raises ValueError naming the first id that is not one."""
    try:
        packed = array("I", tokens)
    except (OverflowError, TypeError) as error:
        for position, token in enumerate(tokens):
            if type(token) is not int or not 0 <= token <= MAX_TOKEN_ID:
                raise ValueError(
                    f"token id {token!r} at position {position} is not an integer in 0..{MAX_TOKEN_ID}"
                ) from error
        raise
    if sys.byteorder == "big":
        packed.byteswap()
    return packed.tobytes()


def identity(**facts: object) -> str:
    """One dimension of a scope from its named facts, in an unambiguous spelling that does not depend on their order."""
    return json.dumps(facts, sort_keys=True, separators=(",", ":"), default=str)


@dataclass(frozen=True, slots=True)
class CacheScope:
    """The five identities that must match, beside the tokens, before KV may be reused. Fixed for an engine instance.

    The sixth, the tenant's salt, comes with each request. `identity(...)` builds a value from named facts.
    """

    weights: str
    """Checkpoint, architecture and weight precision; a digest of the weights, since a name can be re-pointed."""
    adapter: str = ""
    """Adapter name and the digest of its weights, soft prompt, runtime rank; empty for none."""
    positional: str = ""
    """RoPE base and scaling, position offset, attention mask."""
    kv_format: str = ""
    """KV dtype, quantisation scales, memory layout."""
    engine: str = ""
    """Engine configuration that changes KV, and keys that apply to every request."""

    def digest(self) -> bytes:
        return sha256_digest(length_prefixed(*(getattr(self, f.name).encode("utf-8") for f in fields(self))))


def explain_miss(ours: CacheScope, theirs: CacheScope) -> tuple[str, ...]:
    """The identity dimensions in which two scopes differ; empty when KV of one may serve the other."""
    return tuple(f.name for f in fields(CacheScope) if getattr(ours, f.name) != getattr(theirs, f.name))


class _Node:
    """A prefix that ends with one full block. Lives as long as a block holds it or a longer prefix needs it."""

    __slots__ = ("block_id", "digest", "num_children", "origin", "parent", "tokens")

    def __init__(self, digest: bytes, tokens: bytes, parent: "_Node | None", origin: tuple[bytes, str]) -> None:
        self.digest = digest
        self.tokens = tokens
        self.parent = parent
        self.origin = origin
        self.block_id: int | None = None
        self.num_children = 0


class PrefixKey(Protocol):
    """One sequence's memo of its full blocks, so that nothing is prepared twice. Belongs to the index that made it."""

    def __len__(self) -> int:
        """Full blocks it covers."""
        ...


Key = TypeVar("Key", bound=PrefixKey)


class PartialBlock(NamedTuple):
    """A cached block whose first `num_tokens` tokens, and no more, continue a prefix: they can be copied."""

    block_id: int
    num_tokens: int


class HashKey:
    """What the full blocks of a sequence hash to, and where the chain of nodes stands."""

    __slots__ = ("chunks", "digests", "generation", "nodes", "origin", "root", "scope")

    def __init__(self, generation: int, origin: tuple[bytes, str], root: bytes) -> None:
        self.generation = generation
        self.origin = origin
        self.root = root
        self.scope = length_prefixed(origin[0])
        self.digests: list[bytes] = []
        self.chunks: list[bytes] = []
        self.nodes: list[_Node] = []

    def __len__(self) -> int:
        """Full blocks hashed so far."""
        return len(self.digests)


class PrefixIndex(Protocol[Key]):
    """What the scheduler asks of a prefix cache. It holds no references: the pool counts those."""

    @property
    def adopts_twins(self) -> bool:
        """Whether a sequence that computed what is cached already gives up its own copy for the cached one.

        Then every holder of an indexed block holds all blocks that lead to it as well, so that reference counts pin
        whole paths, and release order (tails first) makes the pool's LRU evict leaves before what leads to them.
        """
        ...

    @property
    def num_blocks(self) -> int:
        """Blocks that can be found."""
        ...

    def start(self, salt: str = "") -> Key: ...

    def is_current(self, key: Key) -> bool:
        """False once the scope was set again: KV computed before and after that must not pass for one prefix."""
        ...

    def extend(self, key: Key, tokens: Sequence[int]) -> None:
        """Adds the sequence's next full blocks. Raises ValueError unless they are full and every id is a uint32."""
        ...

    def match(self, key: Key) -> list[int]:
        """Blocks of the longest cached prefix, first block first; stops at the first block that is missing."""
        ...

    def match_partial(self, key: Key, hit: Sequence[int], tokens: Sequence[int]) -> PartialBlock | None:
        """The block in which the tokens after a hit go on, though not to its end; None when none is known.

        `hit`: what `match` has just returned for the key.
        """
        ...

    def lookup(self, tokens: Sequence[int], salt: str = "") -> list[int]:
        """`match` for tokens that are looked up once. Reports reusable positions, not how to generate from them."""
        ...

    def insert(self, key: Key, block_ids: Sequence[int], first_block: int, end_block: int) -> list[int]:
        """Indexes the computed full blocks first_block..end_block-1 of the sequence whose blocks are `block_ids`.

        Returns the block ids that are found from now on. Of two blocks with the same content the first one stays the
        one that is found.
        """
        ...

    def identities(self, key: Key) -> Sequence[bytes]:
        """One digest per full block of the key, equal if and only if the prefixes are; it outlives the cached content."""
        ...

    def fork(self, key: Key, num_blocks: int) -> Key:
        """A memo of its own for a sequence that shares the first `num_blocks` full blocks, and the scope they are of."""
        ...

    def forget(self, block_ids: Sequence[int]) -> None:
        """Unlinks blocks, in this order; those that are not indexed are left alone."""
        ...

    def set_scope(self, scope: CacheScope) -> None: ...

    def check_invariants(self) -> None:
        """Counts everything again. Raises InvariantViolation with the numbers."""
        ...


class HashChainIndex:
    """PrefixIndex by a parent-hash chain. Costs O(blocks of the prefix), whatever the size of the index.

    Sequences keep their own copies of what is cached already: block tables only ever grow.
    """

    adopts_twins = False

    def __init__(self, block_size: int, scope: CacheScope, hash_function: HashFunction = sha256_digest) -> None:
        check_bounds("block_size", block_size)
        self.block_size = block_size
        self._hash = hash_function
        self._nodes: dict[bytes, _Node] = {}
        # By block id. A list, since ids are dense and a dict of a large pool costs a cache miss per block.
        self._node_of: list[_Node | None] = []
        self._num_blocks = 0
        self._generation = 0
        self.set_scope(scope)

    @property
    def num_blocks(self) -> int:
        return self._num_blocks

    @property
    def scope(self) -> CacheScope:
        return self._scope

    def set_scope(self, scope: CacheScope) -> None:
        self._scope = scope
        self._scope_digest = scope.digest()
        self._generation += 1

    def start(self, salt: str = "") -> HashKey:
        # surrogatepass: a salt from JSON may hold a lone surrogate, and must still be told from any other.
        parts = length_prefixed(self._scope_digest, salt.encode("utf-8", "surrogatepass"))
        return HashKey(self._generation, (self._scope_digest, salt), self._hash(parts))

    def is_current(self, key: HashKey) -> bool:
        return key.generation == self._generation

    def extend(self, key: HashKey, tokens: Sequence[int]) -> None:
        if len(tokens) % self.block_size:
            raise ValueError(f"{len(tokens)} tokens are not full blocks of {self.block_size}")
        packed = pack_tokens(tokens)
        width = TOKEN_BYTES * self.block_size
        chunks = [chunk for (chunk,) in struct.iter_unpack(f"{width}s", packed)]
        # The preimage is length_prefixed(parent, scope, tokens), with the parts that never change put together once.
        hash_function, append = self._hash, key.digests.append
        middle = key.scope + struct.pack("<I", width)
        parent = key.digests[-1] if key.digests else key.root
        head = struct.pack("<I", len(parent))
        if hash_function is sha256_digest:  # the usual one, without a call of ours per block
            for chunk in chunks:
                parent = sha256(head + parent + middle + chunk).digest()
                append(parent)
        else:
            for chunk in chunks:
                parent = hash_function(head + parent + middle + chunk)
                append(parent)
        key.chunks += chunks

    def match(self, key: HashKey) -> list[int]:
        blocks: list[int] = []
        matched: list[_Node] = []
        key.nodes = matched
        first = self._nodes.get(key.digests[0]) if key.digests else None
        if first is None or first.origin != key.origin:
            return blocks
        parent: _Node | None = None
        for node, chunk in zip(map(self._nodes.get, key.digests), key.chunks, strict=True):
            if node is None or node.parent is not parent or node.tokens != chunk or node.block_id is None:
                break
            blocks.append(node.block_id)
            matched.append(node)
            parent = node
        return blocks

    def match_partial(self, key: HashKey, hit: Sequence[int], tokens: Sequence[int]) -> PartialBlock | None:
        """None: a digest says nothing about a part of its block."""
        return None

    def lookup(self, tokens: Sequence[int], salt: str = "") -> list[int]:
        key = self.start(salt)
        self.extend(key, tokens[: len(tokens) // self.block_size * self.block_size])
        return self.match(key)

    def insert(self, key: HashKey, block_ids: Sequence[int], first_block: int, end_block: int) -> list[int]:
        if not self.is_current(key) or first_block > len(key.nodes):
            return []
        del key.nodes[first_block:]
        # A twin's block may have been evicted, and its node dropped, since this sequence went past it: its own copy of
        # that content takes the place, or the blocks that follow could never be found.
        while key.nodes and self._nodes.get(key.nodes[-1].digest) is not key.nodes[-1]:
            key.nodes.pop()
        node_of, indexed = self._node_of, list[int]()
        node_of += [None] * (max(block_ids[len(key.nodes) : end_block], default=-1) + 1 - len(node_of))
        nodes, matched, origin = self._nodes, key.nodes, key.origin
        parent = matched[-1] if matched else None
        for i in range(len(matched), end_block):
            digest, chunk = key.digests[i], key.chunks[i]
            node = nodes.get(digest)
            if node is None:
                node = nodes[digest] = _Node(digest, chunk, parent, origin)
                if parent is not None:
                    parent.num_children += 1
            elif node.parent is not parent or node.tokens != chunk or node.origin != origin:
                break  # another prefix has the same digest
            matched.append(node)
            if node.block_id is None:
                node.block_id = block_ids[i]
                node_of[block_ids[i]] = node
                indexed.append(block_ids[i])
            parent = node
        self._num_blocks += len(indexed)
        return indexed

    def identities(self, key: HashKey) -> Sequence[bytes]:
        return key.digests

    def fork(self, key: HashKey, num_blocks: int) -> HashKey:
        twin = HashKey(key.generation, key.origin, key.root)
        twin.digests, twin.chunks = key.digests[:num_blocks], key.chunks[:num_blocks]
        twin.nodes = key.nodes[:num_blocks]
        return twin

    def insert_sequence(self, tokens: Sequence[int], block_ids: Sequence[int], salt: str = "") -> list[int]:
        """Indexes every full block of a computed sequence; returns the block ids that are now found."""
        key = self.start(salt)
        self.extend(key, tokens[: len(tokens) // self.block_size * self.block_size])
        return self.insert(key, block_ids, 0, len(key))

    def forget(self, block_ids: Sequence[int]) -> None:
        """Unlinks blocks; those that are not indexed are left alone. Prefixes that only led to them go with them."""
        nodes, node_of = self._nodes, self._node_of
        forgotten = 0
        for block_id in block_ids:
            node = node_of[block_id] if block_id < len(node_of) else None
            if node is None:
                continue
            forgotten += 1
            node_of[block_id] = node.block_id = None
            while not node.num_children and node.block_id is None:
                del nodes[node.digest]
                parent = node.parent
                if parent is None:
                    break
                parent.num_children -= 1
                node = parent
        self._num_blocks -= forgotten

    def check_invariants(self) -> None:
        held = sum(node.block_id is not None for node in self._nodes.values())
        filed = sum(node is not None for node in self._node_of)
        if not held == filed == self._num_blocks:
            raise InvariantViolation(f"{held} nodes hold a block, {filed} are filed, {self._num_blocks} were counted")
        for block_id, node in enumerate(self._node_of):
            if node is not None and (node.block_id != block_id or self._nodes.get(node.digest) is not node):
                raise InvariantViolation(f"block {block_id} leads to a node that is not its own")
