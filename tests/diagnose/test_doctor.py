"""`stallscope doctor`: what is here, what is not, what does not work, and the command for each."""

import json
import subprocess
import sys
from importlib.metadata import PackageNotFoundError

import pytest

from diagnose import doctor
from diagnose.doctor import Check, State
from probes import extras
from probes.extras import PURPOSES, Extra
from probes.gpu import GpuReading, GpuSample
from tests.builders import Engine
from tests.diagnose.fake_target import serving
from tests.test_packaging import ROOT

REQUIRES = ["click>=8.1", "torch>=2.5; extra == 'engine'", "py-spy>=0.4 ; extra == 'host'", 'ruff; extra == "dev"']


@pytest.fixture
def installed(monkeypatch):
    """Installed as wanted: distributions -> versions, ours among them."""

    def use(**versions: str) -> None:
        def version(name: str) -> str:
            try:
                return versions[name.replace("-", "_")]
            except KeyError:
                raise PackageNotFoundError(name) from None

        monkeypatch.setattr(extras, "version", version)
        monkeypatch.setattr(extras, "requires", lambda _: REQUIRES)

    return use


@pytest.fixture
def quick(monkeypatch):
    """Without the two looks that take seconds."""
    monkeypatch.setattr(doctor, "engine_parts", list)
    monkeypatch.setattr("diagnose.commands.doctor.engine_parts", list)
    monkeypatch.setattr("diagnose.commands.doctor.machine", list)


def test_extras_are_those_of_the_distribution():
    import tomllib

    declared = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    assert PURPOSES.keys() == declared.keys() - {"bench", "dev", "docs"}


def test_an_extra_lacks_what_is_not_installed(installed):
    installed(stallscope="9.9", torch="2.13.0")
    found = {extra.name: extra for extra in extras.extras()}
    assert found["engine"] == Extra("engine", ("torch 2.13.0",), ())
    assert found["host"] == Extra("host", (), ("py-spy",))


def test_a_missing_extra_comes_with_the_command_that_brings_it(installed, quick, stallscope):
    installed(stallscope="9.9", torch="2.13.0")
    code, out, err = stallscope("doctor")
    assert (code, err) == (0, "")
    assert "9.9 in" in out
    assert "host        missing: stacks of a local server's threads: --pid; lacks py-spy" in out
    assert "$ pip install 'stallscope[host]'" in out
    assert "pip install 'stallscope[engine]'" not in out
    assert out.endswith("nothing is broken\n")


def test_code_that_was_never_installed_says_so(installed, quick, stallscope):
    installed()
    code, out, _ = stallscope("doctor")
    assert code == 0
    assert "not installed" in out
    assert "Optional parts" not in out


def test_a_target_is_recognised(quick, stallscope):
    with serving(Engine().page()) as target:
        code, out, _ = stallscope("doctor", target.url)
    assert code == 0
    assert "answers with metrics of stallscope" in out
    assert f"$ stallscope diagnose {target.url}" in out


def test_a_target_that_does_not_answer_is_broken(quick, stallscope):
    code, out, _ = stallscope("doctor", "http://127.0.0.1:1")
    assert code == 1
    assert "connection refused" in out
    assert out.endswith("broken: http://127.0.0.1:1\n")


def test_json_holds_every_check(quick, stallscope):
    code, out, err = stallscope("doctor", "http://127.0.0.1:1", "--json")
    assert (code, err) == (1, "")
    found = json.loads(out)
    assert found["schema"] == 1
    assert found["broken"] == ["http://127.0.0.1:1"]
    assert {tuple(check) for check in found["checks"]} == {("section", "subject", "state", "text", "command")}
    assert {check["state"] for check in found["checks"]} <= {state.value for state in State}


def test_a_person_at_a_terminal_sees_that_it_looks(quick, stallscope, monkeypatch):
    monkeypatch.setattr("diagnose.commands.progress.sys.stderr.isatty", lambda: True)
    assert stallscope("doctor")[2] == "looking at this machine and at what is named ...\n"


def test_what_is_no_url_is_a_usage_error(stallscope):
    code, out, err = stallscope("doctor", "localhost:8000")
    assert (code, out) == (2, "")
    assert "'localhost:8000' is no URL: write http://localhost:8000" in err


def test_files_and_variables_are_named_and_not_shown(quick, stallscope, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runbooks.toml").touch()
    monkeypatch.setenv("STALLSCOPE_PROMETHEUS_TOKEN", "hush")
    _, out, _ = stallscope("doctor")
    assert "stallscope runbook check --config runbooks.toml" in out
    assert "STALLSCOPE_PROMETHEUS_TOKEN" in out
    assert "hush" not in out


def test_the_engine_says_what_it_would_run_on(installed):
    installed(stallscope="9.9", torch="2.13.0")
    found = {check.subject: check for check in doctor.engine_parts()}
    assert found.keys() == {"device", "kernels", "weights"}
    assert found["device"].state is State.OK
    assert "torch" in found["device"].text


def test_an_engine_that_does_not_start_is_broken(installed, monkeypatch):
    installed(stallscope="9.9", torch="2.13.0")
    dead = subprocess.CompletedProcess([], 1, stdout="", stderr="Traceback\nImportError: libfoo.so is not there\n")
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: dead)
    assert doctor.engine_parts() == [
        Check("engine", "start", State.BROKEN, "it does not start: ImportError: libfoo.so is not there")
    ]


def test_without_the_extra_the_engine_is_not_asked(installed, monkeypatch):
    installed(stallscope="9.9")
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: pytest.fail("started"))
    assert doctor.engine_parts() == []


def test_the_machine_is_looked_at_for_real():
    found = {check.subject: check for check in doctor.machine()}
    assert found.keys() == {"gpu", "threads"}
    for check in found.values():
        assert check.state in (State.OK, State.MISSING)
        assert check.text


def test_a_gpu_is_named(monkeypatch):
    class Probe:
        reason = None

        def sample(self) -> GpuReading:
            return GpuReading((GpuSample(index=0, uuid="GPU-1", name="NVIDIA H200"),), None)

        def close(self) -> None:
            pass

    monkeypatch.setattr("probes.nvml.NvmlProbe", Probe)
    gpu = doctor.machine()[0]
    assert (gpu.state, gpu.text) == (State.OK, "NVIDIA H200")


def test_the_version_names_the_extras_that_are_here(installed, stallscope):
    installed(stallscope="9.9", torch="2.13.0")
    assert stallscope("--version")[1].startswith("stallscope 9.9, extras: engine")
    assert "host" not in stallscope("--version")[1].split()


def test_the_version_of_code_that_was_never_installed():
    done = subprocess.run(
        [sys.executable, "-S", "-c", "from probes.extras import own_version; print(own_version())"],
        capture_output=True, text=True, timeout=60, check=False, cwd=ROOT,
    )  # fmt: skip
    assert done.stdout.strip() == "None", done.stderr
