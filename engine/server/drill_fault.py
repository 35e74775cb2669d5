"""Faults that a drill asks for, so that a diagnosis can be tried on a server of which one knows what is wrong.

`--drill-fault` is hidden, and refused unless STALLSCOPE_DRILLS=1 is set: no server has a fault by mistake.
"""

import threading
import time
from dataclasses import dataclass

from engine.core import EngineCore, HandOut, TokenOutput
from engine.errors import ConfigError
from probes.locks import TimedLock

GATE = "STALLSCOPE_DRILLS"
KINDS = ("lock", "host", "transfer")
_MAX_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class DrillFault:
    """`lock`: another thread holds the scheduler lock for so long, again and again. `host`: handing out takes so long.
    `transfer`: a prefill instance waits so long before it sends a chunk."""

    kind: str
    seconds: float


def parse_fault(text: str, gate: str | None) -> DrillFault:
    """Of `lock=20ms`; `gate` is the value of the variable. Raises ConfigError."""
    if gate != "1":
        raise ConfigError(f"--drill-fault makes a server slow on purpose: it needs {GATE}=1 in the environment")
    kind, _, length = text.partition("=")
    number = length.removesuffix("ms")
    if kind not in KINDS or length == number or not number.isdigit() or not 0 < int(number) <= _MAX_SECONDS * 1e3:
        raise ConfigError(
            f"--drill-fault {text!r}: write KIND=MILLISECONDSms, KIND one of {', '.join(KINDS)}: lock=20ms"
        )
    return DrillFault(kind, int(number) / 1e3)


class SlowHostCore(EngineCore):
    """Hands its tokens out slowly, as a callback does that computes on the engine's thread."""

    hand_out_seconds = 0.0

    def step(self, hand_out: HandOut) -> bool:
        def slow(outputs: list[TokenOutput]) -> None:
            time.sleep(self.hand_out_seconds)
            hand_out(outputs)

        return super().step(slow)


def transfer_delay(text: str | None, gate: str | None) -> float:
    """Seconds before each chunk; 0 unless that is the fault asked for. Raises ConfigError as `parse_fault`."""
    fault = None if text is None else parse_fault(text, gate)
    return fault.seconds if fault is not None and fault.kind == "transfer" else 0.0


def contend(lock: TimedLock, seconds: float) -> None:
    """A thread that takes the scheduler lock for `seconds`, with a fifth of that between two holds."""
    site = lock.site("drill")

    def hold() -> None:
        while True:
            with site:
                time.sleep(seconds)
            time.sleep(seconds / 5)

    threading.Thread(target=hold, name="drill-fault", daemon=True).start()
