"""The probe of one engine: put together from vLLM's EngineCore once that is built, before its first step."""

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
from probes.vllm.worker import DeviceFacts, device_facts

PORT_VARIABLE = "STALLSCOPE_PORT"
DEVICE_FACTS_TIMEOUT_SECONDS = 60.0


class EngineProbe:
    """Everything of one engine. `core` is a vLLM EngineCore; its objects carry the hooks from here on."""

    def __init__(self, core: Any, hooks: Hooks) -> None:
        self.hooks = hooks
        self.recorder = RingRecorder()
        scheduler = core.scheduler
        pool = scheduler.kv_cache_manager.block_pool
        self.block_size = core.vllm_config.cache_config.block_size
        self.census = PoolCensus(pool, _identity(scheduler))
        self.steps = StepProbe(scheduler, self.census, self.recorder, self.block_size)
        self._scheduler = scheduler
        self._started_unix = time.time()
        engine_id = secrets.token_hex(8)
        devices = _ask_devices(core)
        self._memory = _memory(core, devices)
        self._info = _info(core, devices) | {"engine_id": engine_id}
        hooks.on_error = self._count_error
        hook_pool(hooks, pool, self.census)
        hook_scheduler(hooks, scheduler, self.steps)
        # Last: whatever goes wrong before leaves no port open.
        collector = EngineCollector(self.recorder, TimedLock(), self.snapshot)
        served = Served(
            engine_id, self.block_size, self.recorder, collector, self.snapshot, lambda: self.hooks.off_reason
        )
        self.side_port = SidePort(served, _port(core))
        self._info["debug_url"] = self.side_port.url
        _publish(core, self.side_port.url)

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


def _index(core: Any) -> int:
    return int(core.vllm_config.parallel_config.data_parallel_rank)


def _port(core: Any) -> int:
    """0 takes a free one. Raises ValueError when the environment asks for no port number."""
    text = os.environ.get(PORT_VARIABLE, "0")
    if not text.isascii() or not text.isdigit() or int(text) > 65535:
        raise ValueError(f"{PORT_VARIABLE}={text!r} is no port number")
    return int(text) + _index(core) if int(text) else 0


def _publish(core: Any, url: str) -> None:
    try:
        rendezvous.publish(core.vllm_config.instance_id, _index(core), url)
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


def _ask_devices(core: Any) -> list[DeviceFacts]:
    """One per worker; empty when they cannot say: a lack, and no reason to go without the rest."""
    try:
        answers = core.model_executor.collective_rpc(device_facts, timeout=DEVICE_FACTS_TIMEOUT_SECONDS)
        return [DeviceFacts(*answer) for answer in answers]
    except Exception as error:  # noqa: BLE001 - whatever a worker raises, the server must start
        log.warning("stallscope: the workers do not tell their device memory (%s)", error)
        return []


def _memory(core: Any, devices: list[DeviceFacts]) -> dict[str, int]:
    """Labels of `device_memory_bytes`, over all workers; without those that not every worker can tell."""
    memory = {
        "total": _sum([device.total_bytes for device in devices]),
        "reserved": _sum([device.reserved_bytes for device in devices]),
        "weights": _sum([device.weight_bytes for device in devices]),
        "kv_pool": len(devices) * _pool_bytes(core) or None,
    }
    return {kind: value for kind, value in memory.items() if value is not None}


def _sum(values: list[int | None]) -> int | None:
    known = [value for value in values if value is not None]
    return sum(known) if known and len(known) == len(values) else None


def _pool_bytes(core: Any) -> int:
    """KV bytes of one worker."""
    return sum(tensor.size for tensor in core.scheduler.kv_cache_config.kv_cache_tensors)


def _info(core: Any, devices: list[DeviceFacts]) -> dict[str, str]:
    """Labels of `engine_info`."""
    config = core.vllm_config
    model, cache = config.model_config, config.cache_config
    num_blocks = core.scheduler.kv_cache_config.num_blocks
    measured = {
        "num_parameters": _sum([device.num_parameters for device in devices]),
        "weight_bytes": _sum([device.weight_bytes for device in devices]),
    }
    return {
        "version": _vllm_version(),
        "probe_version": package_version("stallscope"),
        "model": str(model.served_model_name if isinstance(model.served_model_name, str) else model.model),
        "num_layers": str(model.get_num_layers(config.parallel_config)),
        "num_query_heads": str(model.get_num_attention_heads(config.parallel_config)),
        "head_dim": str(model.get_head_size()),
        "kv_bytes_per_token": str(
            config.parallel_config.world_size * _pool_bytes(core) // (num_blocks * cache.block_size)
        ),
        "block_size": str(cache.block_size),
        "kv_blocks": str(num_blocks - 1),
        "max_model_len": str(model.max_model_len),
        "prefix_cache": str(bool(cache.enable_prefix_caching)).lower(),
        "device": devices[0].device if devices else config.device_config.device_type,
        "device_time": "none",
        **{name: str(value) for name, value in measured.items() if value is not None},
    }


def _vllm_version() -> str:
    import vllm

    return str(vllm.__version__)
