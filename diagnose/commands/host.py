"""The host probe, beside a watch or alone: `--pid PID`."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from diagnose.errors import SourceError
from probes.recording import Entry

_PROGRESS_SECONDS = 0.2


@contextmanager
def host_probe(pid: int | None, seconds: float, unix: Callable[[], float]) -> Iterator[Callable[[], Entry | None]]:
    """Looks at a process while the body runs; gives a function that ends this and returns the entry, None without a pid.

    Raises SourceError when there is no such process.
    """
    if pid is None:
        yield lambda: None
        return
    # Not at the top: few watches look at a process.
    from probes.host import HostProbe, HostProbeError
    from probes.host_profile import encode_host

    try:
        probe = HostProbe(pid, seconds)
    except HostProbeError as error:
        raise SourceError(str(error)) from None
    probe.start()
    try:
        yield lambda: Entry(unix(), "host", encode_host(probe.finish()))
    finally:
        probe.stop()


def pass_time(seconds: float, on_progress: Callable[[float], None]) -> None:
    """Lets a window go by in which only the probe looks."""
    began = time.monotonic()
    while (passed := time.monotonic() - began) < seconds:
        on_progress(passed)
        time.sleep(min(_PROGRESS_SECONDS, seconds - passed))
