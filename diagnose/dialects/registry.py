"""The dialects this version speaks, and how one is recognised."""

from diagnose.dialects.base import Dialect
from diagnose.dialects.stallscope import STALLSCOPE
from diagnose.errors import TargetError
from diagnose.exposition import Exposition

DIALECTS: tuple[Dialect, ...] = (STALLSCOPE,)


def recognise(target: str, page: Exposition) -> Dialect:
    """Raises TargetError, naming what was found instead."""
    for dialect in DIALECTS:
        if dialect.speaks(page):
            return dialect
    found = sorted({name.split("_")[0].split(":")[0] for name in page.samples})
    known = ", ".join(dialect.name for dialect in DIALECTS)
    raise TargetError(
        f"{target}: a metrics page of no engine this version knows (it reads {known}); "
        f"its metrics begin with {', '.join(found[:6]) or 'nothing: the page is empty'}"
    )
