"""Mutates the conditions of the rules and runs their tests against each mutant: `python -m tests.mutation`.

mutmut makes the mutants, `tests.mutation_run` runs them. Those that change only a sentence, a unit or a sample count of the
evidence are left out: the score is about what a rule concludes. Works in a copy of the checkout and leaves the checkout as it
was. `--sample N` takes N of them at random, the same ones for a `--seed`; `--only FILE` those that a file names. `--work FOLDER`
keeps the mutants there: a second run makes none, and takes the tests as they are now.
"""

import argparse
import ast
import json
import os
import re
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import chdir
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory

from mutmut.mutation.file_mutation import mutate_file_contents

from tests.mutation_run import NAMES, OUTCOMES

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
    "rules",
    "test_hypotheses.py",
    "test_hypotheses_serving.py",
    "test_cache_thrashing.py",
    "test_traps.py",
    "test_window_traps.py",
    "test_decision.py",
    "test_device_degraded.py",
    "test_host_evidence.py",
    "test_causes_and_consequences.py",
    "test_log_only.py",
    "test_profiles.py",
    "test_rule_boundaries.py",
    "test_commands_for.py",
    "test_cases.py",
    "test_case_numbers.py",
    "test_case_situations.py",
    "test_disaggregation.py",
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
    return ast.dump(_WithoutWords().visit(node))


def _prepare(work: Path) -> list[str]:
    """Names of the mutants of conditions, in order. `work` holds the rules with the mutants in place, and the tests of now."""
    made = work / "mutants.json"
    for name in COPIED if not made.exists() else ("tests",):
        source = ROOT / name
        if source.is_dir():
            ignored = shutil.ignore_patterns("__pycache__", "accuracy", "*.rec")
            shutil.copytree(source, work / name, ignore=ignored, dirs_exist_ok=True)
        else:
            shutil.copy(source, work / name)
    if not made.exists():
        made.write_text(json.dumps(_mutate(work), indent=0), encoding="utf-8")
    names: list[str] = json.loads(made.read_text(encoding="utf-8"))
    return names


def _mutate(work: Path) -> list[str]:
    (work / "setup.cfg").write_text(f"[mutmut]\nsource_paths={RULES}/\n", encoding="utf-8")
    names: list[str] = []
    with chdir(work):
        for path in sorted(Path(RULES).glob("*.py")):
            mutated = mutate_file_contents(str(path), path.read_text(encoding="utf-8")).code
            path.write_text(mutated, encoding="utf-8")
            names += [f"{RULES.replace('/', '.')}.{path.stem}.{name}" for name in condition_mutants(mutated)]
    return sorted(names)


def _run(work: Path, chosen: list[str], names: Sequence[str]) -> dict[str, str]:
    """Mutant -> outcome. Stopped with Ctrl-C, of those that were run: the first ones of a sample are a sample."""
    todo, outcomes = work / "names", work / "outcomes"
    outcomes.unlink(missing_ok=True)
    todo.write_text("\n".join(chosen), encoding="utf-8")
    tests = [f"tests/diagnose/{name}" for name in names]
    command = [sys.executable, "-m", "pytest", "-q", "-p", "tests.mutation_run", "-p", "no:cacheprovider", *tests]
    environment = {**os.environ, "PYTHONPATH": ".", NAMES: str(todo), OUTCOMES: str(outcomes)}
    said = ""
    try:
        done = subprocess.run(command, cwd=work, env=environment, capture_output=True, text=True, check=False)
        said = done.stdout + done.stderr
    except KeyboardInterrupt:
        said = "interrupted"
    if not outcomes.exists():
        sys.exit(f"no mutant was run:\n{said[-3000:]}")
    lines = (line.split() for line in outcomes.read_text(encoding="utf-8").splitlines())
    return {name: outcome for outcome, name in lines}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sample", type=int, metavar="N", help="Run N mutants, not all.")
    parser.add_argument("--seed", type=int, default=1, help="Of the sample.")
    parser.add_argument("--only", type=Path, metavar="FILE", help="Run the mutants that FILE names, one a line.")
    parser.add_argument("--tests", nargs="+", metavar="NAME", default=TESTS, help="Of tests/diagnose: a lower bound.")
    parser.add_argument("--work", type=Path, metavar="FOLDER", help="Keep the mutants here for another run.")
    options = parser.parse_args()
    with TemporaryDirectory() as folder:
        work = options.work or Path(folder)
        work.mkdir(parents=True, exist_ok=True)
        every = _prepare(work)
        print(f"{len(every)} mutants of conditions", flush=True)
        chosen = (
            every if options.sample is None else Random(options.seed).sample(every, min(options.sample, len(every)))
        )
        if options.only is not None:
            wanted = set(options.only.read_text(encoding="utf-8").split())
            chosen = [name for name in every if name in wanted]
        report(_run(work, chosen, options.tests))


def report(outcomes: dict[str, str]) -> None:
    """A line per rule, and the mutants that no test noticed."""
    total: dict[str, Counter[str]] = {}
    for name, outcome in outcomes.items():
        total.setdefault(name.split(".")[-2], Counter())[outcome] += 1
    for rule, counts in sorted(total.items()):
        print(f"{rule:24} {counts['noticed']:4} of {counts.total():4} noticed")
    noticed = sum(outcome == "noticed" for outcome in outcomes.values())
    print(f"{'all':24} {noticed:4} of {len(outcomes):4} noticed ({noticed / len(outcomes):.1%})")
    for name, outcome in sorted(outcomes.items()):
        if outcome != "noticed":
            print(f"{outcome}: {name}")


if __name__ == "__main__":
    main()
