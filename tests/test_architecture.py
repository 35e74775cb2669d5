"""The house's layering holds, and no other distribution has moved into one of its rooms."""

import importlib.util
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
ROOMS = ("engine", "probes", "diagnose", "dashboard", "runbooks")


def test_import_contracts_hold():
    """Runs the contracts of pyproject.toml: who may import whom, and what stays off the hot path."""
    command = [sys.executable, "-c", "from importlinter.cli import lint_imports_command; lint_imports_command()"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_all_rooms_come_from_one_place():
    """PyPI has distributions with some of these names: one of them installed beside us would shadow a room."""
    origins = {}
    for room in ROOMS:
        spec = importlib.util.find_spec(room)
        assert spec is not None and spec.origin is not None
        origins[room] = Path(spec.origin).parent.parent
    assert set(origins.values()) == {ROOT}, origins


def test_help_of_every_command_stays_light():
    """`--help` imports neither torch nor textual nor numpy, so that it answers at once and works in a base install."""
    program = """
import sys
from click.testing import CliRunner
from diagnose.cli import COMMANDS, stallscope
for name in ["", *COMMANDS]:
    result = CliRunner().invoke(stallscope, [name, "--help"] if name else ["--help"])
    assert result.exit_code == 0, (name, result.output)
heavy = {"torch", "textual", "numpy", "tokenizers", "prometheus_client", "starlette"} & set(sys.modules)
assert not heavy, heavy
"""
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
