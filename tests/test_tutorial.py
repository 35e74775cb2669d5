"""What docs/tutorial.md shows of its recordings is what a reader gets who copies the command."""

import re
from pathlib import Path

from click.testing import CliRunner

from diagnose.commands.diagnose import diagnose_command

ROOT = Path(__file__).parent.parent


def test_the_report_that_the_tutorial_reads_is_the_one_that_the_command_prints(monkeypatch):
    monkeypatch.chdir(ROOT)
    page = (ROOT / "docs" / "tutorial.md").read_text(encoding="utf-8")
    _, section = page.split("## 2.", 1)
    section, _ = section.split("## 3.", 1)
    (arguments,) = re.findall(r"^    stallscope diagnose (.*)$", section, re.MULTILINE)
    shown = [line[4:] for line in section.splitlines() if line.startswith("    ") and "stallscope diagnose" not in line]
    result = CliRunner().invoke(diagnose_command, arguments.split())
    printed = [line.strip() for line in result.output.splitlines() if line.strip()]
    assert [line for line in shown if line.strip() not in printed] == []
    at = printed.index(shown[0].strip())
    upto = next(index for index, line in enumerate(shown) if line.startswith("  ITL p99"))
    block = [line.strip() for line in shown[: upto + 1]]
    assert printed[at : at + len(block)] == block, "nothing is left out of the part that is read from the top"
