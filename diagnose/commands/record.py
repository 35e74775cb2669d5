"""`stallscope record`."""

import sys
import time
from pathlib import Path

import click

from diagnose.commands.host import host_probe
from diagnose.commands.params import Duration, Pid
from diagnose.commands.progress import watch_progress
from diagnose.errors import ExitCode, SourceError
from diagnose.sources.clock import SystemClock
from diagnose.sources.http import Endpoint
from diagnose.sources.live import Watch, first_page
from probes.recording import Entry, RecordingWriter


@click.command("record")
@click.argument("target")
@click.option("--for", "seconds", type=Duration(), default="30s", show_default=True, help="How long to record.")
@click.option("--interval", type=Duration(), default="1s", show_default=True, help="Time between scrapes.")
@click.option("--pid", type=Pid(), help="Of the server on this machine: record what its threads do as well.")
@click.option("-o", "--output", type=click.Path(dir_okay=False, path_type=Path), required=True, help="The recording.")
@click.option("--quiet", "-q", is_flag=True, help="No progress.")
def record_command(target: str, seconds: float, interval: float, pid: int | None, output: Path, quiet: bool) -> None:
    """Record what TARGET answers, raw, for `stallscope diagnose FILE` and `--baseline FILE`.

    \b
    stallscope record http://127.0.0.1:8000 --for 30s -o good.rec

    A recording is usable up to its last whole line, however it ended. Exit codes: 0 recorded, 2 target or file cannot be
    used, 4 the target went away meanwhile (what came before is kept).
    """
    endpoint = Endpoint(target)
    # The first answer is judged before the file is touched: a wrong target must not replace an old recording.
    first_page(endpoint)
    try:
        with RecordingWriter(output, endpoint.url, time.time()) as writer:
            count, gone = _record(endpoint, writer, seconds, interval, pid, quiet=quiet)
    except OSError as error:
        raise SourceError(f"{output}: cannot be written: {error.strerror or error}") from None
    size = output.stat().st_size
    click.echo(f"{output}: {count} answers of {endpoint.url} in {seconds:g} s, {size / 1024:.0f} KiB", err=True)
    if gone:
        click.echo(f"stallscope: {gone}", err=True)
        sys.exit(int(ExitCode.HARD_FAILURE))


def _record(
    endpoint: Endpoint, writer: RecordingWriter, seconds: float, interval: float, pid: int | None, *, quiet: bool
) -> tuple[int, str | None]:
    clock = SystemClock()
    with (
        host_probe(pid, seconds, clock.unix) as look,
        watch_progress(f"recording {endpoint.url}", seconds, quiet=quiet) as on_progress,
    ):
        watch = Watch(endpoint, clock, on_entry=writer.write, on_progress=on_progress)
        entries: list[Entry] = watch.run(seconds, interval)
        seen = look()
    if seen is not None:
        writer.write(seen)
    gone = next((entry.body for entry in entries if entry.event == "gone"), None)
    return len(entries), gone
