"""Which blocks hold the KV of which token prefix, and whose KV it may be.

Each full block has a digest over its parent's digest and its tokens, and is found by these two; the first block's parent
is the digest of scope and salt. What a digest stands for is compared exactly as well, so a collision costs a hit and never
truth. Whole blocks only: a policy
that suits paged allocation, not a limit of hashing.
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
one in billions of blocks, costs the later of two prefixes its hits past that block. Wrong KV is never reused under either."""


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
    """A cached block and the prefix that it ends."""

    __slots__ = ("block_id", "heir", "origin", "parent", "preimage")

    def __init__(self, preimage: bytes, parent: "_Node | None", origin: tuple[bytes, str], block_id: int) -> None:
        self.preimage = preimage
        self.parent = parent
        self.origin = origin
        self.block_id = block_id
        self.heir = block_id
        """Block of the newest prefix that went on from here, if it is still there; its own when there was none."""

    def follows(self, parent: "_Node | None") -> bool:
        """Whether it goes on from the prefix of `parent`, whose digest it was made from. Exact, as digests may collide.

        Its parent may have been evicted and cached again since, as another node: then all that leads to them is compared.
        """
        ours, theirs = self.parent, parent
        while ours is not theirs:
            if ours is None or theirs is None or (ours.preimage, ours.origin) != (theirs.preimage, theirs.origin):
                return False
            ours, theirs = ours.parent, theirs.parent
        self.parent = parent
        return True


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
    """What the full blocks of a sequence are hashed from, and where the chain of nodes stands."""

    __slots__ = ("digest", "generation", "identities", "nodes", "origin", "preimages")

    def __init__(self, generation: int, origin: tuple[bytes, str], digest: bytes) -> None:
        self.generation = generation
        self.origin = origin
        self.digest = digest
        """Of the latest block; of the origin when there is none."""
        self.preimages: list[bytes] = []
        self.nodes: list[_Node] = []
        self.identities: list[int] = []
        """Of the leading blocks for which they were asked."""

    def __len__(self) -> int:
        """Full blocks hashed so far."""
        return len(self.preimages)


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

        Returns the block ids that are found from now on, in the order of the sequence. Of two blocks with the same content
        the first one stays the one that is found.
        """
        ...

    def identities(self, key: Key) -> Sequence[int]:
        """64 bits per full block of the key, the same for the same prefix; they outlive the cached content.

        For statistics only, and made only when asked for: nothing is found by them. Uniformly distributed, signed.
        """
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
        # By preimage: finding one compares the parent's digest and the tokens.
        self._nodes: dict[bytes, _Node] = {}
        # By block id. A list, since ids are dense and a dict of a large pool costs a cache miss per block.
        self._node_of: list[_Node | None] = []
        self._generation = 0
        self.set_scope(scope)

    @property
    def num_blocks(self) -> int:
        return len(self._nodes)

    @property
    def scope(self) -> CacheScope:
        return self._scope

    def set_scope(self, scope: CacheScope) -> None:
        self._scope = scope
        self._scope_digest = scope.digest()
        self._generation += 1

    def start(self, salt: str = "") -> HashKey:
        origin = (self._scope_digest, salt)
        return HashKey(self._generation, origin, self._origin_digest(origin))

    def is_current(self, key: HashKey) -> bool:
        return key.generation == self._generation

    def extend(self, key: HashKey, tokens: Sequence[int]) -> None:
        if len(tokens) % self.block_size:
            raise ValueError(f"{len(tokens)} tokens are not full blocks of {self.block_size}")
        width = TOKEN_BYTES * self.block_size
        chunks = struct.iter_unpack(f"{width}s", pack_tokens(tokens))
        # The preimage is the parent's digest and the tokens, each of a fixed length. The first parent is the origin, so that
        # scope and salt are part of every digest; and 96 bytes take SHA-256 two rounds.
        hash_function, append, digest = self._hash, key.preimages.append, key.digest
        if hash_function is sha256_digest:  # the usual one, without a call of ours per block
            for (chunk,) in chunks:
                preimage = digest + chunk
                append(preimage)
                digest = sha256(preimage).digest()
        else:
            for (chunk,) in chunks:
                preimage = digest + chunk
                append(preimage)
                digest = hash_function(preimage)
        key.digest = digest

    def match(self, key: HashKey) -> list[int]:
        matched: list[_Node] = []
        key.nodes = matched
        append, find, node_of = matched.append, self._nodes.get, self._node_of
        parent: _Node | None = None
        for preimage in key.preimages:
            # Mostly the block before leads straight to it, which spares a large index two cache misses per block.
            node = None if parent is None else node_of[parent.heir]
            if node is None or node.parent is not parent or node.preimage != preimage:
                node = find(preimage)
                if node is None or (node.parent is not parent and not node.follows(parent)):
                    break
            append(node)
            parent = node
        if matched and matched[0].origin != key.origin:
            matched.clear()
        return [node.block_id for node in matched]

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
        nodes, matched, origin = self._nodes, key.nodes, key.origin
        del matched[first_block:]
        # A twin's block may have been evicted since this sequence went past it: its own copy of that content takes the
        # place, or the blocks that follow could never be found.
        while matched and nodes.get(matched[-1].preimage) is not matched[-1]:
            matched.pop()
        node_of, indexed = self._node_of, list[int]()
        node_of += [None] * (max(block_ids[len(matched) : end_block], default=-1) + 1 - len(node_of))
        parent = matched[-1] if matched else None
        for i in range(len(matched), end_block):
            preimage, block_id = key.preimages[i], block_ids[i]
            node = nodes.get(preimage)
            if node is None:
                nodes[preimage] = node_of[block_id] = node = _Node(preimage, parent, origin, block_id)
                indexed.append(block_id)
                if parent is not None:
                    parent.heir = block_id
            elif node.origin != origin or not node.follows(parent):
                break  # another prefix has the same digest
            matched.append(node)
            parent = node
        return indexed

    def identities(self, key: HashKey) -> Sequence[int]:
        known = key.identities
        if len(known) < len(key.preimages):
            known += map(hash, key.preimages[len(known) :])
        return known

    def fork(self, key: HashKey, num_blocks: int) -> HashKey:
        preimages = key.preimages[:num_blocks]
        digest = self._hash(preimages[-1]) if preimages else self._origin_digest(key.origin)
        twin = HashKey(key.generation, key.origin, digest)
        twin.preimages, twin.nodes, twin.identities = preimages, key.nodes[:num_blocks], key.identities[:num_blocks]
        return twin

    def insert_sequence(self, tokens: Sequence[int], block_ids: Sequence[int], salt: str = "") -> list[int]:
        """Indexes every full block of a computed sequence; returns the block ids that are now found."""
        key = self.start(salt)
        self.extend(key, tokens[: len(tokens) // self.block_size * self.block_size])
        return self.insert(key, block_ids, 0, len(key))

    def forget(self, block_ids: Sequence[int]) -> None:
        """Unlinks blocks; those that are not indexed are left alone. What leads to others stays known to those only."""
        nodes, node_of = self._nodes, self._node_of
        for block_id in block_ids:
            try:
                node = node_of[block_id]
            except IndexError:  # no block with an id so high was ever filed; costs nothing where it does not happen
                continue
            if node is not None:
                del nodes[node.preimage]
                node_of[block_id] = None

    def check_invariants(self) -> None:
        filed = sum(node is not None for node in self._node_of)
        if len(self._nodes) != filed:
            raise InvariantViolation(f"{len(self._nodes)} prefixes can be found, but {filed} blocks are filed")
        for block_id, node in enumerate(self._node_of):
            if node is not None and (node.block_id != block_id or self._nodes.get(node.preimage) is not node):
                raise InvariantViolation(f"block {block_id} leads to a node that is not its own")

    def _origin_digest(self, origin: tuple[bytes, str]) -> bytes:
        scope_digest, salt = origin
        # surrogatepass: a salt from JSON may hold a lone surrogate, and must still be told from any other.
        return self._hash(length_prefixed(scope_digest, salt.encode("utf-8", "surrogatepass")))
