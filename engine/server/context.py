"""What the handlers share: one object, made once where the process is put together."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from engine.loop import EngineThread
from engine.outputs import Detokenizer
from engine.server.disaggregation import Disaggregation
from probes.exports import ExportThread
from probes.gpu_monitor import GpuMonitor
from probes.prometheus import EngineCollector
from probes.recorder import RingRecorder


class TextCodec(Protocol):
    """Prompt text to ids and ids back to text; `engine.server.codec` builds it from a loaded model."""

    @property
    def vocab_size(self) -> int: ...

    def encode(self, text: str) -> list[int]: ...

    def encode_chat(self, messages: Sequence[dict[str, str]]) -> list[int]:
        """Raises RequestRejected when the model has no chat template or its template refuses the messages."""
        ...

    def detokenizer(self) -> Detokenizer: ...

    def token_bytes(self, token_id: int) -> bytes:
        """What a token stands for, possibly part of a character; b"" for an id the tokenizer does not know."""
        ...


@dataclass(frozen=True, slots=True)
class ServerContext:
    engine: EngineThread
    codec: TextCodec
    recorder: RingRecorder
    collector: EngineCollector
    model_name: str
    model_aliases: frozenset[str]
    """What the `model` of a request may say; `model_name` is one of them."""
    max_model_len: int
    block_size: int
    version: str
    admin_token: bytes | None = None
    """None: there is no admin surface."""
    exports: Sequence[ExportThread] = ()
    """They run as long as the application does."""
    disaggregation: Disaggregation | None = None
    """None: prefill and decode are both done here."""
    gpu: GpuMonitor | None = None
    """None: the engine runs on no GPU."""
