"""The probe of one engine: put together from vLLM's scheduler as soon as that is built."""

import os
import secrets
import time
from collections.abc import Callable
from importlib.metadata import version as package_version
from typing import Any

from probes.locks import TimedLock
from probes.prometheus import EngineCollector
from probes.recorder import RingRecorder
from probes.snapshot import EngineSnapshot
from probes.vllm import rendezvous
from probes.vllm.census import Identity, PoolCensus
from probes.vllm.hooks import Hooks, log
from probes.vllm.side_port import Served, SidePort
from probes.vllm.steps import StepProbe
from probes.vllm.worker import DeviceFacts, device_of

PORT_VARIABLE = "STALLSCOPE_PORT"


class EngineProbe:
    """Everything of one engine. Hangs on its scheduler, a vLLM Scheduler, whose objects carry the hooks from here on."""

    def __init__(self, scheduler: Any, hooks: Hooks) -> None:
        self.hooks = hooks
        self.recorder = RingRecorder()
        self._scheduler = scheduler
        self._config = config = scheduler.vllm_config
        pool = scheduler.kv_cache_manager.block_pool
        self.block_size = config.cache_config.block_size
        self.census = PoolCensus(pool, _identity(scheduler))
        self.steps = StepProbe(scheduler, self.census, self.recorder, self.block_size)
        self._started_unix = time.time()
        self._device: DeviceFacts | None = None
        self._memory = {"kv_pool": self._num_workers * self._pool_bytes}
        engine_id = secrets.token_hex(8)
        self._info = _info(config) | {
            "engine_id": engine_id,
            "kv_blocks": str(pool.num_gpu_blocks - 1),
            "kv_bytes_per_token": str(self._memory["kv_pool"] // (pool.num_gpu_blocks * self.block_size)),
        }
        hooks.on_error = self._count_error
        hook_pool(hooks, pool, self.census)
        hook_scheduler(hooks, scheduler, self.steps)
        hooks.add(scheduler, "update_from_output", after=self._learn_device)
        # Last: whatever goes wrong before leaves no port open.
        collector = EngineCollector(self.recorder, TimedLock(), self.snapshot)
        served = Served(
            engine_id, self.block_size, self.recorder, collector, self.snapshot, lambda: self.hooks.off_reason
        )
        self.side_port = SidePort(served, _port(config))
        self._info["debug_url"] = self.side_port.url
        _publish(config, self.side_port.url)

    @property
    def _num_workers(self) -> int:
        return int(self._config.parallel_config.world_size)

    @property
    def _pool_bytes(self) -> int:
        """KV bytes of one worker."""
        return sum(tensor.size for tensor in self._scheduler.kv_cache_config.kv_cache_tensors)

    def _learn_device(self, _: Any, __: Any, model_output: Any) -> None:
        """From the first output of the worker that answers; the others hold as much."""
        if self._device is not None or (found := device_of(model_output)) is None:
            return
        self._device = found
        told = {"total": found.total_bytes, "reserved": found.reserved_bytes, "weights": found.weight_bytes}
        # Replaced whole: another thread may be reading.
        self._memory = self._memory | {
            kind: self._num_workers * size for kind, size in told.items() if size is not None
        }
        counts = {"num_parameters": found.num_parameters, "weight_bytes": found.weight_bytes}
        counted = {name: str(self._num_workers * count) for name, count in counts.items() if count is not None}
        self._info = self._info | counted | {"device": found.device}

    def _count_error(self) -> None:
        self.recorder.counters.probe_errors += 1

    def snapshot(self) -> EngineSnapshot:
        """From any thread: each number is right at its moment, and a step may end between two of them."""
        running, waiting = self._scheduler.get_request_counts()
        return EngineSnapshot(
            census=self.census.published,
            num_running=running,
            num_waiting=waiting,
            waiting_by_reason=self.steps.waiting_by_reason(),
            prefix_query_tokens=self.steps.prefix_query_tokens,
            prefix_hit_tokens=self.steps.prefix_hit_tokens,
            max_batched_tokens=self._scheduler.max_num_scheduled_tokens,
            max_sequences=self._scheduler.max_num_active_reqs,
            memory_bytes=self._memory,
            bandwidth_bytes_per_second=None,
            start_unix=self._started_unix,
            info=self._info,
        )


def _index(config: Any) -> int:
    return int(config.parallel_config.data_parallel_rank)


def _port(config: Any) -> int:
    """0 takes a free one. Raises ValueError when the environment asks for no port number."""
    text = os.environ.get(PORT_VARIABLE, "0")
    if not text.isascii() or not text.isdigit() or int(text) > 65535:
        raise ValueError(f"{PORT_VARIABLE}={text!r} is no port number")
    return int(text) + _index(config) if int(text) else 0


def _publish(config: Any, url: str) -> None:
    try:
        rendezvous.publish(_index(config), url)
    except OSError as error:
        log.warning("stallscope: vLLM's own metrics page stays without ours, which are at %s/metrics: %s", url, error)


def hook_pool(hooks: Hooks, pool: Any, census: PoolCensus) -> None:
    """Vital: a census that has missed a block is wrong for good."""
    queue = pool.free_block_queue
    hooks.add(queue, "append", after=census.on_append, vital=True)
    hooks.add(queue, "append_n", after=census.on_append_n, vital=True)
    hooks.add(queue, "prepend_n", after=census.on_append_n, vital=True)
    hooks.add(queue, "remove", after=census.on_remove, vital=True)
    hooks.add(queue, "popleft", after=census.on_popleft, vital=True)
    hooks.add(queue, "popleft_n", after=census.on_popleft_n, vital=True)
    hooks.add(pool, "evict_blocks", before=census.before_evict_blocks, vital=True)
    hooks.add(pool, "reset_prefix_cache", after=census.after_reset_prefix_cache, vital=True)


def hook_scheduler(hooks: Hooks, scheduler: Any, steps: StepProbe) -> None:
    hooks.add(scheduler, "schedule", before=steps.before_schedule, after=steps.after_schedule)
    hooks.add(scheduler, "_preempt_request", before=steps.before_preempt)
    hooks.add(scheduler, "update_from_output", before=steps.before_update, after=steps.after_update)


def _identity(scheduler: Any) -> Identity | None:
    """Requests ask by the hashes of whole blocks only where the pool has one kind of block and hashes those."""
    from vllm.v1.core.kv_cache_utils import get_block_hash

    groups = scheduler.kv_cache_config.kv_cache_groups
    same = len(groups) == 1 and groups[0].kv_cache_spec.block_size == scheduler.hash_block_size
    identity: Callable[[Any], bytes] = get_block_hash
    return identity if same else None


def _info(config: Any) -> dict[str, str]:
    """Labels of `engine_info` that vLLM's configuration tells."""
    import vllm

    model, cache = config.model_config, config.cache_config
    return {
        "version": str(vllm.__version__),
        "probe_version": package_version("stallscope"),
        "model": str(model.served_model_name if isinstance(model.served_model_name, str) else model.model),
        "num_layers": str(model.get_num_layers(config.parallel_config)),
        "num_query_heads": str(model.get_num_attention_heads(config.parallel_config)),
        "head_dim": str(model.get_head_size()),
        "block_size": str(cache.block_size),
        "max_model_len": str(model.max_model_len),
        "prefix_cache": str(bool(cache.enable_prefix_caching)).lower(),
        "device": str(config.device_config.device_type),
        "device_time": "none",
    }
