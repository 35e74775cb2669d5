"""The estimate is the truth where it claims to be exact, and close to it where it samples."""

from collections import Counter
from hashlib import sha256

from hypothesis import given, settings
from hypothesis import strategies as st

from engine.working_set import DEPTH_IN_POOLS, SERVED_SHARE, WorkingSet, demand_class
from tests.engine.builders import FakeClock


def identity(i: int) -> int:
    return int.from_bytes(sha256(str(i).encode()).digest()[:8], "little", signed=True)


def cycle(working_set: WorkingSet, num_blocks: int, rounds: int = 3) -> None:
    for i in list(range(num_blocks)) * rounds:
        working_set.asked([identity(i)], 0)
        working_set.used([identity(i)])


def served(demands: list[int]) -> int:
    """The smallest pool that meets the wanted share of the demands, by sorting them."""
    return sorted(demands)[max(0, -int(-SERVED_SHARE * len(demands) // 1) - 1)]


def test_a_cycle_needs_as_many_blocks_as_it_has():
    working_set = WorkingSet(100)
    cycle(working_set, 120)
    assert working_set.blocks() == 120


def test_without_reuse_there_is_no_working_set():
    working_set = WorkingSet(100)
    cycle(working_set, 500, rounds=1)
    assert working_set.blocks() is None


def test_blocks_in_use_count_as_demand():
    working_set = WorkingSet(100)
    working_set.used([identity(1), identity(2)])
    working_set.asked([identity(1)], in_use=30)
    assert working_set.blocks() == 32


# A use of a prefix of one of a few chains while others of them are in use, in the way of a request's life.
chains = st.lists(st.tuples(st.integers(0, 4), st.integers(1, 6), st.integers(0, 3)), min_size=1, max_size=80)


@settings(max_examples=200, deadline=None)
@given(chains)
def test_demands_are_those_of_an_exact_offline_computation(lives: list[tuple[int, int, int]]):
    """Offline: keep every use in one list, and count what is different and newer."""
    working_set, demands = WorkingSet(100), []
    uses: list[int] = []  # newest last, each block once
    for chain, length, in_use in lives:
        blocks = [10 * chain + i for i in range(length)]
        for before, block in enumerate(blocks):
            if block in uses:
                newer = len(uses) - uses.index(block) - 1
                demands.append(in_use + before + newer + 1)
                uses.remove(block)
        working_set.asked([identity(block) for block in blocks], in_use)
        working_set.used([identity(block) for block in reversed(blocks)])
        uses += reversed(blocks)
    assert working_set.blocks() == (served(demands) if demands else None)


@given(st.integers(1, 10**9))
def test_demands_are_told_within_a_64th(demand: int):
    told = demand_class(demand)
    assert demand <= told <= demand * (1 + 1 / 64)
    assert demand_class(told) == told
    assert demand_class(told + 1) > told + 1 or told < 127
    assert told == demand or demand >= 128


def test_a_long_chain_that_is_asked_for_as_a_whole_falls_into_several_classes():
    working_set, chain = WorkingSet(1000), [identity(i) for i in range(1000)]
    working_set.used(reversed(chain))
    working_set.asked(chain, in_use=200)
    exact = Counter(demand_class(200 + i + 1) for i in range(1000))
    assert working_set._slices[0][1] == exact


def test_a_sample_comes_within_its_stated_error():
    """10,000 blocks, of which one in ten is remembered: three standard errors of 15,000 blocks are 7 %."""
    working_set = WorkingSet(10_000, max_tracked=8_000)
    assert working_set.sampling_rate == 0.1
    cycle(working_set, 15_000, rounds=2)
    told = working_set.blocks()
    assert told is not None
    assert abs(told / 15_000 - 1) < 0.07


def test_memory_is_bounded_and_what_lies_deeper_counts_as_new():
    working_set = WorkingSet(10)
    cycle(working_set, DEPTH_IN_POOLS * 10 + 1, rounds=20)
    assert len(working_set._number_of) == DEPTH_IN_POOLS * 10
    assert len(working_set._numbers) <= 2 * DEPTH_IN_POOLS * 10
    assert working_set.blocks() is None
    cycle(working_set, DEPTH_IN_POOLS * 10, rounds=2)
    assert working_set.blocks() == DEPTH_IN_POOLS * 10


def test_only_the_reuse_of_the_last_minutes_counts():
    clock = FakeClock()
    working_set = WorkingSet(100, clock, window_seconds=300)
    cycle(working_set, 50)
    clock.advance(150)
    cycle(working_set, 10, rounds=60)
    assert working_set.blocks() == 50
    clock.advance(200)
    assert working_set.blocks() == 10
    clock.advance(200)
    assert working_set.blocks() is None


def test_one_old_visitor_does_not_make_the_working_set():
    working_set = WorkingSet(1000)
    working_set.used([identity(0)])
    cycle(working_set, 90, rounds=5)
    working_set.asked([identity(0)], 0)
    assert working_set.blocks() == 90
