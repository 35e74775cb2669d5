"""Whether this vLLM is one that the probe knows: by its version, by the names it hooks, and by what a small pool does."""

import inspect
from typing import Any

from probes.vllm.census import PoolCensus
from probes.vllm.engine import hook_pool
from probes.vllm.hooks import Hooks

TRIED = ("0.32",)
"""Minor versions on which tests/vllm has passed."""


def version_problem(version: str) -> str | None:
    if any(version == minor or version.startswith(minor + ".") for minor in TRIED):
        return None
    return f"vLLM {version} has not been tried (tried: {', '.join(TRIED)})"


def signature_problem(target: Any, name: str, *parameters: str) -> str | None:
    """What a hook on `target.name` would be wrong about: `parameters` are the leading ones that it reads by position."""
    function = getattr(target, name, None)
    if function is None:
        return f"{target.__name__}.{name} is gone"
    found = [one for one in inspect.signature(function).parameters if one != "self"]
    if found[: len(parameters)] != list(parameters):
        return f"{target.__name__}.{name} takes ({', '.join(found)}), not ({', '.join(parameters)}, ...)"
    return None


def signature_problems() -> list[str]:
    """Of everything that is hooked in the engine's process."""
    from vllm.v1.core.block_pool import BlockPool
    from vllm.v1.core.kv_cache_utils import FreeKVCacheBlockQueue
    from vllm.v1.core.sched.scheduler import Scheduler

    found = [
        signature_problem(Scheduler, "schedule"),
        signature_problem(Scheduler, "_preempt_request", "request"),
        signature_problem(Scheduler, "update_from_output", "scheduler_output", "model_runner_output"),
        signature_problem(Scheduler, "get_request_counts"),
        signature_problem(FreeKVCacheBlockQueue, "append", "block"),
        signature_problem(FreeKVCacheBlockQueue, "append_n", "blocks"),
        signature_problem(FreeKVCacheBlockQueue, "prepend_n", "blocks"),
        signature_problem(FreeKVCacheBlockQueue, "remove", "block"),
        signature_problem(FreeKVCacheBlockQueue, "popleft"),
        signature_problem(FreeKVCacheBlockQueue, "popleft_n", "n"),
        signature_problem(BlockPool, "evict_blocks", "block_ids"),
        signature_problem(BlockPool, "reset_prefix_cache"),
    ]
    return [problem for problem in found if problem is not None]


def pool_problem() -> str | None:
    """Takes, caches, frees, hits and evicts blocks of a small pool of its own: the counts must be what the blocks say."""
    from vllm.v1.core.block_pool import BlockPool

    pool: Any = BlockPool(num_gpu_blocks=9, enable_caching=True, hash_block_size=16)
    census, hooks = PoolCensus(pool, None), Hooks()
    hook_pool(hooks, pool, census)

    def mismatch(after: str) -> str | None:
        if hooks.off_reason is not None:
            return f"a small pool: {hooks.off_reason}"
        counted, scanned = census.census(), census.scan()
        return None if counted == scanned else f"a small pool {after}: counted {counted}, its blocks say {scanned}"

    blocks = pool.get_new_blocks(6)
    for number, block in enumerate(blocks[:4]):
        key = bytes([number]) * 36
        block.set_block_hash(key, num_tokens=16)
        pool.cached_block_hash_to_block.insert(key, block)
    found = [mismatch("with 6 blocks taken")]
    pool.free_blocks(reversed(blocks))
    found.append(mismatch("after they were freed"))
    pool.touch(blocks[:2])
    found.append(mismatch("after two hits"))
    pool.free_blocks(blocks[:2])
    pool.evict_blocks({blocks[0].block_id})
    found.append(mismatch("after one was invalidated"))
    pool.get_new_blocks(8)
    found.append(mismatch("with all blocks taken"))
    hooks.remove()
    if census.evictions != 4:
        found.append(f"a small pool: {census.evictions} evictions were counted where there were 4")
    return next((problem for problem in found if problem is not None), None)
