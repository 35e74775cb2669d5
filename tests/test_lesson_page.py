"""docs/lesson.md: its numbers are what its code prints, and the drills and hypotheses it sends a reader to exist."""

import re
import subprocess
import sys
from pathlib import Path

from diagnose.hypotheses.registry import HYPOTHESES
from runbooks.drills.catalog import DRILLS

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs" / "lesson.md").read_text(encoding="utf-8")


def test_the_numbers_are_those_that_its_code_prints():
    (code,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    (printed,) = re.findall(r"```text\n(.*?)```", PAGE, re.DOTALL)
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, cwd=ROOT, check=True
    )
    assert done.stdout == printed
    for number in ("1,385,244", "3,281,872", "21.4748 ms", "26.8435 ms", "8.064 TFLOPs"):
        assert number in printed


def test_the_drills_and_hypotheses_it_names_exist():
    drills = set(re.findall(r"stallscope drill (\w+)", PAGE))
    assert drills
    assert drills <= set(DRILLS)
    explained = set(re.findall(r"stallscope explain (\w+)", PAGE))
    assert explained <= {hypothesis.name for hypothesis in HYPOTHESES}
