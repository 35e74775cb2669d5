"""`stallscope dashboard` as a program."""

import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
from click.testing import CliRunner

from dashboard import web
from dashboard.command import THEMES, dashboard_command, default_interval, web_command
from dashboard.model.view import Page
from dashboard.theme import ROLES
from diagnose.errors import SourceError
from tests.builders import make_steps, with_prefill
from tests.dashboard.views import DATA
from tests.diagnose.fake_target import FakeEngine

RECORDING = str(DATA / "interference.rec")


def stallscope(*arguments: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", "diagnose.cli", "dashboard", *arguments],
        capture_output=True, text=True, timeout=100, check=False, stdin=subprocess.DEVNULL, env=os.environ | {"TZ": "UTC"},
    )  # fmt: skip


def test_one_frame_for_a_pipe():
    done = stallscope(RECORDING, "--once")
    assert done.returncode == 1, "as `diagnose` says it: a cause is supported"
    lines = done.stdout.splitlines()
    assert len(lines) == 24
    assert max(map(len, lines)) <= 80
    assert "prefill_interference is supported" in done.stdout
    assert "\x1b" not in done.stdout


def test_one_frame_of_a_live_target():
    with FakeEngine(make_steps(4000, with_prefill(10, 256)), per_scrape=20).serving() as target:
        done = stallscope(target.url, "--once", "--interval", "200ms", "--window", "8s", "--size", "120x40")
    assert f"● live  {target.url}" in done.stdout
    assert len(done.stdout.splitlines()) == 40
    assert done.returncode in (0, 1, 3)


def test_one_frame_of_a_target_that_is_not_there():
    done = stallscope("http://127.0.0.1:9", "--once", "--window", "5s")
    assert done.returncode == 2
    assert "cannot be reached" in done.stdout
    assert "connection refused" in done.stdout


def test_without_a_terminal_it_says_what_to_use():
    done = stallscope(RECORDING)
    assert done.returncode == 2
    assert done.stderr == "stallscope: the dashboard needs a terminal; in a pipe use --once\n"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["nowhere.rec"], "neither a URL nor a file"),
        (["127.0.0.1:8000"], "a live target is written http://127.0.0.1:8000"),
        (["http://"], "is not a target"),
        (["http://h:x"], "is not a target"),
        ([RECORDING, RECORDING], "named twice"),
        ([RECORDING, "--baseline", "nowhere.rec"], "is no file"),
        ([RECORDING, "--record", "x.rec"], "one live target"),
        (["http://h:1", "--record", "x.rec", "--readonly"], "--readonly forbids"),
        (["http://h:1", "--record", "/nowhere/x.rec"], "cannot be written"),
        ([RECORDING, "--policy", "nowhere.toml"], "nowhere.toml"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(arguments: list[str], words: str):
    done = stallscope(*arguments)
    assert done.returncode == 2
    assert words in done.stderr
    assert done.stderr.count("\n") == 1
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("size", ["80", "80x", "10x10", "9999x24"])
def test_sizes_are_checked(size: str):
    done = CliRunner().invoke(dashboard_command, [RECORDING, "--once", "--size", size])
    assert done.exit_code == 2
    assert "is not a size" in done.output


def test_a_browser_without_the_extra_and_on_a_port_that_is_taken(monkeypatch):
    """The command is not run for that: Textual's server would."""
    monkeypatch.setitem(sys.modules, "textual_serve.server", None)
    with pytest.raises(SourceError, match=r"textual-serve, which --web needs, .*stallscope\[web\]"):
        web.serve("stallscope", 0)

    class Taken:
        def __init__(self, *_: object, **__: object) -> None:
            raise OSError(98, "Address already in use")

    stand_in = ModuleType("textual_serve.server")
    vars(stand_in)["Server"] = Taken
    monkeypatch.setitem(sys.modules, "textual_serve", ModuleType("textual_serve"))
    monkeypatch.setitem(sys.modules, "textual_serve.server", stand_in)
    with pytest.raises(SourceError, match=r"127\.0\.0\.1:8750: cannot be served: Address already in use"):
        web.serve("stallscope", 8750)


def test_help_imports_neither_textual_nor_torch():
    code = (
        "import sys; from click.testing import CliRunner; from diagnose.cli import stallscope;"
        "print(CliRunner().invoke(stallscope, ['dashboard', '--help']).output);"
        "print([name for name in ('textual', 'torch', 'urllib3') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert "recordings" in done.stdout
    assert done.stdout.rstrip().endswith("[]")


def test_the_options_name_the_pages_and_themes_there_are():
    """They are written out, so that --help need not load them."""
    options = {option.name: option for option in dashboard_command.params}
    assert list(options["page"].type.choices) == [page.value for page in Page]  # type: ignore[attr-defined]
    assert list(THEMES) == list(ROLES)


@pytest.mark.parametrize(("targets", "seconds"), [(1, 1.0), (20, 1.0), (100, 5.0)])
def test_many_targets_are_asked_less_often(targets: int, seconds: float):
    assert default_interval(targets) == seconds


def test_the_browser_gets_the_same_command_without_web():
    command = web_command(["dashboard", "a b.rec", "--web", "--port", "9", "--port=10", "--readonly"])
    assert command.startswith(sys.executable)
    assert command.endswith("dashboard 'a b.rec' --readonly")


def test_web_without_its_extra_says_what_to_install(monkeypatch: pytest.MonkeyPatch):
    from dashboard.web import serve
    from diagnose.errors import SourceError

    monkeypatch.setitem(sys.modules, "textual_serve.server", None)
    with pytest.raises(SourceError, match=r"stallscope\[web\]"):
        serve("x", 1)


def test_web_serves_on_loopback_only(tmp_path: Path):
    server = pytest.importorskip("textual_serve.server")
    seen = {}

    class Fake:
        def __init__(self, command: str, **options: object) -> None:
            seen.update(options)

        def serve(self) -> None:
            raise OSError(98, "Address already in use")

    from dashboard.web import serve
    from diagnose.errors import SourceError

    original, server.Server = server.Server, Fake
    try:
        with pytest.raises(SourceError, match="Address already in use"):
            serve("x", 8750)
    finally:
        server.Server = original
    assert seen["host"] == "127.0.0.1"
