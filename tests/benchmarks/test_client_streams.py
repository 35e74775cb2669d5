"""The benchmark of the load client counts what it says it counts, on a small scale."""

import os
import subprocess
import sys

from tests.benchmarks.client_streams import TOKENS, measure, table


def test_every_stream_is_counted_and_every_token_comes():
    command = [sys.executable, "-m", "tests.benchmarks.stream_server", "0.005"]
    server = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=os.environ)
    try:
        assert server.stdout is not None
        row = measure(server.stdout.readline().strip(), streams=5, gap=0.005, seconds=1.0)
    finally:
        server.communicate("", timeout=30)
    assert server.returncode == 0
    assert row.requests == 10
    assert row.tokens == 10 * TOKENS
    assert 1 <= row.streams <= 10
    assert row.cores > 0 and row.us_per_token > 0
    assert f"| {row.streams} | 10 | 1000 |" in table([row])
