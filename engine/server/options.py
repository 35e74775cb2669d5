"""What `serve` can be asked for: one frozen object, checked where it is made."""

import re
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from engine.config import PREFIX_HASHES, PREFIX_INDEXES, check_choice
from engine.errors import ConfigError

DEFAULT_CPU_BLOCKS = 1024
"""KV blocks when neither their number nor the device's memory is given."""
DEVICES = ("auto", "cpu", "cuda")
ATTENTIONS = ("auto", "native", "torch", "triton", "flash_attn")
DTYPES = ("auto", "float32", "float16", "bfloat16", "float64")
ROLES = ("both", "prefill", "decode")
TRANSFERS = ("auto", "tcp", "nixl")
LOG_LEVELS = ("critical", "error", "warning", "info", "debug")

_CHOICES = {
    "log_level": LOG_LEVELS,
    "device": DEVICES,
    "attention": ATTENTIONS,
    "dtype": DTYPES,
    "role": ROLES,
    "transfer": TRANSFERS,
    "prefix_index": PREFIX_INDEXES,
    "prefix_hash": PREFIX_HASHES,
}
_COUNTS = (
    "max_batched_tokens",
    "max_sequences",
    "block_size",
    "kv_blocks",
    "max_model_len",
    "threads",
    "remote_prefill_tokens",
)
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([KMGT]i?B?|B)?", re.IGNORECASE)
_POWERS = {"": 0, "K": 1, "M": 2, "G": 3, "T": 4}


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeOptions:
    """Raises ConfigError that names the option and the value."""

    model: str = "smollm2"
    served_model_name: str | None = None
    """The `model` of the API; by default the loaded model's own name (what `model` says is understood as well)."""
    host: str = "127.0.0.1"
    port: int = 8000
    """0: any free one."""
    max_batched_tokens: int = 512
    max_sequences: int = 64
    block_size: int = 16
    kv_blocks: int | None = None
    device_memory: int | None = None
    """Bytes that weights and KV pool may take together."""
    memory_utilization: float = 0.9
    """Share of device_memory that a derived pool fills up to."""
    max_model_len: int | None = None
    """None: what the model and the pool can hold."""
    threads: int | None = None
    device: str = "auto"
    """One of DEVICES."""
    dtype: str = "auto"
    """Of weights and KV. auto: float32 on the CPU, bfloat16 or float16 on a GPU."""
    attention: str = "auto"
    """One of ATTENTIONS. On the CPU it chooses the kernels of the whole decoder."""
    cuda_graphs: bool = True
    """Capture decode steps at start."""
    profile_every: int = 2048
    """Captured steps between two that are run again under a profiler, for the split of device time; 0: none."""
    prefix_cache: bool = True
    prefix_index: str = "hash_chain"
    prefix_hash: str = "sha256"
    role: str = "both"
    """One of ROLES. prefill: computes prompts for decode instances as well; decode: asks `prefill` for them."""
    prefill: str | None = None
    """Base URL of the prefill instance."""
    transfer: str = "auto"
    """How KV is moved: one of TRANSFERS."""
    transfer_timeout: float = 30.0
    """Seconds from asking for a prompt to its KV; then the decode side computes it."""
    transfer_overlap: bool = True
    """False: KV leaves when the whole prompt is computed."""
    remote_prefill_tokens: int = 32
    """Prompt tokens not cached here from which the prefill instance is asked."""
    admin_token_file: Path | None = None
    """None: no admin surface."""
    record: Path | None = None
    """Recording that the engine appends its page and step records to; None: none."""
    otlp_endpoint: str | None = None
    """Base URL of an OTLP/HTTP receiver; None: what OTEL_EXPORTER_OTLP_* say, and no export without them."""
    drain_timeout: float = 10.0
    log_level: str = "info"
    drill_fault: str | None = None
    """What a drill has asked to be wrong with this server; see engine.server.drill_fault."""

    def __post_init__(self) -> None:
        for name in _COUNTS:
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ConfigError(f"--{name.replace('_', '-')} must be at least 1, got {value}")
        if not 0 <= self.port <= 65535:
            raise ConfigError(f"--port must be 0 to 65535, got {self.port}")
        if not 0 < self.memory_utilization <= 1:
            raise ConfigError(f"--memory-utilization must be above 0 and at most 1, got {self.memory_utilization}")
        if not 0 <= self.drain_timeout <= 3600:
            raise ConfigError(f"--drain-timeout must be 0 to 3600 seconds, got {self.drain_timeout}")
        if self.profile_every < 0:
            raise ConfigError(f"--profile-every must be 0 (never) or more, got {self.profile_every}")
        if self.otlp_endpoint is not None and not _is_http_url(self.otlp_endpoint):
            raise ConfigError(f"--otlp-endpoint must be a URL like http://127.0.0.1:4318, got {self.otlp_endpoint!r}")
        self._check_role()
        for name, choices in _CHOICES.items():
            check_choice(f"--{name.replace('_', '-')}", getattr(self, name), choices)

    def _check_role(self) -> None:
        if (self.role == "decode") != (self.prefill is not None):
            raise ConfigError("--role decode and --prefill URL go together: which instance is to compute the prompts")
        if self.prefill is not None and not (_is_http_url(self.prefill) and self.prefill.startswith("http:")):
            raise ConfigError(f"--prefill must be a URL like http://127.0.0.1:8001, without TLS, got {self.prefill!r}")
        if not 0 < self.transfer_timeout <= 3600:
            raise ConfigError(
                f"--transfer-timeout must be above 0 and at most 3600 seconds, got {self.transfer_timeout}"
            )


def _is_http_url(text: str) -> bool:
    try:
        parts = urlsplit(text)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # of the port
        return False


def parse_size(text: str) -> int:
    """Bytes of `2GiB`, `512M`, `1.5GB` (powers of 1000 with a plain B, of 1024 otherwise) or a bare number."""
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise ConfigError(f"{text!r} is not a size (examples: 2GiB, 512MiB, 1500000000)")
    number, unit = match.group(1), (match.group(2) or "").upper()
    base = 1000 if len(unit) == 2 and unit.endswith("B") else 1024
    size = int(float(number) * base ** _POWERS[unit.rstrip("B").rstrip("I")])
    if size <= 0:
        raise ConfigError(f"{text!r} is no memory at all")
    return size


def derive_kv_blocks(options: ServeOptions, weight_bytes: int, block_bytes: int, own_memory: int | None = None) -> int:
    """Blocks of the pool: as asked, or what the share of the device's memory leaves beside the weights.

    own_memory: bytes of a device that has memory for nothing else; None for the CPU, whose memory is everybody's.
    """
    if options.kv_blocks is not None:
        return options.kv_blocks
    memory = options.device_memory or own_memory
    if memory is None:
        return DEFAULT_CPU_BLOCKS
    room = int(memory * options.memory_utilization) - weight_bytes
    blocks = room // block_bytes
    if blocks < 1:
        raise ConfigError(
            f"--device-memory {memory} x {options.memory_utilization} leaves no KV block of {block_bytes} bytes"
            f" beside {weight_bytes} bytes of weights"
        )
    return blocks


def read_admin_token(path: Path) -> bytes:
    """The token: the file's content without surrounding white space."""
    try:
        token = path.read_bytes().strip()
    except OSError as error:
        raise ConfigError(f"--admin-token-file {path}: {error.strerror or error}") from error
    if not token:
        raise ConfigError(f"--admin-token-file {path} is empty")
    if not token.isascii() or len(token.split()) != 1:
        raise ConfigError(f"--admin-token-file {path} must hold one word of ASCII characters")
    return token
