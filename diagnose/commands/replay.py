"""`stallscope replay`."""

import threading

import click

from diagnose.commands.params import Moment
from diagnose.commands.progress import reading_progress
from diagnose.errors import SourceError
from diagnose.observation import When
from diagnose.sources.clock import SystemClock
from diagnose.sources.files import read_files
from diagnose.sources.replay import Replay
from diagnose.sources.replay_server import ReplayedTarget, ReplayServer


@click.command(
    "replay",
    epilog="""\b
Examples:
  stallscope replay incident.rec --port 9000 --speed 4
  stallscope diagnose http://127.0.0.1:9000 --window 20s""",
)
@click.argument("recording", type=click.Path(dir_okay=False))
@click.option(
    "--port", type=click.IntRange(0, 65535), default=0, help="0 takes a free port; the first line says which."
)
@click.option(
    "--speed", type=click.FloatRange(0.01, 1000), default=1.0, show_default=True, help="Times the recorded pace."
)
@click.option("--since", type=Moment(), help="Begin so long after its start (2m), or at a time (2026-11-30T04:11).")
def replay_command(recording: str, port: int, speed: float, since: When | None) -> None:
    """Serve RECORDING as if it were its target, so that any tool can be pointed at it.

    /metrics and /debug/steps answer as they did at the replayed moment; where the target did not answer, nor does this. After
    the end the last answers stay until Ctrl-C. At another speed than 1, rates are that many times the recorded ones.

    Exit codes: 2 the recording or the port cannot be used, 130 interrupted.
    """
    evidence = read_files([recording], None, None, lambda name: reading_progress(f"reading {name}", quiet=False))
    if any(entry.unix < 0 for entry in evidence.entries):
        raise SourceError(f"{recording}: does not say when it was scraped, so that it has no pace to be replayed at")
    begin = 0.0
    if since is not None:
        start = evidence.entries[0].unix
        begin = since.unix(start) - start
    target = ReplayedTarget()
    replay = Replay(evidence.entries, SystemClock(), target.take, speed)
    try:
        server = ReplayServer(port, target)
    except OSError as error:
        raise SourceError(f"cannot listen on 127.0.0.1:{port}: {error.strerror or error}") from None
    threading.Thread(target=_run, args=(replay, begin), name="replay", daemon=True).start()
    with server:
        length = replay.length_seconds
        click.echo(f"replaying {evidence.name}, {length:.0f} s at {speed:g}x, on {server.url} (Ctrl-C ends)")
        server.serve_forever()


def _run(replay: Replay, begin: float) -> None:
    replay.run(begin)
    # Who looks later sees work inside and no token: without this line, an engine that hangs.
    click.echo("the recording has ended: its last answers stay, and nothing moves any more", err=True)
