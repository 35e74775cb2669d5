"""What `stallscope diagnose` does with live targets: one, several replicas of one service, or a process."""

import time
from collections.abc import Sequence

from diagnose.commands.host import host_probe, pass_time
from diagnose.commands.progress import watch_progress
from diagnose.observation import Observation, observe
from diagnose.sources.clock import SystemClock
from diagnose.sources.http import Endpoint
from diagnose.sources.live import Watch
from diagnose.sources.together import Together, observe_together


def watch_process(pid: int, window: float, *, quiet: bool) -> Observation:
    """For a server that has no page to read."""
    with (
        host_probe(pid, window, time.time) as look,
        watch_progress(f"watching process {pid}", window, quiet=quiet) as on_progress,
    ):
        pass_time(window, on_progress)
        seen = look()
    assert seen is not None
    return observe(f"process {pid}", [seen])


def watch_targets(
    urls: Sequence[str], window: float, interval: float, pid: int | None, *, quiet: bool
) -> tuple[Observation, bool]:
    """What was seen, and whether the watch was interrupted. An interruption that leaves nothing to judge goes on upwards."""
    endpoint, others = Endpoint(urls[0]), [Endpoint(url) for url in urls[1:]]
    interrupted = False
    clock = SystemClock()
    with (
        host_probe(pid, window, clock.unix) as look,
        watch_progress(f"watching {endpoint.url}", window, quiet=quiet) as on_progress,
    ):
        watch = Watch(endpoint, clock, on_progress=on_progress)
        together = Together([Watch(other, SystemClock()) for other in others])
        try:
            together.start(window, interval)
            watch.run(window, interval)
        except KeyboardInterrupt:
            if watch.num_pages < 2:
                raise
            interrupted = True
        seen = look()
        others_saw = together.entries(wait_seconds=0.0 if interrupted else window)
    observation = observe_together(endpoint.url, [*watch.entries, *([] if seen is None else [seen])], others_saw)
    observation.warnings += together.problems
    if interrupted:
        watched = observation.length_seconds or 0.0
        observation.warnings.insert(
            0, f"interrupted after {watched:.1f} s of {window:g} s: this is what was seen until then"
        )
    return observation, interrupted
