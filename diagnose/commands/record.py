"""`stallscope record`."""

import sys
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import click

from diagnose.commands.host import host_probe
from diagnose.commands.params import Duration, Pid
from diagnose.commands.progress import watch_progress
from diagnose.errors import ExitCode, RecordingCut, SourceError
from diagnose.sources.clock import Clock, SystemClock
from diagnose.sources.http import Endpoint
from diagnose.sources.live import Watch, any_page
from diagnose.sources.log_follow import LogFollower
from probes.recording import Entry, RecordingWriter


@click.command(
    "record",
    epilog="""\b
Examples:
  stallscope record http://127.0.0.1:8000 --for 30s -o good.rec
  stallscope record http://127.0.0.1:8000 --for 10m -o incident.rec --log /var/log/engine.log""",
)
@click.argument("target")
@click.option(
    "--for", "--window", "seconds", type=Duration(), default="30s", show_default=True, help="How long to record."
)
@click.option("--interval", type=Duration(), default="1s", show_default=True, help="Time between scrapes.")
@click.option("--pid", type=Pid(), help="Of the server on this machine: record what its threads do as well.")
@click.option("-o", "--output", type=click.Path(dir_okay=False, path_type=Path), required=True, help="The recording.")
@click.option(
    "--log", "logs", type=click.Path(path_type=Path), multiple=True, help="A log of the target's. Repeatable."
)
@click.option("--force", is_flag=True, help="Replace an existing file.")
@click.option("--quiet", "-q", is_flag=True, help="No progress.")
def record_command(
    target: str,
    seconds: float,
    interval: float,
    pid: int | None,
    output: Path,
    logs: tuple[Path, ...],
    force: bool,
    quiet: bool,
) -> None:
    """Record what TARGET answers, raw, for `stallscope diagnose FILE` and `--baseline FILE`.

    TARGET is any server with a Prometheus page at /metrics: what this version cannot judge, a later one may. Lines that a
    log gets meanwhile are kept beside the answers.

    Whatever ends a recording, what was written before stays readable. Exit codes: 0 recorded, 2 target or file cannot be
    used and nothing was written, 3 the disk failed meanwhile, 4 the target went away meanwhile, 130 interrupted.
    """
    endpoint, clock = Endpoint(target), SystemClock()
    followers = [LogFollower(log) for log in logs]
    # The first answer is judged before the file is touched: a wrong target must not replace an old recording.
    first = any_page(endpoint)
    if not any(dialect.prefixes for dialect in first[1]):  # none, or one that is guessed
        click.echo(
            f"{endpoint.url}: an engine this version does not know; its pages are recorded all the same", err=True
        )
    writer = _open(output, endpoint.url, clock.unix(), force)
    session = _Session(writer, clock, followers)
    interrupted = False
    try:
        with (
            host_probe(pid, seconds, clock.unix) as look,
            watch_progress(f"recording {endpoint.url}", seconds, quiet=quiet) as on_progress,
        ):
            watch = Watch(endpoint, clock, session.keep, on_progress, lambda _: first, keeps=False)
            try:
                watch.run(seconds, interval)
            except KeyboardInterrupt:
                interrupted = True
            if (seen := look()) is not None:
                session.keep(seen)
        session.finish()
    except _DiskFailed as error:
        raise RecordingCut(f"{output}: {error}; what it holds is readable: {session.contents()}") from None
    finally:
        for follower in followers:
            follower.close()
    click.echo(f"{output}: {session.contents()} of {endpoint.url} in {session.length():.0f} s", err=True)
    if interrupted:
        raise KeyboardInterrupt
    if session.gone:
        click.echo(f"stallscope: {session.gone}", err=True)
        sys.exit(int(ExitCode.HARD_FAILURE))


def _open(output: Path, target: str, unix: float, force: bool) -> RecordingWriter:
    try:
        return RecordingWriter(output, target, unix, existing="replace" if force else "refuse")
    except FileExistsError:
        raise SourceError(f"{output}: is there already; --force replaces it") from None
    except OSError as error:
        raise SourceError(f"{output}: cannot be written: {error.strerror or error}") from None


@dataclass(slots=True)
class _Session:
    """A recording in the making. Raises _DiskFailed."""

    writer: RecordingWriter
    clock: Clock
    logs: list[LogFollower]
    counts: Counter[str] = field(default_factory=Counter)
    """Entries by kind."""
    gone: str | None = None
    started: float = 0.0

    def __post_init__(self) -> None:
        self.started = self.clock.monotonic()

    def keep(self, entry: Entry) -> None:
        self._write(entry)
        if entry.event == "gone":
            self.gone = entry.body
        for log in self.logs:
            self._log(log.read())

    def finish(self) -> None:
        """The logs' last lines, and the disk's word that it has it all."""
        for log in self.logs:
            self._log(log.rest())
        try:
            self.writer.close()
        except OSError as error:
            raise _DiskFailed(error) from None

    def contents(self) -> str:
        counts = ", ".join(f"{count} {kind}" for kind, count in sorted(self.counts.items()))
        return f"{counts or 'no answer'}, {self.writer.num_bytes / 1024:.0f} KiB"

    def length(self) -> float:
        return self.clock.monotonic() - self.started

    def _log(self, lines: str) -> None:
        if lines:
            self._write(Entry(self.clock.unix(), "log", lines))

    def _write(self, entry: Entry) -> None:
        try:
            self.writer.write(entry)
        except OSError as error:
            raise _DiskFailed(error) from None
        self.counts[entry.kind] += 1


class _DiskFailed(Exception):
    def __init__(self, error: OSError) -> None:
        super().__init__(error.strerror or str(error))
