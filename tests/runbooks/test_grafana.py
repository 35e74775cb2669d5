"""The dashboard: fresh, well-formed, and every query one that Prometheus understands and our engine can answer."""

import json
import re
from itertools import combinations
from pathlib import Path

import pytest

from probes.catalog import METRICS, MetricKind
from runbooks.alerts.grafana import PANELS, dashboard

FILE = Path(__file__).parent.parent.parent / "runbooks" / "alerts" / "stallscope.dashboard.json"


def filled_in(expr: str) -> str:
    """As Grafana would send it."""
    return expr.replace("$__rate_interval", "1m").replace("$job", ".*").replace("$instance", ".*")


def queries() -> list[str]:
    return [filled_in(query.expr) for panel in PANELS for query in panel.queries]


def test_the_shipped_file_is_what_the_code_makes_now():
    assert FILE.read_text() == dashboard(), (
        "stale: stallscope runbook dashboard > runbooks/alerts/stallscope.dashboard.json"
    )


@pytest.mark.parametrize("expr", queries())
def test_prometheus_understands_every_query(expr):
    promql = pytest.importorskip("promql_parser")
    promql.parse(expr)


def test_queries_read_metrics_that_exist_as_their_kind():
    series = {
        metric.wire_name + (suffix if metric.kind is MetricKind.HISTOGRAM else "")
        for metric in METRICS.values()
        for suffix in ("_bucket", "_sum", "_count")
    }
    for expr in queries():
        named = set(re.findall(r"\bstallscope_\w+", expr))
        assert named and named <= series, expr


def test_panels_do_not_overlap_and_have_names_of_their_own():
    found = json.loads(dashboard())
    panels = found["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels) == len({panel["title"] for panel in panels})
    for first, second in combinations([panel["gridPos"] for panel in panels], 2):
        apart_x = first["x"] + first["w"] <= second["x"] or second["x"] + second["w"] <= first["x"]
        apart_y = first["y"] + first["h"] <= second["y"] or second["y"] + second["h"] <= first["y"]
        assert apart_x or apart_y, (first, second)
    assert all(panel["gridPos"]["x"] + panel["gridPos"]["w"] <= 24 for panel in panels)
    for panel in panels:
        assert panel["datasource"]["uid"] == "${datasource}"
