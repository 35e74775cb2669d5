"""Random lives of a scheduler: whatever comes in, its books add up, and everybody gets an answer."""

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from engine.config import PREFIX_INDEXES
from tests.engine.world import World
from tests.requirements import covers

# Prompts are cut from few, short patterns, so that prefixes are shared, doubled and hit all the time.
PATTERNS = ([1, 2, 3, 4] * 8, [1, 2, 3, 4, 1, 2, 9, 9] * 4, [5] * 32)
TOKENS = (1, 2, 5, 9)


@covers("S2.6", "S3.10", "S3.24", "S3.25")
class SchedulerMachine(RuleBasedStateMachine):
    world: World

    @initialize(
        block_size=st.integers(1, 5),
        kv_blocks=st.one_of(st.integers(1, 8), st.integers(9, 30)),
        budget=st.integers(1, 40),
        max_sequences=st.integers(1, 8),
        enabled=st.sampled_from((True, True, True, False)),
        prefix_index=st.sampled_from(PREFIX_INDEXES),
    )
    def start(
        self, block_size: int, kv_blocks: int, budget: int, max_sequences: int, enabled: bool, prefix_index: str
    ) -> None:
        self.world = World(
            block_size=block_size,
            kv_blocks=kv_blocks,
            max_batched_tokens=budget,
            max_sequences=max_sequences,
            enabled=enabled,
            prefix_index=prefix_index,
        )

    @rule(
        pattern=st.sampled_from(PATTERNS),
        length=st.one_of(st.sampled_from((4, 8, 12, 16)), st.integers(0, 32)),
        max_tokens=st.integers(1, 12),
        salt=st.sampled_from(("", "", "", "tenant")),
        count=st.integers(1, 3),
        choices=st.sampled_from((1, 1, 2, 4)),
    )
    def add(self, pattern: list[int], length: int, max_tokens: int, salt: str, count: int, choices: int) -> None:
        for _ in range(count):
            self.world.add(pattern[:length], max_tokens, salt, choices)

    @precondition(lambda self: self.world.scheduler.requests)
    @rule(data=st.data())
    def abort(self, data: st.DataObject) -> None:
        self.world.abort(data.draw(st.sampled_from(self.world.accepted)))

    @precondition(lambda self: self.world.step is None)
    @rule()
    def schedule(self) -> None:
        self.world.schedule()

    @precondition(lambda self: self.world.step is not None)
    @rule(random=st.randoms(use_true_random=False))
    def commit(self, random) -> None:
        self.world.commit(lambda: random.choice(TOKENS), lambda: random.random() < 0.1)

    @precondition(lambda self: self.world.step is None)
    @rule(count=st.integers(1, 20), random=st.randoms(use_true_random=False))
    def go_on(self, count: int, random) -> None:
        for _ in range(count):
            if self.world.schedule():
                self.world.check_books()
                self.world.commit(lambda: random.choice(TOKENS))
                self.world.check_books()

    @precondition(lambda self: self.world.step is not None)
    @rule()
    def fail(self) -> None:
        self.world.fail()

    @rule(budget=st.integers(1, 40), max_sequences=st.integers(1, 8))
    def set_limits(self, budget: int, max_sequences: int) -> None:
        self.world.scheduler.set_limits(budget, max_sequences)

    @rule(enabled=st.booleans())
    def set_prefix_cache(self, enabled: bool) -> None:
        self.world.scheduler.set_prefix_cache(enabled)

    @rule(new_scope=st.booleans())
    def forget(self, new_scope: bool) -> None:
        scheduler = self.world.scheduler
        reclaimable = scheduler.census().reclaimable
        if new_scope:
            self.world.change_scope()
        else:
            assert scheduler.reset_prefix_cache() == reclaimable
        assert scheduler.census().reclaimable == 0

    @invariant()
    def books_add_up(self) -> None:
        self.world.check_books()

    def teardown(self) -> None:
        if hasattr(self, "world"):
            self.world.drain(lambda: 7)


TestScheduler = SchedulerMachine.TestCase
TestScheduler.settings = settings(
    max_examples=100,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
