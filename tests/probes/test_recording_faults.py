"""The writer killed and starved of disk at every write: what was written before is always readable.

The child process writes the same entries each time and prints how many `write` calls have returned.
"""

import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from probes.recording import Entry, read_recording

ROOT = Path(__file__).resolve().parents[2]
NUM_ENTRIES = 4
ENTRIES = [Entry(float(n), "exposition", "".join(f"a{i} {i * n}\n" for i in range(400))) for n in range(NUM_ENTRIES)]

CHILD = f"""
import os, sys
from pathlib import Path
from probes.recording import Entry, RecordingWriter

def entry(n):
    return Entry(float(n), "exposition", "".join(f"a{{i}} {{i * n}}\\n" for i in range(400)))

def record():
    done = failed = 0
    try:
        writer = RecordingWriter(Path(sys.argv[1]), "t", 0.0)
    except OSError as error:
        print("open", error.errno, flush=True)
        return
    for n in range({NUM_ENTRIES}):
        try:
            writer.write(entry(n))
            print("written", n, flush=True)
        except OSError as error:
            print("failed", n, error.errno, flush=True)
    try:
        writer.close()
    except OSError as error:
        print("close", error.errno, flush=True)
"""

DIE_AT_WRITE = """
import signal
write, count = os.write, 0

def dying(fd, data):
    global count
    count += 1
    if count == int(sys.argv[2]):
        part = int(len(data) * float(sys.argv[3]))
        if part:
            write(fd, data[:part])
        os.kill(os.getpid(), signal.SIGKILL)
    return write(fd, data)

os.write = dying
"""

LIMIT_SIZE = """
import resource, signal
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[2]), resource.RLIM_INFINITY))
"""


def child(*arguments: object, before: str = "", wrapper: tuple[str, ...] = ()) -> "subprocess.CompletedProcess[str]":
    command = [*wrapper, sys.executable, "-S", "-c", CHILD + before + "\nrecord()", *map(str, arguments)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)


def written(output: str) -> list[Entry]:
    return [ENTRIES[int(number)] for number in re.findall(r"^written (\d+)$", output, re.MULTILINE)]


def assert_whole(path: Path, output: str, *, one_more: bool = False) -> None:
    """The file holds exactly what was acknowledged; with `one_more`, perhaps the entry that was being written too."""
    expected, found = written(output), []
    try:
        found = read_recording(path.read_bytes()).entries
    except (OSError, ValueError):
        assert not expected, "only a file that was torn within its header cannot be read"
    if one_more and len(found) == len(expected) + 1:
        expected.append(ENTRIES[len(expected)])
    assert found == expected


@pytest.mark.parametrize("part", [0.0, 0.5, 1.0])
def test_sigkill_at_every_write(tmp_path: Path, part: float):
    """Before, in the middle of, and after each of the writes: the header's and one an entry."""
    for number in range(1, NUM_ENTRIES + 2):
        path = tmp_path / f"{number}"
        done = child(path, number, part, before=DIE_AT_WRITE)
        assert done.returncode == -signal.SIGKILL
        assert len(written(done.stdout)) == max(0, number - 2)
        assert_whole(path, done.stdout, one_more=part == 1.0)


def test_a_full_disk_at_many_sizes(tmp_path: Path):
    """A real limit on the file's size: writes are cut short in the middle, then fail."""
    full = tmp_path / "full"
    assert len(written(child(full).stdout)) == NUM_ENTRIES
    size = full.stat().st_size
    for limit in range(0, size, max(1, size // 12)):
        path = tmp_path / f"{limit}"
        done = child(path, limit, before=LIMIT_SIZE)
        assert done.returncode == 0, done.stderr
        assert re.search(r"^(open|failed \d) 27$", done.stdout, re.MULTILINE), done.stdout
        assert path.stat().st_size <= limit
        assert_whole(path, done.stdout)


strace = pytest.mark.skipif(shutil.which("strace") is None, reason="needs strace")


@strace
@pytest.mark.parametrize("error", ["ENOSPC", "EIO"])
def test_each_write_fails_once(tmp_path: Path, error: str):
    """The system call itself fails: that entry alone is lost, and what comes after is readable again."""
    for number in range(2, NUM_ENTRIES + 2):
        path = tmp_path / f"{number}"
        inject = f"inject=write:error={error}:when={number}"
        done = child(path, wrapper=("strace", "-f", "-qq", "-o", "/dev/null", "-P", str(path), "-e", inject))
        assert re.findall(r"failed (\d)", done.stdout) == [str(number - 2)], done.stdout + done.stderr
        assert len(written(done.stdout)) == NUM_ENTRIES - 1
        assert_whole(path, done.stdout)


@strace
@pytest.mark.parametrize("call", ["write", "fdatasync", "openat", "flock"])
def test_sigkill_at_every_system_call(tmp_path: Path, call: str):
    killed = 0
    for number in range(1, NUM_ENTRIES + 2):
        path = tmp_path / f"{number}"
        inject = f"inject={call}:signal=SIGKILL:when={number}"
        done = child(path, wrapper=("strace", "-f", "-qq", "-o", "/dev/null", "-P", str(path), "-e", inject))
        if len(written(done.stdout)) < NUM_ENTRIES or call == "fdatasync":
            killed += done.returncode != 0
        assert_whole(path, done.stdout, one_more=True)
    assert killed


@strace
def test_a_disk_that_does_not_keep_what_was_written_is_told(tmp_path: Path):
    path = tmp_path / "a"
    inject = "inject=fdatasync:error=EIO"
    done = child(path, wrapper=("strace", "-f", "-qq", "-o", "/dev/null", "-P", str(path), "-e", inject))
    assert "close 5" in done.stdout
    assert_whole(path, done.stdout)


def test_a_folder_that_cannot_be_written(tmp_path: Path):
    done = child(tmp_path / "no" / "such" / "folder")
    assert done.stdout == "open 2\n"
