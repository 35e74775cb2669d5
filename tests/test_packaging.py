"""The wheel, installed in a fresh environment, is whole and light."""

import shutil
import subprocess
import sys
import sysconfig
import venv
import zipfile
from importlib.metadata import distributions
from pathlib import Path

import pytest

from engine.native import build as kernels

ROOT = Path(__file__).resolve().parent.parent
ROOMS = ("engine", "probes", "diagnose", "dashboard", "runbooks")
MAX_DISTRIBUTIONS = 22
MAX_MEBIBYTES = 18
RECORDING = ROOT / "tests" / "data" / "interference.rec"


def run(*command: str | Path, cwd: Path) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [str(part) for part in command], cwd=cwd, capture_output=True, text=True, timeout=280, check=False
    )


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("wheel")
    built = run(sys.executable, "-m", "pip", "wheel", "--no-deps", "--quiet", "-w", target, ROOT, cwd=target)
    assert built.returncode == 0, built.stderr
    return next(target.glob("*.whl"))


@pytest.fixture(scope="module")
def environment(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A fresh venv with the base install; its working directory is far from the checkout."""
    home = tmp_path_factory.mktemp("fresh")
    venv.create(home / "venv", with_pip=True)
    installed = run(home / "venv/bin/pip", "install", "--quiet", wheel, cwd=home)
    assert installed.returncode == 0, installed.stderr
    return home


@pytest.mark.slow
def test_the_wheel_holds_every_file_of_the_rooms(wheel: Path):
    inside = set(zipfile.ZipFile(wheel).namelist())
    files = {
        path.relative_to(ROOT).as_posix()
        for room in ROOMS
        for path in (ROOT / room).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert files <= inside, sorted(files - inside)


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="no C++ compiler")
def test_the_wheel_brings_what_is_compiled_and_says_for_which_machine(wheel: Path):
    names = zipfile.ZipFile(wheel).namelist()
    assert {f"engine/native/{path.name}" for path in kernels.libraries()} <= set(names)
    assert not wheel.name.endswith("-any.whl")
    headers = Path(sysconfig.get_path("include"), "Python.h").exists()
    assert ("probes/_lock_core.abi3.so" in names) is headers
    assert f"-{'cp311-abi3' if headers else 'py3-none'}-" in wheel.name


@pytest.mark.slow
def test_a_machine_without_a_compiler_builds_a_wheel_of_pure_python(tmp_path: Path):
    source = tmp_path / "source"
    shutil.copytree(ROOT / "engine" / "native", source / "engine" / "native", ignore=shutil.ignore_patterns("*.so"))
    (source / "probes").mkdir()
    for name in ("build.py", "_lock_core.c"):
        shutil.copy(ROOT / "probes" / name, source / "probes")
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    for room in ROOMS:
        (source / room).mkdir(exist_ok=True)
        (source / room / "__init__.py").touch()
    nothing_but_python = {"PATH": str(Path(sys.executable).parent), "HOME": str(tmp_path)}
    built = subprocess.run(
        [sys.executable, "-m", "pip", "wheel", "--no-deps", "--quiet", "--no-build-isolation", "-w", tmp_path, source],
        capture_output=True, text=True, timeout=280, check=False, env=nothing_but_python,
    )  # fmt: skip
    assert built.returncode == 0, built.stderr
    (wheel,) = tmp_path.glob("*.whl")
    assert wheel.name.endswith("-py3-none-any.whl")
    assert not [name for name in zipfile.ZipFile(wheel).namelist() if name.endswith(".so")]


@pytest.mark.slow
def test_the_base_install_is_light(environment: Path):
    site = next((environment / "venv/lib").glob("python*/site-packages"))
    names = {d.metadata["Name"].lower() for d in distributions(path=[str(site)])} - {"pip", "setuptools"}
    assert not names & {"torch", "numpy", "scipy", "pandas"}
    assert len(names) <= MAX_DISTRIBUTIONS, sorted(names)
    skipped = ("pip", "setuptools", "pkg_resources", "_distutils_hack", "__pycache__")
    size = sum(
        path.stat().st_size
        for path in site.rglob("*")
        if path.is_file() and not any(part.startswith(skipped) for part in path.relative_to(site).parts)
    )
    assert size <= MAX_MEBIBYTES * 2**20, f"{size / 2**20:.1f} MiB"


@pytest.mark.slow
def test_the_base_install_diagnoses_a_file(environment: Path):
    command = environment / "venv/bin/stallscope"
    shown = run(command, "--help", cwd=environment)
    assert shown.returncode == 0
    assert "diagnose" in shown.stdout
    done = run(command, "diagnose", RECORDING, cwd=environment)
    assert done.returncode == 1, done.stderr
    assert "prefill_interference is supported" in done.stdout


@pytest.mark.slow
def test_serve_without_the_engine_extra_says_what_to_install(environment: Path):
    done = run(environment / "venv/bin/stallscope", "serve", cwd=environment)
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert "stallscope[engine]" in done.stderr
