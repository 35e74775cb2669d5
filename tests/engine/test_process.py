"""The serving process: what it announces, how it leaves."""

import json
import signal
import socket
import subprocess
import time
from pathlib import Path

import urllib3

from tests.engine.serving import COMMAND, ROOT, Serving, command_environment, serving


def get(server: Serving, path: str) -> tuple[int, str]:
    with urllib3.PoolManager(retries=False, timeout=10) as pool:
        response = pool.request("GET", server.url + path)
        return response.status, response.data.decode()


def open_stream(server: Serving, max_tokens: int) -> socket.socket:
    """A stream that has begun."""
    body = json.dumps({"prompt": "load", "max_tokens": max_tokens, "stream": True, "ignore_eos": True}).encode()
    connection = socket.create_connection(("127.0.0.1", server.port), timeout=30)
    connection.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
    assert connection.recv(65536).startswith(b"HTTP/1.1 200")
    return connection


def read_to_end(connection: socket.socket) -> bytes:
    data = b""
    while piece := connection.recv(65536):
        data += piece
    return data


def test_the_ready_line_says_what_runs():
    sizes = ("--kv-blocks", "77", "--block-size", "8", "--max-batched-tokens", "99")
    with serving("--model", "tiny", *sizes, "--prefix-index", "radix", "--prefix-hash", "siphash64") as server:
        assert server.ready.groups()[1:] == ("tiny", "77", "8", "99")
        assert get(server, "/health")[0] == 200
        metrics = get(server, "/metrics")[1]
        assert 'kv_blocks="77"' in metrics
        assert 'prefix_index="radix"' in metrics
        assert server.port != 0


def test_device_memory_sizes_the_pool_and_is_shown_as_reserved():
    """The reservation trap: nearly all memory is reserved at start, and not one block is active."""
    with serving("--model", "tiny", "--device-memory", "16MiB", "--memory-utilization", "0.95") as server:
        lines = get(server, "/metrics")[1].splitlines()
        memory = {line.split('"')[1]: float(line.split()[1]) for line in lines if "device_memory_bytes{" in line}
        assert memory["total"] == 16 << 20
        assert 0.93 < memory["reserved"] / memory["total"] <= 0.95
        assert memory["weights"] + memory["kv_pool"] == memory["reserved"]
        assert 'stallscope_kv_blocks{state="active"} 0.0' in lines


def test_sigterm_lets_running_requests_finish():
    with serving("--model", "tiny") as server:
        streams = [open_stream(server, 60) for _ in range(4)]
        server.send(signal.SIGTERM)
        for stream in streams:
            with stream:
                assert b"[DONE]" in read_to_end(stream)
        assert server.wait(10) == 0


def test_sigterm_under_endless_load_exits_0_within_the_timeout():
    with serving("--model", "tiny", "--drain-timeout", "0.5") as server:
        streams = [open_stream(server, 8000) for _ in range(4)]
        start = time.monotonic()
        server.send(signal.SIGTERM)
        assert server.wait(15) == 0
        assert time.monotonic() - start < 10
        for stream in streams:
            with stream:
                assert b"engine_error" in read_to_end(stream)


def test_a_second_signal_stops_at_once():
    with serving("--model", "tiny", "--drain-timeout", "60") as server, open_stream(server, 8000):
        server.send(signal.SIGINT)
        time.sleep(0.3)
        start = time.monotonic()
        server.send(signal.SIGINT)
        assert server.wait(15) == 1
        assert time.monotonic() - start < 10


def test_a_port_in_use_is_one_line_and_exit_2(tmp_path: Path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        result = subprocess.run(
            [*COMMAND, "--model", "tiny", "--port", port],
            cwd=ROOT,
            env=command_environment(),
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
    assert result.returncode == 2
    assert result.stdout == ""
    assert result.stderr.startswith("error: cannot listen on 127.0.0.1:" + port)
    assert result.stderr.count("\n") == 1
