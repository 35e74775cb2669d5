"""The part of a server that one of a pair has: a listener for prompts, or a prefill instance to ask."""

import logging
import os
from dataclasses import dataclass

from starlette.requests import Request
from starlette.responses import Response

from engine.disagg.channel import Channel, TcpChannel, choose_channel
from engine.disagg.decode_side import DecodeSide
from engine.disagg.prefill_side import PrefillSide
from engine.disagg.wire import FAILURES
from engine.loop import EngineThread
from engine.prefix_cache import CacheScope
from engine.server.drill_fault import GATE, transfer_delay
from engine.server.errors import json_response
from engine.server.options import ServeOptions
from probes.recorder import RingRecorder

log = logging.getLogger("stallscope.disagg")


@dataclass(frozen=True, slots=True)
class Disaggregation:
    """Starts and stops with the server. At most one of the sides is there."""

    prefill: PrefillSide | None = None
    decode: DecodeSide | None = None
    host: str = "127.0.0.1"

    def start(self) -> None:
        if self.prefill is not None:
            self.prefill.start(self.host)
        if self.decode is not None:
            self.decode.start()

    def stop(self) -> None:
        if self.prefill is not None:
            self.prefill.stop()
        if self.decode is not None:
            self.decode.stop()


def make_disaggregation(
    options: ServeOptions,
    engine: EngineThread,
    recorder: RingRecorder,
    scope: CacheScope,
    *,
    device: str,
    block_bytes: int,
    vocab_size: int,
) -> Disaggregation | None:
    """None unless for `--role prefill` or `--role decode`. Raises ConfigError for a prefill instance of another identity."""
    if options.role == "both":
        return None
    # From the start, so that none is known to have failed.
    recorder.counters.transfer_failures.update(dict.fromkeys(FAILURES, 0))
    channel, reason = choose_channel(options.transfer, device)
    log.info("KV is transferred by %s: %s", channel.name, reason)
    if options.role == "prefill":
        channels: dict[str, Channel] = {"tcp": TcpChannel(), channel.name: channel}
        side = PrefillSide(
            engine,
            recorder,
            scope,
            block_size=options.block_size,
            block_bytes=block_bytes,
            vocab_size=vocab_size,
            channels=channels,
            overlap=options.transfer_overlap,
            delay_seconds=transfer_delay(options.drill_fault, os.environ.get(GATE)),
            timeout_seconds=options.transfer_timeout,
        )
        return Disaggregation(prefill=side, host=options.host)
    assert options.prefill is not None
    decode = DecodeSide(
        options.prefill,
        scope,
        block_size=options.block_size,
        block_bytes=block_bytes,
        channel=channel,
        arrive=engine.arrive,
        min_tokens=options.remote_prefill_tokens,
        timeout_seconds=options.transfer_timeout,
    )
    decode.check()
    engine.prefill_peer = decode
    return Disaggregation(decode=decode)


class DisaggregationApi:
    """GET /disaggregation of a prefill instance."""

    def __init__(self, side: PrefillSide) -> None:
        self._side = side

    async def describe(self, _: Request) -> Response:
        return json_response(self._side.describe())
