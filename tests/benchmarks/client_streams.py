"""What the load client of `stallscope experiment` costs: CPU per token and stream, late sends, and its own delay.

    python -m tests.benchmarks.client_streams [--streams 500,1000,2000,4000] [--gap 0.1] [--json FILE]

A server in a process of its own streams a token per gap to every request; requests arrive at the rate that keeps so many streams
open at once. CPU is that of this process alone: user and system time, whatever else the machine does.
"""

import argparse
import asyncio
import json
import os
import subprocess
import sys
import time
from itertools import accumulate
from pathlib import Path
from typing import NamedTuple

from runbooks.experiments.client import LATE_SEND_SECONDS, Client, Traffic
from runbooks.experiments.workload import Arrival
from tests.benchmarks.open_files import allow_many_files

TOKENS = 100


class Row(NamedTuple):
    streams: int
    """Open at once, at most."""
    requests: int
    tokens: int
    cores: float
    """CPU seconds per second."""
    us_per_token: float
    ms_per_stream: float
    late_sends: int
    lag_p99_ms: float
    """Of its event loop at a heartbeat: what it may add to a gap that it measures."""


def measure(url: str, streams: int, gap: float, seconds: float) -> Row:
    """Over `seconds` of arrivals; streams are closed by their server."""
    rate = streams / (TOKENS * gap)
    arrivals = [Arrival(number / rate, 12, TOKENS, 0, 0) for number in range(int(rate * seconds))]
    began, cpu = time.perf_counter(), time.process_time()
    traffic = asyncio.run(Client(url, "none", drain_seconds=4 * TOKENS * gap).run(arrivals, seconds, "salt"))
    cpu, wall = time.process_time() - cpu, time.perf_counter() - began
    tokens = sum(len(stream.tokens) for stream in traffic.streams)
    errors = [stream.error for stream in traffic.streams if stream.error]
    assert tokens == TOKENS * len(arrivals), f"{tokens} of {TOKENS * len(arrivals)} tokens came; {errors[:1]}"
    lags = sorted(traffic.loop_lags)
    return Row(
        streams=most_at_once(traffic),
        requests=len(arrivals),
        tokens=tokens,
        cores=cpu / wall,
        us_per_token=cpu / tokens * 1e6,
        ms_per_stream=cpu / len(arrivals) * 1e3,
        late_sends=sum((s.sent or 0.0) - s.due > LATE_SEND_SECONDS for s in traffic.streams),
        lag_p99_ms=lags[int(0.99 * (len(lags) - 1))] * 1e3,
    )


def most_at_once(traffic: Traffic) -> int:
    begun = [(stream.sent, 1) for stream in traffic.streams if stream.sent is not None]
    ended = [(stream.ended, -1) for stream in traffic.streams if stream.ended is not None]
    return max(accumulate(step for _, step in sorted([*begun, *ended])))


def table(rows: list[Row]) -> str:
    lines = [
        "| streams at once | requests | tokens | cores | us per token | CPU ms per stream | late sends | loop lag p99 |"
    ]
    lines.append("|---|---|---|---|---|---|---|---|")
    lines += [
        f"| {row.streams} | {row.requests} | {row.tokens} | {row.cores:.2f} | {row.us_per_token:.1f} | "
        f"{row.ms_per_stream:.2f} | {row.late_sends} | {row.lag_p99_ms:.1f} ms |"
        for row in rows
    ]
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--streams", default="500,1000,2000,4000")
    parser.add_argument("--gap", type=float, default=0.1, help="seconds between two tokens of a stream")
    parser.add_argument("--seconds", type=float, default=15.0, help="of arrivals, per row")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    allow_many_files()
    command = [sys.executable, "-m", "tests.benchmarks.stream_server", str(arguments.gap)]
    server = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=os.environ)
    try:
        assert server.stdout is not None
        url = server.stdout.readline().strip()
        counts = [int(count) for count in arguments.streams.split(",")]
        rows = [measure(url, count, arguments.gap, arguments.seconds) for count in counts]
    finally:
        server.communicate("", timeout=30)
    print(f"{TOKENS} tokens per stream, one every {arguments.gap * 1e3:g} ms\n")
    print(table(rows))
    if arguments.json:
        arguments.json.write_text(json.dumps([row._asdict() for row in rows], indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
