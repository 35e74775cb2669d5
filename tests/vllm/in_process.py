"""Runs a real vLLM engine in this process and prints, as JSON, how the probe's counts compare with vLLM's own objects.

    python -m tests.vllm.in_process census     every step under load, with preemptions, hits, evictions, aborts, a reset
    python -m tests.vllm.in_process faulty     a probe that fails in the middle of the load
    python -m tests.vllm.in_process unknown    a vLLM version on which it was not tried

A process of its own, since vLLM sets up far more than a test may leave behind.
"""

import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
os.environ["VLLM_CPU_KVCACHE_SPACE"] = "1"
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["VLLM_NO_USAGE_STATS"] = "1"

from tests.vllm.tiny import engine_core, make_llm

BLOCK = 32
TINY_POOL = {"max_model_len": 512, "block_size": BLOCK, "max_num_batched_tokens": 128, "max_num_seqs": 16}


def prompt(length: int, seed: int, shared: int = 0) -> dict[str, list[int]]:
    """`shared` tokens are those of every other prompt, the rest are its own."""
    own = [(seed * 31 + position * 7 + position * position * seed) % 509 for position in range(length - shared)]
    return {"prompt_token_ids": [position % 509 for position in range(shared)] + own}


def params(tokens: int) -> Any:
    from vllm import SamplingParams

    return SamplingParams(max_tokens=tokens, temperature=0.0, ignore_eos=True, detokenize=False)


class Checker:
    """Compares the probe's census with a scan after every call that can move a block, and adds up what was scheduled."""

    def __init__(self, core: Any) -> None:
        self.probe = core.scheduler.stallscope_probe
        self.checks = 0
        self.mismatches: list[str] = []
        self.scheduled_tokens = 0
        self.preempted: list[str] = []
        scheduler = core.scheduler
        schedule, update, preempt = scheduler.schedule, scheduler.update_from_output, scheduler._preempt_request

        def checked_schedule(*args: Any, **kwargs: Any) -> Any:
            output = schedule(*args, **kwargs)
            self.scheduled_tokens += output.total_num_scheduled_tokens
            self.check("schedule")
            return output

        def checked_update(*args: Any, **kwargs: Any) -> Any:
            outputs = update(*args, **kwargs)
            self.check("update")
            return outputs

        def counted_preempt(request: Any, *args: Any, **kwargs: Any) -> Any:
            self.preempted.append(request.request_id)
            return preempt(request, *args, **kwargs)

        scheduler.schedule, scheduler.update_from_output = checked_schedule, checked_update
        scheduler._preempt_request = counted_preempt

    def check(self, where: str) -> None:
        self.checks += 1
        counted, scanned = self.probe.census.census(), self.probe.census.scan()
        if counted != scanned:
            self.mismatches.append(f"after {where}: counted {counted}, scanned {scanned}")


def census() -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as directory:
        llm = make_llm(Path(directory), num_gpu_blocks_override=33, **TINY_POOL)
        core = engine_core(llm)
        checker = Checker(core)
        # Needs more than the 32 blocks: preemption. Half of them share 96 tokens: hits. Twice: ghosts.
        prompts = [prompt(100 + 17 * number, number + 1, shared=96 * (number % 2)) for number in range(10)]
        for _ in range(2):
            llm.generate(prompts, params(90), use_tqdm=False)
        engine = llm.llm_engine
        for number in range(3):
            engine.add_request(f"abort{number}", prompt(200, 50 + number), params(100))
        for _ in range(5):
            engine.step()
        internal = list(core.scheduler.requests)
        core.abort_requests(internal[:2])
        while engine.has_unfinished_requests() and core.scheduler.requests:
            engine.step()
        reclaimable = checker.probe.census.census().reclaimable
        was_reset = llm.reset_prefix_cache()
        checker.check("reset")
        records = checker.probe.recorder.steps_since(0).records
        counters = checker.probe.recorder.counters
        return {
            "checks": checker.checks,
            "mismatches": checker.mismatches[:5],
            "steps": len(records),
            "hook_errors": checker.probe.hooks.errors,
            "recorder_errors": counters.probe_errors,
            "scheduled_tokens": checker.scheduled_tokens,
            "decodes": sum(record.num_decode_seqs for record in records),
            "prefill_tokens": sum(record.prefill_tokens for record in records),
            "recomputed_tokens": sum(record.recomputed_tokens for record in records),
            "emitted_tokens": sum(record.emitted_tokens for record in records),
            "preemptions": counters.preemptions,
            "preempted": len(checker.preempted),
            "cached_tokens": counters.tokens["cached"],
            "evictions": counters.evictions,
            "ghost_hits": counters.ghost_hits,
            "finished": dict(counters.finished),
            "reclaimable_before_reset": reclaimable,
            "was_reset": was_reset,
            "census_after_reset": checker.probe.census.census()._asdict(),
            "negative_parts": sum(min(record[15:20]) < 0 for record in records),
        }


def faulty() -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as directory:
        llm = make_llm(Path(directory), num_gpu_blocks_override=33, **TINY_POOL)
        core = engine_core(llm)
        prompts = [prompt(40, number) for number in range(4)]

        def tokens() -> list[list[int]]:
            return [list(one.outputs[0].token_ids) for one in llm.generate(prompts, params(30), use_tqdm=False)]

        right = tokens()
        probe = core.scheduler.stallscope_probe
        before = probe.recorder.next_id
        probe.steps._scheduler = None  # every hook that looks at it raises from now on
        during = tokens()
        return {
            "same_tokens": right == during,
            "records_before": before,
            "records_after": probe.recorder.next_id,
            "errors": probe.hooks.errors,
            "off_reason": probe.hooks.off_reason,
            "hooked_still": "schedule" in vars(core.scheduler),
        }


def unknown() -> dict[str, Any]:
    import vllm

    vllm.__version__ = "0.99.1"
    with tempfile.TemporaryDirectory() as directory:
        llm = make_llm(Path(directory), num_gpu_blocks_override=33, **TINY_POOL)
        core = engine_core(llm)
        outputs = llm.generate([prompt(40, 1)], params(5), use_tqdm=False)
        return {
            "tokens": len(outputs[0].outputs[0].token_ids),
            "has_probe": hasattr(core.scheduler, "stallscope_probe"),
            "hooked": "schedule" in vars(core.scheduler),
        }


if __name__ == "__main__":
    found = {"census": census, "faulty": faulty, "unknown": unknown}[sys.argv[1]]()
    print("RESULT " + json.dumps(found))
