"""Seeded simulations: longer lives than the state machine's, on pools from 1 block up."""

import random

import pytest

from engine.config import PREFIX_INDEXES
from tests.engine.world import World
from tests.requirements import covers

PATTERNS = ([1, 2, 3, 4] * 60, [1, 2, 3, 4, 1, 2, 9, 9] * 30, [5] * 240)


def live(seed: int, num_steps: int, prefix_index: str = "hash_chain") -> World:
    draw = random.Random(seed)
    block_size = draw.choice((1, 2, 3, 4, 16))
    world = World(
        block_size=block_size,
        kv_blocks=draw.choice((1, 2, 3, 5, 8, 20, 60)),
        max_batched_tokens=draw.choice((draw.randint(1, 8), draw.randint(8, 60))),
        max_sequences=draw.randint(1, 12),
        enabled=draw.random() < 0.9,
        prefix_index=prefix_index,
    )
    capacity = world.scheduler.config.kv_blocks * block_size
    load = draw.choice((0.02, 0.1, 0.4))
    for i in range(num_steps):
        while draw.random() < load:
            length = min(draw.choice((draw.randint(1, capacity), block_size * draw.randint(1, 8))), 200)
            choices = draw.choice((1, 1, 1, 2, 3, 5))
            world.add(draw.choice(PATTERNS)[:length], draw.randint(1, 20), draw.choice(("", "", "tenant")), choices)
        if draw.random() < 0.005:
            world.change_scope()
        if not world.schedule():
            continue
        if world.scheduler.requests and draw.random() < 0.03:
            world.abort(world.scheduler.requests[draw.choice(list(world.scheduler.requests))])
        if draw.random() < 0.01:
            world.fail()
        else:
            world.commit(lambda: draw.choice((1, 2, 5, 9)))
        if i % 7 == 0:
            world.check_books()
    world.drain(lambda: draw.choice((1, 2, 5, 9)))
    return world


@covers("S3.10", "S3.24")
@pytest.mark.parametrize("prefix_index", PREFIX_INDEXES)
def test_simulated_lives_keep_every_invariant(prefix_index: str):
    """And the simulation is worth its name: it preempts, evicts, hits, recomputes and copies."""
    worlds = [live(seed, 300, prefix_index) for seed in range(40)]
    counters = [world.scheduler.counters for world in worlds]
    assert sum(one.preemptions for one in counters) > 100
    assert sum(one.evictions for one in counters) > 100
    assert sum(one.prefix_hit_tokens for one in counters) > 1000
    assert sum(world.copies for world in worlds) > 20
    assert sum(world.forks for world in worlds) > 100
