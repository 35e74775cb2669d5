"""The pages that a person reads at night: one per hypothesis and one per alert."""

import re
import shlex
from dataclasses import dataclass
from importlib.resources import files

from diagnose.nearest import nearest
from runbooks.errors import Refused

HEADINGS = ("Meaning", "Impact", "Diagnosis", "Mitigation")
MAX_LINES = 60
_COMMAND = re.compile(r"^ {4}(stallscope .+)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class RunbookPage:
    name: str
    text: str

    @property
    def summary(self) -> str:
        """The first sentence of Meaning."""
        body = self.text.partition("## Meaning")[2].strip()
        return " ".join(body.split("\n\n")[0].split()).split(". ")[0].rstrip(".") + "."

    def commands(self) -> list[list[str]]:
        """Words of each `stallscope ...` line that can be copied, without the first word and what a comment adds."""
        return [shlex.split(line, comments=True)[1:] for line in _COMMAND.findall(self.text)]


def page_names() -> list[str]:
    folder = files("runbooks").joinpath("pages")
    return sorted(entry.name.removesuffix(".md") for entry in folder.iterdir() if entry.name.endswith(".md"))


def read_page(name: str) -> RunbookPage:
    """Raises Refused with the nearest name when there is no such page."""
    names = page_names()
    if name not in names:
        raise Refused(f"there is no page {name!r}{nearest(name, names)}; `stallscope runbook list` names them")
    return RunbookPage(name, files("runbooks").joinpath("pages", f"{name}.md").read_text(encoding="utf-8"))
