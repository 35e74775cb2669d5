r"""Several answers to one prompt: the leader computes it, then its siblings go on from the leader's blocks.

    prompt's full blocks       its last block, half full
    |-------|-------|-------|-------|----x          leader: goes on in its own block
        shared by all of them      \----x          siblings: a copy each, made in the next step

A sibling holds a reference on the half full block until the copy is done. The leader may write behind the prompt
meanwhile: what is copied stays what it is. From the fork on each is a sequence like any other, with at least one block
that it shares with nobody, so that preempting it always yields one; stopping or failing one leaves the others alone.
"""

from collections.abc import Sequence

from engine.block_pool import BlockPool
from engine.prefix_binding import PrefixBinding
from engine.request import Request, RequestState
from engine.step import BlockCopy, ScheduledStep


def join(leader: Request, siblings: Sequence[Request]) -> None:
    """Raises ValueError for a sibling that is not about the same prompt."""
    for sibling in siblings:
        same = sibling.prompt_token_ids == leader.prompt_token_ids and sibling.cache_salt == leader.cache_salt
        if not same:
            raise ValueError(f"{sibling.request_id!r} and {leader.request_id!r} do not share a prompt")
    for sibling in siblings:
        sibling.state = RequestState.FORKING
        sibling.leader = leader
    leader.siblings = list(siblings)


def leave(sibling: Request) -> None:
    """It ends before the prompt was computed."""
    assert sibling.leader is not None
    sibling.leader.siblings.remove(sibling)
    sibling.leader = None


def promote_heir(leader: Request) -> Request:
    """The leader ends before its prompt was computed: the next sibling leads the others, and is to be queued."""
    heir, *others = leader.siblings
    leader.siblings = []
    stand_alone(heir)
    join(heir, others)
    return heir


def stand_alone(sibling: Request) -> None:
    """It computes the prompt itself."""
    sibling.leader = None
    sibling.state = RequestState.WAITING


def fork(leader: Request, sibling: Request, pool: BlockPool, prefixes: PrefixBinding) -> None:
    """The prompt is computed: the sibling decodes from here on. Takes one block, which the caller knows to be there."""
    num_full, rest = divmod(leader.num_computed_tokens, pool.block_size)
    shared = leader.block_ids[:num_full]
    pool.touch(shared)
    if rest:
        sibling.fork_source = leader.block_ids[num_full]
        pool.touch([sibling.fork_source])
    sibling.block_ids = shared + pool.allocate(1)
    sibling.num_computed_tokens = sibling.max_computed_tokens = leader.num_computed_tokens
    sibling.num_hashed_blocks = leader.num_hashed_blocks
    sibling.first_scheduled_ns = leader.first_scheduled_ns
    sibling.leader = None
    sibling.state = RequestState.RUNNING
    prefixes.fork(leader, sibling)


def fork_all(
    leader: Request, room: int, pool: BlockPool, prefixes: PrefixBinding
) -> tuple[list[Request], list[Request]]:
    """Siblings that decode now, at most `room` of them, and those who stand alone: no place or no block was left."""
    siblings, leader.siblings = leader.siblings, []
    forked: list[Request] = []
    for sibling in siblings:
        if len(forked) >= room or not pool.can_allocate(1):
            break
        fork(leader, sibling, pool, prefixes)
        forked.append(sibling)
    left = siblings[len(forked) :]
    for sibling in left:
        stand_alone(sibling)
    return forked, left


def copy_on_write(forked: Sequence[Request], pool: BlockPool, step: ScheduledStep) -> None:
    """Copies the end of the prompt for those who still need it, before this step writes behind it."""
    for sibling in forked:
        if sibling.fork_source is None:
            continue
        shared = sibling.block_ids[:-1]
        # Its reference on the source is the copy's until that is done. What leads to the source is held as long: it must
        # not be lined up for eviction in front of it.
        pool.touch(shared)
        step.pinned.append([*shared, sibling.fork_source])
        rest = sibling.num_computed_tokens % pool.block_size
        step.copies.append(BlockCopy(sibling.fork_source, sibling.block_ids[-1], rest))
        sibling.fork_source = None
