"""What the journal promises: nothing acknowledged is lost, no act is done twice, one process acts, a full disk does no harm."""

import json
import shutil
import subprocess
import sys
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runbooks.errors import JournalError, Refused
from runbooks.response.alertmanager import Alert
from runbooks.response.journal import Journal, Limits, Routed
from runbooks.response.lease import Lease
from tests.runbooks.response.fake_admin import FakeAdmin
from tests.runbooks.response.scenes import alert, better, make_scene, slow

needs_strace = pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not installed")
CALLS = ("pwrite64", "fdatasync", "ftruncate", "fchown", "openat", "unlink", "pread64")
"""What SQLite does to a journal's files, but for its hundreds of locks, which lie between these."""


def sweeps(*words: str) -> list[dict[str, Any]]:
    """All lives; each one's act was done once and undone once."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.runbooks.response.crash", *words],
        capture_output=True,
        text=True,
        timeout=1100,
        check=False,
    )
    if "strace: " in done.stderr and "ptrace" in done.stderr:
        pytest.skip("strace may not trace here")
    assert done.returncode == 0, done.stderr
    attempts = [json.loads(line) for line in done.stdout.splitlines()]
    for attempt in attempts:
        assert attempt["second"] == 0, attempt
        assert attempt["acts"] == ["256", "512"], attempt
        assert len(attempt["outcomes"]) == 1, attempt
        assert "is 512 again" in attempt["outcomes"][0], attempt
    return attempts


def deaths(*words: str) -> list[dict[str, Any]]:
    """Lives that were killed; each sweep ends with one that was not touched."""
    attempts = sweeps(*words)
    assert {attempt["first"] for attempt in attempts} == {0, -9}
    return [attempt for attempt in attempts if attempt["first"] == -9]


@pytest.mark.slow
def test_no_kill_at_any_write_repeats_or_loses_an_act():
    """Killed before and after the n-th write, n = 1 until a run ends untouched: the next process finishes the incident."""
    assert len(deaths("writes")) >= 20


@needs_strace
@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_no_kill_at_any_system_call_on_the_journal_repeats_or_loses_an_act():
    """The same at the n-th system call of each kind on the journal's files, creation and checkpoint included."""
    killed = deaths("calls", *CALLS)
    at = {call: sum(death["where"] == call for death in killed) for call in CALLS}
    assert at["pwrite64"] >= 40 and at["fdatasync"] >= 12, at


@needs_strace
@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("call", "error", "least"), [("pwrite64", "ENOSPC", 15), ("pwrite64", "EIO", 15), ("fdatasync", "EIO", 3)]
)
def test_a_disk_that_fails_for_a_while_costs_no_act_and_repeats_none(call, error, least):
    """A full disk, and one with errors, for six system calls from each place of a life on: done later, and once."""
    attempts = sweeps("failures", call, error)
    assert {attempt["first"] for attempt in attempts} == {0}
    assert sum(attempt["failures"] > 0 for attempt in attempts) >= least


def test_a_full_disk_lets_no_act_begin(tmp_path):
    """An act that the journal cannot hold is not done; it is done once there is room."""
    with FakeAdmin() as admin:
        here = make_scene(tmp_path, admin.url, [slow(), better()])
        (number,) = here.receive(alert())
        conductor = here.conductor()
        assert conductor.advance(number) and conductor.advance(number), "looked and decided"
        db = here.journal._connection
        (pages,) = db.execute("PRAGMA page_count").fetchone()
        db.execute(f"PRAGMA max_page_count = {pages}")
        with pytest.raises(JournalError, match="full"):
            for _ in range(200):  # until the last page is
                here.journal.note(number, "x" * 500, here.clock.unix())
        with pytest.raises(JournalError, match="full"):
            for _ in range(20):
                conductor.advance(number)
                assert admin.posts == []
        db.execute("PRAGMA max_page_count = 100000")
        here.carry_to_end(number)
        assert [body for _, body in admin.posts] == [{"max_batched_tokens": 256}, {"max_batched_tokens": 512}]


def test_one_process_holds_the_lease(tmp_path):
    first, second = Lease(tmp_path / "j.db"), Lease(tmp_path / "j.db")
    assert first.take() and first.take()
    assert not second.take()
    first.give_back()
    assert second.take()
    second.give_back()


def test_the_lease_goes_with_its_process(tmp_path):
    script = (
        "import sys, time; from pathlib import Path; from runbooks.response.lease import Lease; "
        "lease = Lease(Path(sys.argv[1])); print(lease.take(), flush=True); time.sleep(60)"
    )
    holder = subprocess.Popen([sys.executable, "-c", script, str(tmp_path / "j.db")], stdout=subprocess.PIPE, text=True)
    assert holder.stdout is not None
    assert holder.stdout.readline() == "True\n"
    lease = Lease(tmp_path / "j.db")
    assert not lease.take()
    holder.kill()
    holder.communicate()
    assert lease.take()
    lease.give_back()


def test_a_damaged_journal_is_refused_in_one_line(tmp_path):
    path = tmp_path / "runbooks.db"
    path.write_bytes(b"not a database at all" * 400)
    with pytest.raises(JournalError, match=r"runbooks\.db: file is not a database"):
        Journal(path)


def test_a_journal_of_a_newer_version_is_left_alone(tmp_path):
    journal = Journal(tmp_path / "runbooks.db")
    journal._connection.execute("PRAGMA user_version = 9")
    journal.close()
    with pytest.raises(JournalError, match="schema 9; this version reads 1"):
        Journal(tmp_path / "runbooks.db")


def test_two_incidents_do_not_act_on_one_target_at_once(tmp_path):
    journal = Journal(tmp_path / "runbooks.db")
    routed = [Routed(alert(severity=name), name, "chat") for name in ("a", "b")]
    first, second = journal.receive(routed, 1000.0).opened
    limits = Limits(6, 1.0, "drain")
    journal.begin_act(first, {"label": "drain"}, limits, 1001.0)
    with pytest.raises(Refused, match="incident 1 has an act under way on chat"):
        journal.begin_act(second, {"label": "drain"}, limits, 1010.0)
    journal.close_incident(first, "done", 1011.0)
    journal.begin_act(second, {"label": "drain"}, limits, 1012.0)


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 2), st.booleans()), max_size=40))
def test_alerts_in_any_order_open_one_incident_at_a_time(events):
    """The same notification twice, resolved before firing, firings that overlap: known by fingerprint and start."""
    import tempfile
    from pathlib import Path

    with tempfile.TemporaryDirectory() as folder:
        journal = Journal(Path(folder) / "runbooks.db")
        ended: set[tuple[int, int]] = set()
        seen: set[tuple[int, int]] = set()
        for fingerprint, start, firing in events:
            one = Alert("firing" if firing else "resolved", {"alertname": "A"}, f"f{fingerprint}", f"t{start}")
            received = journal.receive([Routed(one, "slow", "chat")], 1.0)
            key = (fingerprint, start)
            if received.opened:
                assert firing and key not in seen
            seen.add(key)
            if not firing:
                ended.add(key)
        assert len(journal.open_incidents()) <= 1
        if journal.open_incidents():
            incident = journal.incident(1)
            assert incident.is_resolved == {("f" + str(f), "t" + str(t)) for f, t in ended}.issuperset(
                (row.fingerprint, row.starts_at) for row in incident.alerts
            )
        journal.close()
