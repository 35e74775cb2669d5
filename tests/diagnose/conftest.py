"""The command, run in the test's process, and recordings for it."""

import sys

import pytest

from diagnose.cli import main
from tests.builders import make_steps, with_prefill
from tests.diagnose.commands import recording
from tests.diagnose.fake_target import FakeClock


@pytest.fixture
def stallscope(monkeypatch, capsys):
    """Runs the command in this process: exit code, stdout, stderr. A watch takes no time."""
    for module in ("diagnose.commands.record", "diagnose.sources.clock"):  # where it was imported, and where it will be
        monkeypatch.setattr(f"{module}.SystemClock", FakeClock)

    def run(*arguments: object):
        monkeypatch.setattr(sys, "argv", ["stallscope", *map(str, arguments)])
        with pytest.raises(SystemExit) as stopped:
            main()
        captured = capsys.readouterr()
        assert "Traceback" not in captured.err
        return stopped.value.code, captured.out, captured.err

    return run


@pytest.fixture
def files(tmp_path):
    return {
        "quiet": recording(tmp_path / "quiet.rec", make_steps(300)),
        "stalled": recording(tmp_path / "stalled.rec", make_steps(300, with_prefill(5, 1500))),
        "idle": recording(tmp_path / "idle.rec", [], num_running=0),
        "gone": recording(tmp_path / "gone.rec", make_steps(300), gone=True),
    }
