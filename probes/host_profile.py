"""What the threads of a server did on their machine: shares of wall time, as the host probe measured them."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from probes.stack_patterns import Activity, Role

HOST_SCHEMA = 1


class HostProfileError(ValueError):
    """A text that is no host profile; says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ThreadUse:
    """One thread over the window. Shares are of the window's wall time; None: not measured."""

    pid: int
    tid: int
    name: str
    role: Role = Role.OTHER
    run_share: float | None = None
    """On a core."""
    delay_share: float | None = None
    """Ready to run, and waiting for a core."""
    gil_share: float | None = None
    """Held the interpreter lock."""
    preempted_per_second: float | None = None
    """Involuntary context switches."""
    activities: Mapping[Activity, float] = field(default_factory=dict)
    """Share of the samples by what the stack shows; empty when stacks were not sampled."""

    def doing(self, *activities: Activity) -> float:
        return sum(self.activities.get(activity, 0.0) for activity in activities)


@dataclass(frozen=True, slots=True, kw_only=True)
class HostProfile:
    pid: int
    seconds: float
    threads: tuple[ThreadUse, ...]
    limits: tuple[str, ...] = ()
    """What could not be measured, and why."""

    def of(self, role: Role) -> list[ThreadUse]:
        return [thread for thread in self.threads if thread.role is role]

    @property
    def gil_held_share(self) -> float | None:
        """Of the process whose interpreter lock is held most; None when stacks were not sampled."""
        held: dict[int, float] = {}
        for thread in self.threads:
            if thread.gil_share is not None:
                held[thread.pid] = held.get(thread.pid, 0.0) + thread.gil_share
        return min(1.0, max(held.values())) if held else None

    @property
    def delay_share(self) -> float | None:
        """Run-queue delay of the thread that matters most: the engine's loop where it is known, else the most delayed one."""
        found = [t.delay_share for t in (self.of(Role.ENGINE) or self.threads) if t.delay_share is not None]
        return max(found) if found else None


def encode_host(profile: HostProfile) -> str:
    return json.dumps({"stallscope_host": HOST_SCHEMA, **asdict(profile)}, separators=(",", ":"))


def decode_host(text: str) -> HostProfile:
    """Raises HostProfileError."""
    try:
        value = json.loads(text)
        if not isinstance(value, dict) or value.get("stallscope_host") != HOST_SCHEMA:
            raise HostProfileError(f"not a host profile of schema {HOST_SCHEMA}")
        return HostProfile(
            pid=int(value["pid"]),
            seconds=float(value["seconds"]),
            threads=tuple(_thread(thread) for thread in value["threads"]),
            limits=tuple(map(str, value["limits"])),
        )
    except HostProfileError:
        raise
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        raise HostProfileError(f"not a host profile: {type(error).__name__}: {error}") from None


def _thread(value: dict[str, Any]) -> ThreadUse:
    fields = dict(value)
    fields["role"] = Role(fields["role"])
    fields["activities"] = {Activity(name): float(share) for name, share in fields["activities"].items()}
    return ThreadUse(**fields)
