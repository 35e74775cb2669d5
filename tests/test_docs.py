"""Documents that the code is the source of are what the code says now."""

import pytest

from diagnose.hypotheses.registry import HYPOTHESES
from diagnose.thresholds import thresholds
from probes.catalog import METRICS
from tests.docs import DOCS, PAGES
from tests.requirements import covers


@pytest.mark.parametrize("name", PAGES)
def test_rendered_documents_are_fresh(name):
    assert (DOCS / name).read_text(encoding="utf-8") == PAGES[name](), "stale: run `python -m tests.docs`"


def test_every_hypothesis_explains_itself_under_the_same_headings():
    page = PAGES["hypotheses.md"]()
    for heading in (
        "Symptom",
        "Mechanism",
        "Refuted when",
        "Supported when",
        "Proves nothing",
        "Measure next",
        "Fix and its trade",
    ):
        assert page.count(f"**{heading}.** ") == len(HYPOTHESES), heading


def test_every_threshold_has_a_reason_and_lies_in_its_own_range():
    for threshold in thresholds():
        assert threshold.reason.endswith("."), threshold.name
        assert threshold.low <= threshold.default <= threshold.high, threshold


def test_every_metric_is_in_the_reference_once():
    page = PAGES["metrics.md"]()
    for metric in METRICS.values():
        assert page.count(f"\n| `{metric.wire_name}` |") == 1, metric.name


@covers("S4.6")
def test_the_attention_of_a_suffix_is_called_self_attention():
    page = " ".join((DOCS / "kv-memory.md").read_text(encoding="utf-8").split())
    assert "Their attention is self-attention: each of them attends to the whole cached prefix" in page
    assert "It is not cross-attention" in page
    computed = 504 * 2496 + 504 * 505 // 2
    assert f"{computed:,} of {3000 * 3001 // 2:,}" in page
    assert f"{2496 * 2497 // 2:,}" in page
