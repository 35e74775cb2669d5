"""The whole help tree reads as if one author had written it, and a shell completes it."""

import shutil
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from diagnose.cli import main, stallscope
from diagnose.commands.completion import SHELLS
from tests.commands import commands_in, parse, tree

COMMANDS = dict(tree())
LEAVES = {path: command for path, command in COMMANDS.items() if not isinstance(command, click.Group)}
TWO_MEANINGS = {
    "--device": "of the engine, or of the target",
    "--model": "what is served, or which drill models there are",
}
"""Options that are two things, by the field's own words -> which."""
SHORT = {"--output": "-o", "--quiet": "-q", "--verbose": "-v"}
INSTEAD = {
    "--out": "--output",
    "--file": "--output",
    "--conf": "--config",
    "--duration": "--window",
    "--seconds": "--window",
    "--silent": "--quiet",
    "--baselines": "--baseline",
}
"""Names that other tools have for what is called otherwise here."""


def title(path: tuple[str, ...]) -> str:
    return " ".join(("stallscope", *path))


def options(command: click.Command) -> list[click.Option]:
    return [option for option in command.params if isinstance(option, click.Option) and not option.hidden]


def examples(command: click.Command) -> str:
    _, found, rest = (command.epilog or "").partition("\b\nExamples:\n")
    assert found, "no examples at the end of the help"
    return rest.split("\n\n")[0]


@pytest.mark.parametrize("path", COMMANDS, ids=title)
def test_a_help_ends_with_examples_that_the_command_takes(path):
    found = commands_in("\n".join(f"  {line}" for line in examples(COMMANDS[path]).splitlines()))
    assert found
    assert not path or any(tuple(words[: len(path)]) == path for words in found)
    for words in found:
        parse(words)


@pytest.mark.parametrize("path", LEAVES, ids=title)
def test_a_help_says_what_the_exit_codes_mean(path):
    text = LEAVES[path].help or ""
    assert "Exit codes: " in " ".join(text.split()), text


@pytest.mark.parametrize("path", [path for path in COMMANDS if len(path) > 1], ids=title)
def test_a_line_of_a_list_of_commands_is_whole_on_80_columns(path):
    room = 80 - 6 - max(len(other[-1]) for other in COMMANDS if other[:-1] == path[:-1])
    assert not COMMANDS[path].get_short_help_str(room).endswith("...")


@pytest.mark.parametrize("path", COMMANDS, ids=title)
def test_every_option_says_what_it_is(path):
    assert [option.opts for option in options(COMMANDS[path]) if not option.help] == []


def test_one_name_is_one_thing_everywhere():
    kinds: dict[str, dict[tuple[type, bool], list[str]]] = defaultdict(lambda: defaultdict(list))
    for path, command in COMMANDS.items():
        for option in options(command):
            for name in option.opts:
                kinds[name][type(option.type), option.is_flag].append(title(path))
    differing = {name: dict(found) for name, found in kinds.items() if len(found) > 1}
    assert differing.keys() == TWO_MEANINGS.keys(), differing


def test_one_thing_has_one_name_everywhere():
    for path, command in COMMANDS.items():
        for option in options(command):
            for name in option.opts:
                assert name not in INSTEAD, f"{title(path)} {name}: it is {INSTEAD.get(name)} elsewhere"
                if name in SHORT:
                    assert SHORT[name] in option.opts, f"{title(path)} {name} lacks {SHORT[name]}"


def test_what_writes_a_report_takes_the_same_options():
    """A report has a form, a short word for JSON, and a file."""
    for path, command in LEAVES.items():
        names = {name for option in options(command) for name in option.opts}
        if "--format" in names:
            assert "--output" in names, title(path)
            assert "--json" in names, title(path)


@pytest.mark.parametrize("path", LEAVES, ids=title)
def test_a_misspelled_option_is_one_line_with_the_way_out(path):
    with pytest.raises(click.UsageError) as refused:
        parse([*path, "--jsonn"])
    assert refused.value.exit_code == 2


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        (["dig"], "diagnose"),
        (["explain", "prefill"], "prefill_interference"),
        (["sources", "vlm"], "vllm"),
        (["drill", "kv_exhuastion"], "kv_exhaustion"),
        (["runbook", "show", "kv_exhaust"], "kv_exhaustion"),
    ],
)
def test_a_misspelled_name_comes_with_the_nearest(words, meant, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["stallscope", *words])
    with pytest.raises(SystemExit) as stopped:
        main()
    assert stopped.value.code == 2
    assert f"(did you mean {meant}?)" in " ".join(capsys.readouterr().err.split())


def test_a_target_without_a_command_is_told_the_command(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["stallscope", "http://127.0.0.1:8000"])
    with pytest.raises(SystemExit) as stopped:
        main()
    assert stopped.value.code == 2
    assert "write: stallscope diagnose http://127.0.0.1:8000" in " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize("words", [["explain"], ["explain", "prefill_interference"], ["explain", "device_degraded"]])
def test_an_explanation_fits_the_terminal(words, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "70")
    monkeypatch.setattr(sys, "argv", ["stallscope", *words])
    with pytest.raises(SystemExit):
        main()
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 70
    assert len(words) == 1 or {line.partition(":")[0] for line in lines} >= {"Symptom", "Mechanism", "Measure next"}


def complete(shell: str, line: str, home: Path) -> list[str]:
    """What bash offers at the end of `line`, after the script was sourced as the help says."""
    (home / "stallscope").write_text(
        f'#!/bin/sh\nexec {sys.executable} -P -c "from diagnose.cli import main; main()" "$@"\n'
    )
    (home / "stallscope").chmod(0o755)
    root = Path(__file__).resolve().parent.parent
    script = f"""
        eval "$(stallscope completion {shell})"
        COMP_WORDS=({line}); [[ {line!r} == *' ' ]] && COMP_WORDS+=('')
        COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1))
        "$(complete -p stallscope | sed 's/.*-F \\([^ ]*\\).*/\\1/')" stallscope
        printf '%s\\n' "${{COMPREPLY[@]}}"
    """
    done = subprocess.run(
        [shell, "--norc", "-c", script], capture_output=True, text=True, timeout=120, check=False,
        env={"PATH": f"{home}:/usr/bin:/bin", "PYTHONPATH": str(root), "HOME": str(home)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


@pytest.mark.skipif(shutil.which("bash") is None, reason="no bash")
def test_bash_completes_commands_options_and_names(tmp_path):
    assert complete("bash", "stallscope dia", tmp_path) == ["diagnose"]
    assert {"--baseline", "--baseline-at"} <= set(complete("bash", "stallscope diagnose --base", tmp_path))
    assert complete("bash", "stallscope explain cache_t", tmp_path) == ["cache_thrashing"]
    assert complete("bash", "stallscope runbook show Preempt", tmp_path) == ["PreemptionStorm"]


@pytest.mark.parametrize("shell", SHELLS)
def test_a_script_is_printed_for_every_shell(shell):
    done = CliRunner().invoke(stallscope, ["completion", shell])
    assert done.exit_code == 0
    assert f"_STALLSCOPE_COMPLETE={shell}_complete" in done.output


def test_another_shell_is_refused_with_those_that_are_there():
    done = CliRunner().invoke(stallscope, ["completion", "tcsh"])
    assert done.exit_code == 2
    assert "'bash', 'zsh', 'fish'" in done.output
