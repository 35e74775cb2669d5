"""Every claimed requirement has a test that says so, and no test claims one that does not exist."""

import ast
from collections import defaultdict
from pathlib import Path

from tests.requirements import CLAIMED_SECTIONS, PENDING, REQUIREMENTS, TRAPS

TESTS = Path(__file__).parent
SECTIONS_OF_3 = {"3a": range(1, 8), "3b": range(8, 11), "3c": range(11, 18), "3d": range(18, 23), "3e": range(23, 33)}


def section_of(requirement_id: str) -> str:
    section, row = requirement_id.removeprefix("S").split(".")
    if section != "3":
        return section
    return next(name for name, rows in SECTIONS_OF_3.items() if int(row) in rows)


def covered_ids() -> dict[str, list[str]]:
    """Ids in `@covers("S2.7", ...)` decorators, with what carries them. Reads the source: nothing is imported."""
    found = defaultdict(list)
    for path in sorted(TESTS.rglob("test_*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"), str(path))):
            if not isinstance(node, ast.FunctionDef | ast.ClassDef):
                continue
            for decorator in node.decorator_list:
                if isinstance(decorator, ast.Call) and getattr(decorator.func, "id", None) == "covers":
                    for argument in decorator.args:
                        assert isinstance(argument, ast.Constant), f"{path}: covers() takes literal ids only"
                        found[str(argument.value)].append(f"{path.relative_to(TESTS)}::{node.name}")
    return found


def test_every_claimed_requirement_has_a_test():
    covered = covered_ids()
    claimed = {requirement for requirement in REQUIREMENTS if section_of(requirement) in CLAIMED_SECTIONS}
    missing = sorted(claimed - covered.keys() - PENDING.keys())
    assert not missing, f"no test covers {missing}"


def test_only_known_requirements_are_covered():
    unknown = {name: tests for name, tests in covered_ids().items() if name not in REQUIREMENTS}
    assert not unknown, f"unknown requirements: {unknown}"


def test_pending_requirements_are_known_and_still_uncovered():
    assert PENDING.keys() <= REQUIREMENTS.keys()
    done = {name: tests for name, tests in covered_ids().items() if name in PENDING}
    assert not done, f"covered by now, so take them out of PENDING: {done}"


def test_every_claimed_section_is_listed():
    assert {section_of(requirement) for requirement in REQUIREMENTS} >= set(CLAIMED_SECTIONS)


def test_every_trap_is_kept_out_of_by_a_test():
    covered = covered_ids()
    open_traps = {name: [i for i in ids if i not in covered] for name, (_, ids) in TRAPS.items()}
    assert not {name: ids for name, ids in open_traps.items() if ids}
