"""PrefixIndex by a radix tree: what sequences share is one path, where they part the path branches.

    root --- [system prompt: 3 blocks] --+-- [question A: 2 blocks]
                                         +-- [question B and its answer: 5 blocks] --+-- ...

A node holds a run of tokens and the blocks with their KV; a run is split where a sequence leaves it, which moves block
ids and no KV. Tokens are compared themselves, so that nothing can collide. Storage is aligned to blocks: only full ones
are kept, and children part at a block's border, whichever token of it differs. The match is finer than that: the tokens
that go on in a part of one more block are found by `match_partial`, and reused by a copy of that block.

There are no lock counts and no clock here. A sequence gives up its copy of what is cached already (`adopts_twins`), so
whoever holds a block of the tree holds its path to the root: the pool's reference counts pin paths. It also gives back
paths tail first, and a hit takes and gives back the whole path: the pool's LRU therefore lines up every block behind
all that it leads to, and its next victim is always the end of a leaf that nobody holds.
"""

import struct
from collections.abc import Iterator, Sequence
from itertools import chain, islice

from engine.config import check_bounds
from engine.errors import InvariantViolation
from engine.prefix_cache import TOKEN_BYTES, CacheScope, PartialBlock, pack_tokens

Namespace = tuple[bytes, str]
"""Scope digest and salt, told apart by type and place: nothing is ever concatenated."""

CHILDREN_TRIED = 8
"""Children, the latest first, that are looked at for a partial match: a bound, as a node may have thousands."""


class RadixNode:
    """Blocks depth..depth+len(blocks)-1 of every sequence that starts with the tokens from the root to here."""

    __slots__ = ("blocks", "children", "depth", "parent", "tokens")

    def __init__(self, parent: "RadixNode | None", depth: int, tokens: bytearray, blocks: list[int]) -> None:
        self.parent = parent
        self.depth = depth
        """Blocks before the run."""
        self.tokens = tokens
        """The run, packed."""
        self.blocks = blocks
        self.children: dict[bytes, RadixNode] = {}
        """By the tokens of their first block."""

    @property
    def end(self) -> int:
        """Blocks from the root up to and including the run."""
        return self.depth + len(self.blocks)


class RadixRoot(RadixNode):
    """The empty prefix of one namespace."""

    __slots__ = ("namespace",)

    def __init__(self, namespace: Namespace) -> None:
        super().__init__(None, 0, bytearray(), [])
        self.namespace = namespace


class RadixKey:
    """One sequence's tokens, packed once."""

    __slots__ = ("generation", "identities", "namespace", "num_blocks", "tokens")

    def __init__(self, generation: int, namespace: Namespace) -> None:
        self.generation = generation
        self.namespace = namespace
        self.num_blocks = 0
        self.tokens = bytearray()
        self.identities: list[int] = []
        """Of the leading blocks for which they were asked."""

    def __len__(self) -> int:
        return self.num_blocks


def common_tokens(ours: bytes, theirs: bytes | bytearray) -> int:
    """Length of the common prefix of two short runs of packed tokens."""
    size = min(len(ours), len(theirs))
    # The lowest bit that differs lies in the first token that differs, since both are read as little-endian.
    difference = int.from_bytes(ours[:size], "little") ^ int.from_bytes(theirs[:size], "little")
    if difference == 0:
        return size // TOKEN_BYTES
    return ((difference & -difference).bit_length() - 1) // (8 * TOKEN_BYTES)


class RadixIndex:
    """Costs O(nodes of the path) beside the comparison of the tokens, whatever the size of the tree."""

    adopts_twins = True

    def __init__(self, block_size: int, scope: CacheScope) -> None:
        check_bounds("block_size", block_size)
        self.block_size = block_size
        self._width = TOKEN_BYTES * block_size
        self._roots: dict[Namespace, RadixRoot] = {}
        # By block id. A list, since ids are dense and a dict of a large pool costs a cache miss per block.
        self._node_of: list[RadixNode | None] = []
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

    def start(self, salt: str = "") -> RadixKey:
        return RadixKey(self._generation, (self._scope_digest, salt))

    def is_current(self, key: RadixKey) -> bool:
        return key.generation == self._generation

    def extend(self, key: RadixKey, tokens: Sequence[int]) -> None:
        if len(tokens) % self.block_size:
            raise ValueError(f"{len(tokens)} tokens are not full blocks of {self.block_size}")
        key.tokens += pack_tokens(tokens)
        key.num_blocks += len(tokens) // self.block_size

    def match(self, key: RadixKey) -> list[int]:
        root = self._roots.get(key.namespace)
        if root is None:
            return []
        node, offset = self._descend(root, 0, key.tokens)
        runs = [node.blocks[:offset]]
        while node.parent is not None:
            node = node.parent
            runs.append(node.blocks)
        return list(chain.from_iterable(reversed(runs)))

    def match_partial(self, key: RadixKey, hit: Sequence[int], tokens: Sequence[int]) -> PartialBlock | None:
        node = self._node_holding(hit[-1]) if hit else self._roots.get(key.namespace)
        if node is None:
            return None
        wanted = pack_tokens(tokens)
        offset = len(hit) - node.depth
        best, longest = None, 0
        for candidate, at in self._continuations(node, offset):
            common = common_tokens(wanted, candidate.tokens[at * self._width : (at + 1) * self._width])
            if common > longest:
                best, longest = PartialBlock(candidate.blocks[at], common), common
        return best

    def lookup(self, tokens: Sequence[int], salt: str = "") -> list[int]:
        return self.match(self._key_of(tokens, salt))

    def insert(self, key: RadixKey, block_ids: Sequence[int], first_block: int, end_block: int) -> list[int]:
        if not self.is_current(key):
            return []
        node, offset = self._descend(*self._place_of(key, block_ids, first_block), key.tokens)
        start = node.depth + offset
        if start >= end_block:
            return []
        if offset < len(node.blocks):
            node = self._split(node, offset)
        tokens = key.tokens[start * self._width : end_block * self._width]
        blocks = list(block_ids[start:end_block])
        if node.parent is not None and not node.children:
            node.tokens += tokens
            node.blocks += blocks
        else:
            parent, node = node, RadixNode(node, start, tokens, blocks)
            parent.children[bytes(tokens[: self._width])] = node
            if isinstance(parent, RadixRoot):
                self._roots[parent.namespace] = parent
        self._file(blocks, node)
        self._num_blocks += len(blocks)
        return blocks

    def insert_sequence(self, tokens: Sequence[int], block_ids: Sequence[int], salt: str = "") -> list[int]:
        """Indexes every full block of a computed sequence; returns the block ids that are now found."""
        key = self._key_of(tokens, salt)
        return self.insert(key, block_ids, 0, len(key))

    def identities(self, key: RadixKey) -> Sequence[int]:
        known = key.identities
        if len(known) < key.num_blocks:
            last = known[-1] if known else hash(key.namespace)
            rest = memoryview(key.tokens)[len(known) * self._width :]
            known += [last := hash((last, block)) for (block,) in struct.iter_unpack(f"{self._width}s", rest)]
        return known

    def fork(self, key: RadixKey, num_blocks: int) -> RadixKey:
        """A memo of its own for a sequence that shares the first `num_blocks` full blocks, and the scope they are of."""
        twin = RadixKey(key.generation, key.namespace)
        twin.num_blocks = min(num_blocks, key.num_blocks)  # with the cache off the source's memo may be behind
        twin.tokens = key.tokens[: twin.num_blocks * self._width]
        twin.identities = key.identities[:num_blocks]
        return twin

    def forget(self, block_ids: Sequence[int]) -> None:
        """Takes blocks off the ends of leaves. Raises ValueError for one that others come after: they would be lost."""
        node_of = self._node_of
        at = 0
        while at < len(block_ids):
            node = self._node_holding(block_ids[at])
            if node is None:
                at += 1
                continue
            blocks = node.blocks
            if node.children or blocks[-1] != block_ids[at]:
                raise ValueError(f"block {block_ids[at]} leads to other cached blocks, which have to go first")
            first = at
            while blocks and at < len(block_ids) and blocks[-1] == block_ids[at]:
                node_of[blocks.pop()] = None
                at += 1
            self._num_blocks -= at - first
            if blocks:
                del node.tokens[len(blocks) * self._width :]
            elif node.parent is not None:
                del node.parent.children[bytes(node.tokens[: self._width])]
                if isinstance(node.parent, RadixRoot) and not node.parent.children:
                    del self._roots[node.parent.namespace]

    def nodes(self) -> Iterator[RadixNode]:
        """Every node with blocks, parents before their children."""
        left: list[RadixNode] = list(self._roots.values())
        while left:
            node = left.pop()
            left += node.children.values()
            if node.parent is not None:
                yield node

    def check_invariants(self) -> None:
        held = 0
        for node in self.nodes():
            held += len(node.blocks)
            if not node.blocks or len(node.tokens) != len(node.blocks) * self._width:
                raise InvariantViolation(f"a node has {len(node.blocks)} blocks and {len(node.tokens)} bytes of tokens")
            if node.parent is None or node.parent.end != node.depth:
                raise InvariantViolation(f"a node at depth {node.depth} does not follow its parent")
            if node.parent.children.get(bytes(node.tokens[: self._width])) is not node:
                raise InvariantViolation(f"the node of block {node.blocks[0]} is filed under other tokens than its own")
            if any(self._node_holding(block_id) is not node for block_id in node.blocks):
                raise InvariantViolation(f"one of the blocks {node.blocks} leads to a node that is not its own")
        filed = sum(node is not None for node in self._node_of)
        if not held == filed == self._num_blocks:
            raise InvariantViolation(
                f"the tree holds {held} blocks, {filed} are filed, {self._num_blocks} were counted"
            )
        if any(not root.children for root in self._roots.values()):
            raise InvariantViolation("a namespace without content is kept")

    def _key_of(self, tokens: Sequence[int], salt: str) -> RadixKey:
        key = self.start(salt)
        self.extend(key, tokens[: len(tokens) // self.block_size * self.block_size])
        return key

    def _place_of(self, key: RadixKey, block_ids: Sequence[int], first_block: int) -> tuple[RadixNode, int]:
        """Where in the tree a sequence stands whose first `first_block` blocks were indexed: a node, blocks into it."""
        node = self._node_holding(block_ids[first_block - 1]) if first_block else None
        if node is not None:
            return node, first_block - node.depth
        return self._roots.get(key.namespace) or RadixRoot(key.namespace), 0

    def _descend(self, node: RadixNode, offset: int, tokens: bytearray) -> tuple[RadixNode, int]:
        """Follows a sequence on from `offset` blocks into a node, up to which it is known to be the tree's."""
        width = self._width
        at = (node.depth + offset) * width
        while True:
            rest = node.tokens[offset * width :] if offset else node.tokens
            if not tokens.startswith(rest, at):
                return node, offset + self._common_blocks(rest, tokens, at)
            at += len(rest)
            child = node.children.get(bytes(tokens[at : at + width]))
            if child is None:
                return node, len(node.blocks)
            node, offset = child, 0

    def _common_blocks(self, run: bytearray, tokens: bytearray, at: int) -> int:
        """How many whole blocks of a run the sequence shares; bisected, as comparing bytes is next to free."""
        width, view = self._width, memoryview(run)
        shared, above = 0, min(len(run), len(tokens) - at) // width + 1
        while above - shared > 1:
            middle = (shared + above) // 2
            if tokens.startswith(view[shared * width : middle * width], at + shared * width):
                shared = middle
            else:
                above = middle
        return shared

    def _continuations(self, node: RadixNode, offset: int) -> Iterator[tuple[RadixNode, int]]:
        """Blocks, as a node and a place in it, that come right after the first `offset` blocks of a node."""
        if offset < len(node.blocks):
            yield node, offset
        else:
            for child in islice(reversed(node.children.values()), CHILDREN_TRIED):
                yield child, 0

    def _split(self, node: RadixNode, offset: int) -> RadixNode:
        """Cuts a run in two; returns the new node with its front. The old node keeps the rest, and the children."""
        assert node.parent is not None, "the root has no run"
        cut = offset * self._width
        front = RadixNode(node.parent, node.depth, node.tokens[:cut], node.blocks[:offset])
        node.parent.children[bytes(front.tokens[: self._width])] = front
        del node.tokens[:cut]
        del node.blocks[:offset]
        node.parent, node.depth = front, node.depth + offset
        front.children[bytes(node.tokens[: self._width])] = node
        self._file(front.blocks, front)
        return front

    def _node_holding(self, block_id: int) -> RadixNode | None:
        return self._node_of[block_id] if block_id < len(self._node_of) else None

    def _file(self, blocks: list[int], node: RadixNode) -> None:
        node_of = self._node_of
        try:
            for block_id in blocks:
                node_of[block_id] = node
        except IndexError:  # once in a while: finding the largest each time costs as much as the rest
            node_of += [None] * (max(blocks) + 1 - len(node_of))
            self._file(blocks, node)
