"""The serving process: from options to a running server, and down again."""

import asyncio
import contextlib
import errno
import gc
import logging
import os
import secrets
import signal
import socket
import sys
import time
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as package_version

import click
import uvicorn
from starlette.types import ASGIApp

from engine.config import SchedulerConfig
from engine.core import EngineCore
from engine.disagg.identity import transfer_scope
from engine.errors import ConfigError
from engine.loop import EngineFacts, EngineThread
from engine.model.registry import LoadedModel, load_model
from engine.prefix_cache import CacheScope, identity
from engine.runner.base import Runner
from engine.scheduler import Scheduler
from engine.server.app import build_app
from engine.server.codec import ModelCodec
from engine.server.context import ServerContext
from engine.server.devices import make_runner, resolve_device, resolve_dtype, watch_gpu
from engine.server.disaggregation import make_disaggregation
from engine.server.drill_fault import GATE, make_faulty_core, parse_fault
from engine.server.exports import make_exports
from engine.server.frontend_fault import make_faulty_app
from engine.server.options import ServeOptions, derive_kv_blocks, read_admin_token
from probes.locks import TimedLock
from probes.prometheus import EngineCollector
from probes.recorder import RingRecorder

log = logging.getLogger("stallscope.server")

GRACE_SECONDS = 3
"""What responses get to leave the process once the engine has nothing left to do."""
KEEP_ALIVE_SECONDS = 75
"""Longer than any scrape interval, so that observers keep their connection."""
_DRAIN_POLL_SECONDS = 0.02


def run(options: ServeOptions) -> int:
    """Serves until a signal; returns the exit code. Raises ConfigError or ModelError when it cannot start as asked."""
    logging.basicConfig(level=options.log_level.upper(), format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    if options.log_level != "debug":
        logging.getLogger("uvicorn").setLevel(logging.WARNING)  # what it tells at info the ready line tells better
    token = None if options.admin_token_file is None else read_admin_token(options.admin_token_file)
    with contextlib.closing(_bind(options.host, options.port)) as listener:
        context = build_context(options, token)
        # What was loaded stays: the collector need not look at it again, least of all during a step.
        gc.collect()
        gc.freeze()
        server = EngineServer(context, options, announcement=_announcement(options, context, listener))
        try:
            server.run(sockets=[listener])
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise
            raise _address_error(options, error) from error
    if server.force_exit or context.engine.is_alive:
        # A step may still be running in native code, which an orderly interpreter exit would not survive.
        logging.shutdown()
        sys.stdout.flush()
        os._exit(1 if server.force_exit else 0)
    return 0


def build_context(options: ServeOptions, admin_token: bytes | None = None) -> ServerContext:
    """Loads the model, reserves the pool and joins the parts; nothing runs yet."""
    device = resolve_device(options.device)
    model = load_model(options.model, resolve_dtype(options.dtype, device))
    scope = _scope(model) if options.role == "both" else transfer_scope(model, options.block_size)
    runner = make_runner(model, options, device)
    geometry = runner.geometry
    memory = runner.memory()
    own_memory = None if device == "cpu" else memory.total
    block_bytes = geometry.kv_bytes_per_token * options.block_size
    kv_blocks = derive_kv_blocks(options, memory.weights, block_bytes, own_memory)
    max_model_len = _max_model_len(options, geometry.max_position, kv_blocks * options.block_size)
    config = _scheduler_config(options, kv_blocks, max_model_len)
    runner.allocate_kv(kv_blocks, options.block_size)
    recorder, lock = RingRecorder(), TimedLock()
    eos_token_ids = frozenset(model.tokenizer.eos_ids) | frozenset(model.config.eos_ids)
    core = _make_core(options, config, scope, runner, recorder, lock, eos_token_ids)
    name = options.served_model_name or model.name
    version = _version()
    engine_id = secrets.token_hex(8)
    facts = EngineFacts(
        engine_id=engine_id,
        memory_bytes=runner.memory()._asdict(),
        bandwidth_bytes_per_second=runner.bandwidth_bytes_per_second,
        flops_per_second=runner.flops_per_second,
        start_unix=time.time(),
        info=_info(name, version, runner, config, engine_id, options.role),
    )
    engine = EngineThread(core, lock, recorder, facts)
    disaggregation = make_disaggregation(
        options, engine, recorder, scope, device=device, block_bytes=block_bytes, vocab_size=model.config.vocab_size
    )
    gpu = watch_gpu(device)
    collector = EngineCollector(recorder, lock, engine.snapshot, gpu)
    exports = make_exports(options, recorder, collector, facts, name, version)
    collector.exports = [export.counters for export in exports]
    return ServerContext(
        engine=engine,
        codec=ModelCodec(model),
        recorder=recorder,
        collector=collector,
        gpu=gpu,
        model_name=name,
        model_aliases=frozenset({name, model.name, options.model}),
        max_model_len=max_model_len,
        block_size=options.block_size,
        version=version,
        admin_token=admin_token,
        exports=exports,
        disaggregation=disaggregation,
    )


def _scheduler_config(options: ServeOptions, kv_blocks: int, max_model_len: int) -> SchedulerConfig:
    return SchedulerConfig(
        max_batched_tokens=options.max_batched_tokens,
        max_sequences=options.max_sequences,
        block_size=options.block_size,
        kv_blocks=kv_blocks,
        max_model_len=max_model_len,
        enable_prefix_cache=options.prefix_cache,
        prefix_index=options.prefix_index,
        prefix_hash=options.prefix_hash,
    )


def _make_core(
    options: ServeOptions,
    config: SchedulerConfig,
    scope: CacheScope,
    runner: Runner,
    recorder: RingRecorder,
    lock: TimedLock,
    eos_token_ids: frozenset[int],
) -> EngineCore:
    if options.drill_fault is None:
        return EngineCore(Scheduler(config, scope), runner, recorder, lock, eos_token_ids)
    fault = parse_fault(options.drill_fault, os.environ.get(GATE))
    if fault.kind == "transfer" and options.role != "prefill":
        raise ConfigError(
            "--drill-fault transfer=... slows down what a prefill instance sends: it needs --role prefill"
        )
    return make_faulty_core(fault, config, scope, runner, recorder, lock, eos_token_ids)


class EngineServer(uvicorn.Server):
    """Announces itself when it listens. The first signal drains, the second one stops at once."""

    def __init__(self, context: ServerContext, options: ServeOptions, announcement: str) -> None:
        super().__init__(
            uvicorn.Config(
                _app(context, options),
                lifespan="on",
                log_config=None,
                access_log=False,
                server_header=False,
                timeout_keep_alive=KEEP_ALIVE_SECONDS,
                timeout_graceful_shutdown=GRACE_SECONDS,
            )
        )
        self._engine = context.engine
        self._drain_timeout = options.drain_timeout
        self._announcement = announcement
        self._leaving: asyncio.Task[None] | None = None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            click.echo(self._announcement)
            sys.stdout.flush()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        # uvicorn's own handler closes the connections first and raises the signal again afterwards: no drain, no exit 0.
        loop = asyncio.get_running_loop()
        signals = (signal.SIGTERM, signal.SIGINT)
        for number in signals:
            loop.add_signal_handler(number, self._on_signal)
        try:
            yield
        finally:
            for number in signals:
                loop.remove_signal_handler(number)

    def _on_signal(self) -> None:
        if self._leaving is None:
            self._leaving = asyncio.get_running_loop().create_task(self._leave())
        else:
            self.should_exit = self.force_exit = True

    async def _leave(self) -> None:
        engine = self._engine
        engine.drain()
        log.info("draining, up to %g s", self._drain_timeout)
        deadline = time.monotonic() + self._drain_timeout
        while not engine.is_drained and engine.dead_reason is None and time.monotonic() < deadline:
            await asyncio.sleep(_DRAIN_POLL_SECONDS)
        engine.fail_all()
        self.should_exit = True


def _app(context: ServerContext, options: ServeOptions) -> ASGIApp:
    app = build_app(context)
    if options.drill_fault is None:
        return app
    return make_faulty_app(parse_fault(options.drill_fault, os.environ.get(GATE)), app)


def _bind(host: str, port: int) -> socket.socket:
    """Bound, not listening: a port in use is known before the model is loaded, and nobody connects before it is."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, kind, protocol)
    except OSError as error:
        raise ConfigError(f"--host {host}: {error.strerror or error}") from error
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
    except OSError as error:
        listener.close()
        raise ConfigError(f"cannot listen on {host}:{port}: {error.strerror or error}") from error
    return listener


def _address_error(options: ServeOptions, error: OSError) -> ConfigError:
    return ConfigError(f"cannot listen on {options.host}:{options.port}: {error.strerror or error}")


def _announcement(options: ServeOptions, context: ServerContext, listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    shown = f"[{host}]" if ":" in host else host
    blocks = context.engine.facts.info["kv_blocks"]
    return (
        f"stallscope engine ready on http://{shown}:{port} (model {context.model_name},"
        f" {blocks} blocks x {options.block_size} tokens, budget {options.max_batched_tokens})"
    )


def _max_model_len(options: ServeOptions, max_position: int, pool_tokens: int) -> int:
    if options.max_model_len is None:
        return min(max_position, pool_tokens)
    for limit, what in ((max_position, "positions the model has"), (pool_tokens, "tokens the KV pool holds")):
        if options.max_model_len > limit:
            raise ConfigError(f"--max-model-len {options.max_model_len} exceeds the {limit} {what}")
    return options.max_model_len


def _scope(model: LoadedModel) -> CacheScope:
    """KV never leaves this process and its weights never change, so that names and shapes identify them."""
    config = model.config
    return CacheScope(
        weights=identity(name=model.name, architecture=config.architecture, dtype=model.weights.dtype),
        positional=identity(theta=config.rope_theta, scaling=config.rope_scaling),
        kv_format=identity(dtype=model.weights.dtype),
    )


def _info(
    name: str, version: str, runner: Runner, config: SchedulerConfig, engine_id: str, role: str
) -> dict[str, str]:
    """Labels of `engine_info`."""
    geometry = runner.geometry._asdict()
    shape = {key: str(value) for key, value in geometry.items() if key not in ("name", "max_position")}
    return {
        "version": version,
        "model": name,
        **shape,
        "block_size": str(config.block_size),
        "kv_blocks": str(config.kv_blocks),
        "max_model_len": str(config.max_model_len),
        "prefix_cache": str(config.enable_prefix_cache).lower(),
        "prefix_index": config.prefix_index,
        "device": runner.device_name,
        "role": role,
        "engine_id": engine_id,
        "attention_backend": runner.attention_backend,
        "device_time": runner.device_time_source,
    }


def _version() -> str:
    try:
        return package_version("stallscope")
    except PackageNotFoundError:
        return "0+source"  # run from a checkout that is not installed
