"""Binds requests to cached prefixes: what of a prompt need not be computed, and what of it others may use later."""

from collections.abc import Iterator
from typing import Any, NamedTuple

from engine.admission import blocks_for
from engine.block_pool import BlockPool
from engine.block_reuse import BlockReuse
from engine.prefix_cache import PartialBlock, PrefixIndex, PrefixKey
from engine.request import Request, RequestState
from engine.step import BlockCopy, BlockImport, ScheduledStep


class PrefixPlan(NamedTuple):
    """How a cached prefix is used: whole blocks are shared, the one that must be written into is copied.

        shared blocks         copy of `copy_source`
    |-----|-----|-----|-----|-------------------x|      x: the last token, always computed for its logits
    """

    shared: list[int]
    copy_source: int | None
    num_tokens: int
    """Positions that need no computation."""
    num_received: int = 0
    """Those of them, at the end, whose KV came from a prefill instance and goes into fresh blocks."""


def prefix_plans(
    hit: list[int], num_tokens: int, block_size: int, partial: PartialBlock | None = None
) -> Iterator[PrefixPlan]:
    """Ways to use a hit, the best first. All are capped at num_tokens - 1: KV alone has no logits to sample from.

    A full hit copies its last block and computes one token in the copy; or, when no block can be spared for holding
    both, computes the whole last block. What goes on in a part of one more block is copied likewise.
    """
    if len(hit) * block_size < num_tokens:
        if partial is not None:
            yield PrefixPlan(hit, partial.block_id, len(hit) * block_size + partial.num_tokens)
        yield PrefixPlan(hit, None, len(hit) * block_size)
        return
    shared = hit[: (num_tokens - 1) // block_size]
    if len(shared) * block_size < num_tokens - 1:
        yield PrefixPlan(shared, hit[len(shared)], num_tokens - 1)
    yield PrefixPlan(shared, None, len(shared) * block_size)


def _with_received(
    request: Request, hit: list[int], plans: Iterator[PrefixPlan], block_size: int
) -> Iterator[PrefixPlan]:
    """Puts what another instance computed in front, where it goes on from what is cached and reaches further.

    What was cached when the transfer began may have been evicted meanwhile: then the hole is computed here, with all that
    follows it.
    """
    best = next(plans)
    received = request.received
    if received is not None and received.first_block <= len(hit):
        num_tokens = min(received.num_tokens, request.num_tokens - 1)
        if num_tokens > best.num_tokens:
            yield PrefixPlan(hit, None, num_tokens, num_tokens - len(hit) * block_size)
    yield best
    yield from plans


class PrefixBinding:
    """Between a prefix index, which knows contents, and a block pool, which knows holders."""

    def __init__(self, index: PrefixIndex[Any], pool: BlockPool, reuse: BlockReuse | None = None) -> None:
        self.index = index
        self._pool = pool
        self._reuse = reuse
        self.block_size = pool.block_size
        self._keys: dict[str, PrefixKey] = {}
        self._newly_cached: list[int] = []
        self._newly_cached_identities: list[int] = []

    def plan(self, request: Request, available: int, use_cache: bool) -> PrefixPlan | None:
        """How a waiting request would start; None when the whole rest of it does not fit into `available` blocks."""
        if request.received is not None and not self.index.is_current(self._keys[request.request_id]):
            request.received = None  # of another scope
        # The key is made even when it is not looked up: it notes the scope under which the KV will be computed.
        key = self._key(request, request.num_tokens // self.block_size if use_cache else 0)
        hit = self.index.match(key) if use_cache else []
        partial = self._match_partial(request, key, hit) if use_cache else None
        total = blocks_for(request.num_tokens, self.block_size)
        plans = prefix_plans(hit, request.num_tokens, self.block_size, partial)
        for plan in _with_received(request, hit, plans, self.block_size):
            held = plan.shared if plan.copy_source is None else [*plan.shared, plan.copy_source]
            # A hit on a reclaimable block takes it out of what others can get, just as a fresh block does.
            revived = sum(self._pool.ref_count(block_id) == 0 for block_id in held)
            if total - len(plan.shared) + revived <= available:
                return plan
        return None

    def num_cached_blocks(self, request: Request, use_cache: bool) -> int:
        """Leading blocks of a prompt that are cached, not counting the one that its last token is in."""
        num_full = (len(request.prompt_token_ids) - 1) // self.block_size
        key = self._key(request, num_full if use_cache else 0)
        return min(len(self.index.match(key)), num_full) if use_cache else 0

    def bind(self, request: Request, plan: PrefixPlan, step: ScheduledStep) -> None:
        """Makes the planned blocks the request's own, as far as it needs no computation."""
        self._pool.touch(plan.shared)
        request.block_ids = list(plan.shared)
        request.num_hashed_blocks = len(plan.shared)
        request.num_computed_tokens = plan.num_tokens
        if plan.copy_source is not None:
            # Held until the copy is done, so that nothing else is put into the source before. So is what leads to it:
            # it must not be lined up for eviction in front of the source.
            step.pinned.append([*plan.shared, plan.copy_source])
            self._pool.touch(step.pinned[-1])
            request.block_ids += self._pool.allocate(1)
            copied = plan.num_tokens - len(plan.shared) * self.block_size
            step.copies.append(BlockCopy(plan.copy_source, request.block_ids[-1], copied))
        if plan.num_received:
            assert request.received is not None
            first, num_shared = request.received.first_block, len(plan.shared)
            contents = request.received.blocks[
                num_shared - first : blocks_for(plan.num_tokens, self.block_size) - first
            ]
            fresh = self._pool.allocate(len(contents))
            request.block_ids += fresh
            step.imports += map(BlockImport, fresh, contents)
        request.received = None

    def index_full_blocks(self, request: Request) -> None:
        """Offers a request's newly full blocks to the index. Only for blocks whose KV has really been computed.

        `note_cached` follows, once for all requests of a step, before any of them gives blocks back.
        """
        full = request.num_computed_tokens // self.block_size
        key = self._key(request, full)
        first = request.num_hashed_blocks
        indexed = self.index.insert(key, request.block_ids, first, full)
        self._pool.mark_cached(indexed)
        if self._reuse is not None and indexed:
            self._newly_cached += indexed
            known, start = self.index.identities(key), full - len(indexed)
            if indexed[0] == request.block_ids[start]:  # then, in this order, they are the newest ones: as a rule
                self._newly_cached_identities += known[start:full]
            else:
                identity_of = dict(zip(request.block_ids[:full], known, strict=False))
                self._newly_cached_identities += [identity_of[block_id] for block_id in indexed]
        if self.index.adopts_twins and len(indexed) < full - first and self.index.is_current(key):
            self._adopt(request, self.index.match(key), first, full)
        request.num_hashed_blocks = full

    def note_cached(self) -> None:
        """Tells the reuse statistics what was indexed since the last call."""
        if self._reuse is not None and self._newly_cached:
            self._reuse.cached(self._newly_cached, self._newly_cached_identities)
            self._newly_cached, self._newly_cached_identities = [], []

    def ghost_hits(self, request: Request, num_found: int) -> int:
        """Blocks of a request that starts, beyond the `num_found` it shares, that were evicted not long ago."""
        if self._reuse is None:
            return 0
        full = request.num_tokens // self.block_size
        missed = self.index.identities(self._key(request, full))[num_found:full]
        return self._reuse.missed(missed, self._pool.census().active)

    def fork(self, source: Request, twin: Request) -> None:
        """`twin` goes on from what `source` has computed; the scope of that KV goes with it."""
        key = self._keys.get(source.request_id)
        if key is not None:
            self._keys[twin.request_id] = self.index.fork(key, source.num_computed_tokens // self.block_size)

    def _adopt(self, request: Request, cached: list[int], first: int, end: int) -> None:
        """Puts cached blocks in the place of the request's own copies of blocks first..end-1; the copies become free."""
        own = request.block_ids
        twins = [i for i in range(first, end) if own[i] != cached[i]]
        copies = [own[i] for i in twins]
        self._pool.touch([cached[i] for i in twins])
        for i in twins:
            own[i] = cached[i]
        self._pool.release(copies)

    def _match_partial(self, request: Request, key: PrefixKey, hit: list[int]) -> PartialBlock | None:
        start = len(hit) * self.block_size
        # The last token is computed in any case.
        tokens = request.tokens_between(start, min(start + self.block_size, request.num_tokens - 1))
        return self.index.match_partial(key, hit, tokens) if tokens else None

    def forget(self, request: Request) -> None:
        self._keys.pop(request.request_id, None)

    def _key(self, request: Request, num_blocks: int) -> PrefixKey:
        """The request's memo, covering at least its first `num_blocks` blocks.

        A running request keeps the scope under which its KV was computed; one that starts over gets the present one.
        """
        key = self._keys.get(request.request_id)
        if key is None or (request.state is not RequestState.RUNNING and not self.index.is_current(key)):
            key = self._keys[request.request_id] = self.index.start(request.cache_salt)
        if num_blocks > len(key):
            start, end = len(key) * self.block_size, num_blocks * self.block_size
            self.index.extend(key, request.tokens_between(start, end))
        return key
