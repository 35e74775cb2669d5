"""Counts the policy's books again. For tests, for the idle loop, and for whoever no longer trusts them."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any

from engine.block_pool import BlockPool
from engine.errors import InvariantViolation
from engine.prefix_cache import PrefixIndex
from engine.request import Request, RequestState


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise InvariantViolation(message)


def check_scheduler(
    pool: BlockPool,
    index: PrefixIndex[Any],
    requests: Mapping[str, Request],
    waiting: Sequence[Request],
    running: Sequence[Request],
    transferring: Sequence[Request],
    pinned_blocks: Iterable[int],
) -> None:
    """`running`: oldest first. `pinned_blocks`: sources of copies that have not been done yet, with what leads to them."""
    pool.check_invariants()
    index.check_invariants()
    forking = [sibling for request in (*running, *waiting, *transferring) for sibling in request.siblings]
    _require(
        len(requests) == len(waiting) + len(running) + len(transferring) + len(forking),
        f"{len(requests)} live requests, but {len(waiting)} waiting + {len(running)} running"
        f" + {len(transferring)} transferring + {len(forking)} forking",
    )
    order = [request.sequence_number for request in (*running, *waiting)]
    _require(
        all(older < younger for older, younger in pairwise(order)),
        f"requests are not in order of arrival: {order}",
    )
    # Whoever only reads a block of another one, to copy the start of it, does not keep that one from writing behind.
    readers = Counter(pinned_blocks)
    readers.update(request.fork_source for request in running if request.fork_source is not None)
    holders = Counter(readers)
    for request in (*running, *waiting, *transferring, *forking):
        _require(requests.get(request.request_id) is request, f"{request.request_id!r} is scheduled but not live")
        holders.update(request.block_ids)
    for block_id in range(pool.num_blocks):
        _require(
            pool.ref_count(block_id) == holders[block_id],
            f"block {block_id} has {pool.ref_count(block_id)} references but {holders[block_id]} holders",
        )
    _require(
        index.num_blocks == pool.num_cached,
        f"the prefix index knows {index.num_blocks} blocks, the pool marks {pool.num_cached} as cached",
    )
    for request in waiting:
        _check_waiting(request)
    for request in transferring:
        _require(request.state is RequestState.TRANSFERRING, f"{request.request_id!r} transfers but is {request.state}")
        _require(not request.block_ids, f"{request.request_id!r} has no KV yet but holds blocks")
    for request in forking:
        _check_forking(request)
    for request in running:
        _check_running(request, pool, readers)


def _check_waiting(request: Request) -> None:
    name = request.request_id
    _require(request.state in (RequestState.WAITING, RequestState.PREEMPTED), f"{name!r} waits but is {request.state}")
    _require(not request.block_ids, f"{name!r} waits but holds {len(request.block_ids)} blocks")
    _require(request.num_computed_tokens == 0, f"{name!r} waits but has {request.num_computed_tokens} computed tokens")


def _check_forking(request: Request) -> None:
    name = request.request_id
    _require(request.state is RequestState.FORKING, f"{name!r} is somebody's sibling but {request.state}")
    _require(request.leader is not None and request in request.leader.siblings, f"{name!r} has no leader")
    _require(not request.block_ids, f"{name!r} waits for its leader but holds {len(request.block_ids)} blocks")


def _check_running(request: Request, pool: BlockPool, readers: Counter[int]) -> None:
    name, computed = request.request_id, request.num_computed_tokens
    _require(request.state is RequestState.RUNNING, f"{name!r} runs but is {request.state}")
    capacity = len(request.block_ids) * pool.block_size
    _require(computed <= capacity, f"{name!r} has {computed} computed tokens in blocks for {capacity}")
    _require(computed < request.num_tokens, f"{name!r} has {computed} computed of {request.num_tokens} tokens")
    for block_id in request.block_ids[computed // pool.block_size :]:
        # These are written next: what is shared must never be.
        others = pool.ref_count(block_id) - readers[block_id] - 1
        _require(others == 0, f"{name!r} would write to block {block_id}, which {others} others hold too")
        _require(not pool.is_cached(block_id), f"{name!r} would write to block {block_id}, which is cached")
