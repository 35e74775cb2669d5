"""What takes long shows that it goes on, on a terminal and never in what is piped."""

import gzip
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from diagnose.sources import files as file_sources
from diagnose.sources.files import read_files
from tests.builders import make_steps
from tests.diagnose.commands import complaint, recording

LINE = (
    "INFO 11-30 04:00:{:02} [loggers.py:1] Engine 000: Avg prompt throughput: 0.0 tokens/s, Avg generation throughput: "
    "5.0 tokens/s, Running: 1 reqs, Waiting: 0 reqs, GPU KV cache usage: 10.0%\n"
)


@pytest.fixture
def everything_is_long(monkeypatch):
    monkeypatch.setattr(file_sources, "_LONG_BYTES", 1)


def sit_at_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """In the test itself: what stands for stderr is another object before it."""
    monkeypatch.setattr("diagnose.commands.progress.sys.stderr.isatty", lambda: True)


def shares_of(name: str) -> list[float]:
    told: list[float] = []

    @contextmanager
    def progress(_: str) -> Iterator[Callable[[float], None]]:
        yield told.append

    read_files([name], None, None, progress)
    return told


@pytest.mark.parametrize("pack", [lambda data: data, gzip.compress], ids=["plain", "gzip"])
def test_a_long_log_tells_how_much_of_it_was_read(tmp_path, everything_is_long, monkeypatch, pack):
    monkeypatch.setattr("diagnose.sources.content._CHUNK_BYTES", 4096)
    monkeypatch.setattr("diagnose.sources.content._HEAD_BYTES", 4096)
    path = tmp_path / "engine.log"
    path.write_bytes(pack("".join(LINE.format(n % 60) for n in range(2000)).encode()))
    told = shares_of(str(path))
    assert len(told) > 3
    assert told == sorted(told)
    assert (told[0] < 1.0 or pack is gzip.compress, told[-1]) == (True, 1.0)


def test_a_short_file_tells_nothing(tmp_path):
    assert shares_of(str(recording(tmp_path / "short.rec", make_steps(50)))) == []


def test_a_person_at_a_terminal_sees_what_is_read(stallscope, files, everything_is_long, monkeypatch):
    sit_at_a_terminal(monkeypatch)
    assert f"reading {files['quiet']}" in stallscope("diagnose", files["quiet"])[2]
    assert "reading" not in stallscope("diagnose", files["quiet"], "-q")[2]
    with socket.create_server(("127.0.0.1", 0)) as taken:
        code, out, err = stallscope("replay", files["idle"], "--port", taken.getsockname()[1])
    assert (code, out) == (2, "")
    assert f"reading {files['idle']}" in err


def test_a_pipe_sees_nothing_of_it(stallscope, files, everything_is_long):
    assert stallscope("diagnose", files["quiet"])[2] == ""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        err = complaint(stallscope("replay", files["idle"], "--port", taken.getsockname()[1]))
    assert "cannot listen on 127.0.0.1" in err
