import pytest

from engine.config import MAX_BATCHED_TOKENS_LIMIT, PREFIX_HASHES, PREFIX_INDEXES, SchedulerConfig
from engine.errors import ConfigError
from engine.prefix_cache import HASH_FUNCTIONS
from engine.prefix_indexes import FACTORIES
from engine.scheduler import Scheduler
from tests.engine.builders import SCOPE, make_scheduler
from tests.requirements import covers

GOOD = {"max_batched_tokens": 512, "max_sequences": 4, "block_size": 16, "kv_blocks": 8, "max_model_len": 128}


@covers("S3.15")
@pytest.mark.parametrize("field", GOOD)
@pytest.mark.parametrize("value", [0, -1, True, 1.5, None])
def test_a_value_that_makes_no_sense_is_named(field: str, value: object):
    with pytest.raises(ConfigError, match=rf"{field} .*{value}") as caught:
        SchedulerConfig(**{**GOOD, field: value})  # type: ignore[arg-type]
    assert isinstance(caught.value, ValueError)


def test_an_absurd_budget_is_refused():
    with pytest.raises(ConfigError, match=str(MAX_BATCHED_TOKENS_LIMIT + 1)):
        make_scheduler(max_batched_tokens=MAX_BATCHED_TOKENS_LIMIT + 1)


def test_limits_change_from_the_next_step_and_bad_ones_change_nothing():
    scheduler = make_scheduler(max_batched_tokens=512, max_sequences=8)
    scheduler.set_limits(max_batched_tokens=256)
    assert (scheduler.config.max_batched_tokens, scheduler.config.max_sequences) == (256, 8)
    with pytest.raises(ConfigError, match="max_sequences must be positive, got 0"):
        scheduler.set_limits(max_batched_tokens=128, max_sequences=0)
    assert (scheduler.config.max_batched_tokens, scheduler.config.max_sequences) == (256, 8)
    assert scheduler.schedule().max_batched_tokens == 256


@pytest.mark.parametrize("field", ["prefix_index", "prefix_hash"])
def test_an_unknown_choice_is_named_with_those_there_are(field: str):
    with pytest.raises(ConfigError, match=rf"{field} must be one of \w+, \w+, got 'btree'"):
        SchedulerConfig(**{**GOOD, field: "btree"})  # type: ignore[arg-type]


def test_every_choice_can_be_made():
    assert tuple(FACTORIES) == PREFIX_INDEXES
    assert tuple(HASH_FUNCTIONS) == PREFIX_HASHES
    for index in PREFIX_INDEXES:
        for hash_name in PREFIX_HASHES:
            config = SchedulerConfig(**GOOD, prefix_index=index, prefix_hash=hash_name)  # type: ignore[arg-type]
            Scheduler(config, SCOPE)
