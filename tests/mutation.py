"""Mutates the conditions of the rules and runs their tests against each mutant: `python -m tests.mutation`.

mutmut makes the mutants and runs them. Those that change only a sentence, a unit or a sample count of the evidence are left
out: the score is about what a rule concludes. Works in a copy of the checkout and leaves the checkout as it was. `--sample N`
takes N of them at random: all take hours.
"""

import argparse
import ast
import re
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory

ROOT = Path(__file__).resolve().parent.parent
RULES = "diagnose/hypotheses"
COPIED = (
    "diagnose",
    "probes",
    "engine",
    "runbooks",
    "dashboard",
    "tests",
    "docs",
    "README.md",
    "CONTRIBUTING.md",
    "CHANGELOG.md",
    "mkdocs.yml",
    "pyproject.toml",
)
TESTS = (
    "test_hypotheses.py",
    "test_hypotheses_serving.py",
    "test_cache_thrashing.py",
    "test_traps.py",
    "test_decision.py",
    "test_device_degraded.py",
    "test_host_evidence.py",
)
_MUTANT = re.compile(r"^(?P<function>.+)__mutmut_(?P<number>orig|\d+)$")


class _WithoutWords(ast.NodeTransformer):
    """A function without what a reader sees only: strings, and the fields of evidence besides the way in which it speaks."""

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        node.name = ""
        return self.generic_visit(node)

    def visit_Constant(self, node: ast.Constant) -> ast.AST:
        return ast.Constant("") if isinstance(node.value, str) else node

    def visit_JoinedStr(self, node: ast.JoinedStr) -> ast.AST:
        return ast.Constant("")

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        if isinstance(node.func, ast.Attribute) and node.func.attr in ("say", "lacks"):
            node.args, node.keywords = node.args[: int(node.func.attr == "say")], []
        return node


def condition_mutants(source: str) -> Iterator[str]:
    """Names of the functions of a file made by mutmut that differ from their original in more than words."""
    functions: dict[str, dict[str, ast.FunctionDef]] = {}
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef) and (match := _MUTANT.match(node.name)):
            functions.setdefault(match["function"], {})[node.name] = node
    for function, variants in functions.items():
        original = _meaning(variants.pop(f"{function}__mutmut_orig"))
        yield from (name for name, node in variants.items() if _meaning(node) != original)


def _meaning(node: ast.FunctionDef) -> str:
    return ast.dump(_WithoutWords().visit(ast.parse(ast.unparse(node)).body[0]))


def _configure(work: Path) -> None:
    selected = "".join(f"\n    tests/diagnose/{name}" for name in TESTS)
    copied = "".join(f"\n    {name}" for name in COPIED)
    (work / "setup.cfg").write_text(
        f"[mutmut]\nsource_paths={RULES}/\nalso_copy={copied}\ntests_dir=tests/diagnose\n"
        f"pytest_add_cli_args_test_selection={selected}\n",
        encoding="utf-8",
    )


def _mutmut(work: Path, *arguments: str) -> str:
    command = [sys.executable, "-m", "mutmut", *arguments]
    environment = {"PYTHONPATH": ".", "PATH": "/usr/bin:/bin", "HOME": str(work), "LANG": "C.UTF-8"}
    done = subprocess.run(command, cwd=work, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"mutmut {' '.join(arguments[:2])} failed:\n{(done.stdout + done.stderr)[-3000:]}")
    return done.stdout


def _sample(names: dict[str, list[str]], size: int | None) -> dict[str, list[str]]:
    """The same ones on every run."""
    every = sorted(name for found in names.values() for name in found)
    if size is None or size >= len(every):
        return names
    chosen = set(Random(1).sample(every, size))
    return {rule: kept for rule, found in names.items() if (kept := [name for name in found if name in chosen])}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sample", type=int, metavar="N", help="Run N mutants, not all.")
    sample = parser.parse_args().sample
    with TemporaryDirectory() as folder:
        work = Path(folder)
        for name in COPIED:
            source = ROOT / name
            if source.is_dir():
                shutil.copytree(source, work / name, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                shutil.copy(source, work / name)
        _configure(work)
        # Nothing has this name: mutants are made and the tests' coverage is taken, and none is run.
        _mutmut(work, "run", "--max-children", "1", f"{RULES.replace('/', '.')}.base.x_command_live__mutmut_1")
        names: dict[str, list[str]] = {}
        for path in sorted((work / "mutants" / RULES).glob("*.py")):
            found = [f"{RULES.replace('/', '.')}.{path.stem}.{name}" for name in condition_mutants(path.read_text())]
            if found:
                names[path.stem] = found
        print(f"{sum(map(len, names.values()))} mutants of conditions", flush=True)
        names = _sample(names, sample)
        _mutmut(work, "run", "--max-children", "2", *(name for found in names.values() for name in found))
        report(names, _mutmut(work, "results", "--all", "true"))


def report(names: dict[str, list[str]], results: str) -> None:
    """A line per rule, and the mutants that no test noticed."""
    states = dict(line.strip().rsplit(": ", 1) for line in results.splitlines() if ": " in line)
    total: Counter[str] = Counter()
    for rule, mutants in names.items():
        counts = Counter(states.get(name, "not run") for name in mutants)
        total += counts
        print(f"{rule:24} {counts['killed'] + counts['timeout']:4} of {len(mutants):4} noticed")
    print(f"{'all':24} {total['killed'] + total['timeout']:4} of {total.total():4} noticed")
    for mutants in names.values():
        for name in mutants:
            if states.get(name) not in ("killed", "timeout"):
                print(f"{states.get(name, 'not run')}: {name}")


if __name__ == "__main__":
    main()
