"""The real engine core, a real (tiny) model, either prefix index: what is cached must not be seen in what is said."""

from dataclasses import replace

import pytest

from engine.config import PREFIX_INDEXES
from engine.core import EngineCore, TokenOutput
from engine.prefix_cache import CacheScope
from engine.request import Request, SamplingParams
from engine.scheduler import Scheduler
from probes.locks import TimedLock
from probes.recorder import RingRecorder
from tests.engine.fakes import make_config
from tests.engine.model_helpers import make_prompt, make_runner, tiny
from tests.requirements import covers

BLOCK_SIZE = 8


def conversation_prompts() -> list[list[int]]:
    """Shared prefixes that end on and inside a block, whole repetitions, and prompts with nothing in common."""
    system, other = make_prompt(44, seed=1), make_prompt(40, seed=2)
    questions = [make_prompt(10 + i, seed=10 + i) for i in range(4)]
    prompts = [system + question for question in questions]
    prompts += [system, other, system[:19] + questions[0], system + questions[0] + questions[1], other[:24], system]
    return prompts


def answers(prefix_index: str, enabled: bool = True, kv_blocks: int = 40) -> tuple[list[list[int]], Scheduler]:
    config = make_config(block_size=BLOCK_SIZE, kv_blocks=kv_blocks, max_batched_tokens=48, max_sequences=3)
    config = replace(config, prefix_index=prefix_index, enable_prefix_cache=enabled)
    runner = make_runner(tiny(), kv_blocks, BLOCK_SIZE)
    scheduler = Scheduler(config, CacheScope(weights="tiny"))
    core = EngineCore(scheduler, runner, RingRecorder(), TimedLock(), frozenset())
    requests = [
        Request(f"r{i}", prompt, SamplingParams(max_tokens=12, ignore_eos=True), arrival_ns=0)
        for i, prompt in enumerate(conversation_prompts())
    ]
    outputs: list[TokenOutput] = []
    for request in requests:
        scheduler.add(request)
    while core.has_work:
        core.step(outputs.extend)
        scheduler.check_invariants()
    return [request.output_token_ids for request in requests], scheduler


@covers("S3.22")
@pytest.mark.parametrize("kv_blocks", [24, 40])
def test_greedy_output_is_the_same_under_either_index_and_without_a_cache(kv_blocks: int):
    uncached, _ = answers("hash_chain", enabled=False)
    for prefix_index in PREFIX_INDEXES:
        cached, scheduler = answers(prefix_index, kv_blocks=kv_blocks)
        assert cached == uncached, prefix_index
        assert scheduler.counters.prefix_hit_tokens > 100
