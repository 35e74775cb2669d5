"""What the documents must not say."""

import re
from pathlib import Path

from probes.catalog import METRICS
from tests.requirements import covers

ROOT = Path(__file__).parent.parent


def documents() -> list[Path]:
    return [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").glob("*.md"))]


@covers("S3.23")
def test_no_share_of_memory_is_told_as_a_rule():
    """How much to reserve is a parameter: "90-98 %" is what somebody else configured."""
    for document in documents():
        found = re.search(r"9\d\s*(-|to)\s*9\d\s*%", document.read_text(encoding="utf-8"))
        assert found is None, f"{document.name}: {found}"


def test_documents_name_metrics_that_exist():
    known = {metric.wire_name for metric in METRICS.values()}
    for document in documents():
        named = set(re.findall(r"`(stallscope_\w+)", document.read_text(encoding="utf-8")))
        assert named <= known, f"{document.name}: {named - known}"
