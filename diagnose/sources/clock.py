"""The clock that sources use; tests pass their own."""

import time
from typing import Protocol


class Clock(Protocol):
    def monotonic(self) -> float: ...

    def unix(self) -> float: ...

    def sleep(self, seconds: float) -> None: ...


class SystemClock:
    def monotonic(self) -> float:
        return time.monotonic()

    def unix(self) -> float:
        return time.time()

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)
