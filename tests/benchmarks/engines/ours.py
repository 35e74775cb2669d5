"""Our engine, whole: scheduler, runner, sampling and the record of every step."""

import argparse
from itertools import count
from time import perf_counter_ns

from engine.config import SchedulerConfig
from engine.core import EngineCore
from engine.model.registry import load_model
from engine.prefix_cache import CacheScope
from engine.request import Request, SamplingParams
from engine.runner.cpu import CpuRunner
from engine.scheduler import Scheduler
from probes.locks import TimedLock
from probes.recorder import RingRecorder
from tests.benchmarks.engines import subject

_BLOCKS, _BLOCK_SIZE = 640, 16


def load(args: argparse.Namespace) -> tuple[str, subject.Generate]:
    model = load_model(args.model)
    runner = CpuRunner(model, threads=args.threads, takes_weights=True)
    runner.allocate_kv(_BLOCKS, _BLOCK_SIZE)
    config = SchedulerConfig(
        max_batched_tokens=subject.MAX_BATCHED_TOKENS,
        max_sequences=256,
        block_size=_BLOCK_SIZE,
        kv_blocks=_BLOCKS,
        max_model_len=model.config.max_position,
        # Rounds repeat their prompts: whoever found them in a cache would only measure that.
        enable_prefix_cache=False,
    )
    scheduler = Scheduler(config, CacheScope(weights=model.name))
    core = EngineCore(scheduler, runner, RingRecorder(), TimedLock(), frozenset())
    names = count()

    def generate(prompts: list[list[int]], num_tokens: int) -> list[list[int]]:
        params = SamplingParams(max_tokens=num_tokens, ignore_eos=True)
        requests = [Request(str(next(names)), prompt, params, perf_counter_ns()) for prompt in prompts]
        for request in requests:
            scheduler.add(request)
        while scheduler.has_work:
            core.step(lambda _: None)
        return [request.output_token_ids for request in requests]

    return f"{runner.attention_backend} kernels", generate


if __name__ == "__main__":
    subject.main(load)
