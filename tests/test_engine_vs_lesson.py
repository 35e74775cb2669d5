"""docs/engine-vs-lesson.md names code and tests that exist, and leaves out no shortcoming of the teaching code."""

import ast
import re
from pathlib import Path

from tests.requirements import covers

ROOT = Path(__file__).parent.parent
REFERENCE = re.compile(r"`([\w/]+\.py)::(\w+)`")


def rows() -> list[list[str]]:
    lines = (ROOT / "docs" / "engine-vs-lesson.md").read_text(encoding="utf-8").splitlines()
    table = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("|")]
    assert table[0] == ["Topic", "Teaching code", "Engine", "Where", "Proven by"]
    return table[2:]


@covers("S7.6")
def test_every_shortcoming_that_the_lesson_admits_has_its_row():
    assert {"Tensors", "Capacity", "Eviction", "Isolation"} <= {row[0] for row in rows()}


@covers("S7.6")
def test_every_row_points_to_code_and_to_a_test_that_exist():
    for topic, teaching, engine, where, proof in rows():
        assert teaching, topic
        assert engine, topic
        for cell in (where, proof):
            match = REFERENCE.fullmatch(cell)
            assert match, f"{topic}: {cell} is not `path.py::name`"
            path, name = match.groups()
            tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
            assert name in {getattr(node, "name", None) for node in tree.body}, f"{topic}: no {name} in {path}"
        assert Path(REFERENCE.findall(proof)[0][0]).name.startswith("test_"), topic
