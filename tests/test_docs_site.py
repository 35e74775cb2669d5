"""The site is built without a warning, and every page has its place in it."""

import re
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


def pages() -> set[str]:
    return {path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / "docs").rglob("*.md")}


def build(folder: Path) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", "zensical", "build", "--strict"],
        cwd=folder, capture_output=True, text=True, timeout=240, check=False,
    )  # fmt: skip


def test_every_page_has_one_place_in_the_navigation():
    _, _, navigation = (ROOT / "mkdocs.yml").read_text(encoding="utf-8").partition("\nnav:\n")
    named = re.findall(r"([\w-]+\.md)$", navigation, re.MULTILINE)
    assert sorted(named) == sorted(pages())


@pytest.mark.skipif(find_spec("zensical") is None, reason="stallscope[docs] is not installed")
def test_the_site_is_built_and_a_link_to_nowhere_is_not(tmp_path):
    shutil.copy(ROOT / "mkdocs.yml", tmp_path)
    shutil.copytree(ROOT / "docs", tmp_path / "docs")
    done = build(tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    built = {path.name.removesuffix(".html") for path in (tmp_path / "build/site").glob("*.html")}
    assert {page.removesuffix(".md") for page in pages()} <= built
    with (tmp_path / "docs/index.md").open("a", encoding="utf-8") as page:
        page.write("\n[lost](nowhere.md)\n")
    assert build(tmp_path).returncode != 0
