"""A log that grows, rotates and is cut: each finished line once, in order."""

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from diagnose.errors import SourceError
from diagnose.sources import log_follow
from diagnose.sources.log_follow import LogFollower


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "engine.log"
    path.write_text("old line\n")
    return path


def append(path: Path, text: str) -> None:
    with path.open("a", encoding="utf-8") as file:
        file.write(text)


@pytest.fixture
def follower(path: Path):
    follower = LogFollower(path)
    yield follower
    follower.close()


def test_only_what_comes_later_is_read_and_only_once(path: Path, follower: LogFollower):
    assert follower.read() == ""
    append(path, "one\ntwo\n")
    assert follower.read() == "one\ntwo\n"
    assert follower.read() == ""


def test_a_line_is_read_when_it_is_finished(path: Path, follower: LogFollower):
    append(path, "one\nhal")
    assert follower.read() == "one\n"
    append(path, "f\ntorn")
    assert follower.read() == "half\n"
    assert follower.rest() == "torn"


def test_a_rotated_log_is_read_to_its_end_and_from_the_new_start(path: Path, follower: LogFollower):
    append(path, "before\n")
    path.rename(path.with_suffix(".1"))
    assert follower.read() == "before\n", "the old one, as long as there is no new one"
    append(path.with_suffix(".1"), "last words")
    append(path, "after\n")
    assert follower.read() == "last words\nafter\n"


def test_a_truncated_log_is_read_from_its_start(path: Path, follower: LogFollower):
    append(path, "one\n" * 10)
    follower.read()
    path.write_text("new\n")
    assert follower.read() == "new\n"


def test_a_line_without_end_comes_in_pieces(path: Path, follower: LogFollower, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(log_follow, "MAX_READ_BYTES", 100)
    append(path, "x" * 250 + "\n")
    pieces = []
    while piece := follower.read():
        pieces.append(piece)
    assert "".join(pieces) == "x" * 250 + "\n"
    assert max(map(len, pieces)) <= 200


def test_bytes_that_are_no_text_do_not_stop_it(path: Path, follower: LogFollower):
    with path.open("ab") as file:
        file.write(b"\xff\xfe\n")
    assert follower.read() == "\ufffd\ufffd\n"


def test_a_log_whose_disk_fails_is_waited_for(path: Path, follower: LogFollower, monkeypatch: pytest.MonkeyPatch):
    def fail(descriptor: int) -> os.stat_result:
        raise OSError(5, "Input/output error")

    append(path, "one\n")
    with monkeypatch.context() as failing:
        failing.setattr(os, "fstat", fail)
        assert follower.read() == ""
    append(path, "two\n")
    assert follower.read() == "one\ntwo\n"


def test_no_such_log(tmp_path: Path):
    with pytest.raises(SourceError, match=r"none\.log: cannot be read: No such file"):
        LogFollower(tmp_path / "none.log")


@given(st.lists(st.one_of(st.text("ab\n", max_size=5), st.just("ROTATE")), max_size=20))
def test_whatever_happens_every_line_comes_once(tmp_path_factory: pytest.TempPathFactory, acts: list[str]):
    folder = tmp_path_factory.mktemp("log")
    path = folder / "a.log"
    path.touch()
    follower = LogFollower(path)
    expected = got = ""
    for number, act in enumerate(acts):
        if act == "ROTATE":
            path.rename(folder / f"{number}")
            path.touch()
            expected += "\n" if expected and not expected.endswith("\n") else ""
        else:
            append(path, act)
            expected += act
        got += follower.read()
    got += follower.rest()
    follower.close()
    assert got == expected
