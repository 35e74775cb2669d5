"""A Grafana dashboard of our engine, made from the metric table. Only the classic JSON fields that every version reads."""

import json
from dataclasses import dataclass

from probes.catalog import METRICS, MetricKind
from runbooks.alerts.metrics import ours

_SOURCE = {"type": "prometheus", "uid": "${datasource}"}
_CHOSEN = 'job=~"$job",instance=~"$instance"'
_WIDTH, _HEIGHT, _PER_ROW = 8, 8, 3


@dataclass(frozen=True, slots=True)
class Query:
    expr: str
    legend: str


@dataclass(frozen=True, slots=True)
class Panel:
    title: str
    unit: str
    """Grafana's name of it."""
    queries: tuple[Query, ...]
    description: str = ""


def _rate(name: str, by: str = "", **labels: str) -> str:
    assert METRICS[name].kind is MetricKind.COUNTER, name
    return f"sum by ({by or 'instance'}) (rate({_select(ours(name, **labels))}[$__rate_interval]))"


def _gauge(name: str, by: str = "", **labels: str) -> str:
    assert METRICS[name].kind is MetricKind.GAUGE, name
    return f"sum by ({by or 'instance'}) ({_select(ours(name, **labels))})"


def _select(selector: str) -> str:
    """The selector with the dashboard's choice of targets."""
    name, _, rest = selector.partition("{")
    return f"{name}{{{_CHOSEN}{',' + rest if rest else '}'}"


def _quantiles(name: str) -> tuple[Query, ...]:
    assert METRICS[name].kind is MetricKind.HISTOGRAM, name
    rate = f"sum by (le) (rate({METRICS[name].wire_name}_bucket{{{_CHOSEN}}}[$__rate_interval]))"
    return tuple(Query(f"histogram_quantile({q}, {rate})", f"p{q * 100:g}") for q in (0.5, 0.95, 0.99))


PANELS: tuple[Panel, ...] = (
    Panel("Gap between tokens", "s", _quantiles("inter_token_latency_seconds"), "As fine as its buckets."),
    Panel("Time to first token", "s", _quantiles("time_to_first_token_seconds")),
    Panel("Time in the queue", "s", _quantiles("queue_time_seconds")),
    Panel(
        "Stalls by cause",
        "percentunit",
        (Query(_rate("stall_seconds_total", "cause", extent="some"), "{{cause}}"),),
        "Share of the time in which at least one stream waited beyond its decode floor because of it.",
    ),
    Panel("Tokens", "short", (Query(_rate("tokens_total", "phase"), "{{phase}}"),), "Per second, by phase."),
    Panel("Steps", "s", _quantiles("step_duration_seconds")),
    Panel(
        "KV blocks",
        "short",
        (Query(_gauge("kv_blocks", "state"), "{{state}}"),),
        "Disjoint: reclaimable blocks hold content that may be evicted at no cost but a later miss. Full is active near total.",
    ),
    Panel(
        "Evictions and ghost hits",
        "short",
        (
            Query(_rate("kv_evictions_total"), "evictions {{instance}}"),
            Query(_rate("kv_ghost_hits_total"), "ghosts {{instance}}"),
        ),
        "A ghost hit asks for what was evicted a moment ago.",
    ),
    Panel(
        "Prefix tokens found",
        "percentunit",
        (Query(f"{_rate('prefix_hit_tokens_total')} / {_rate('prefix_query_tokens_total')}", "{{instance}}"),),
    ),
    Panel("Requests", "short", (Query(_gauge("requests", "state"), "{{state}}"),)),
    Panel("Waiting for", "short", (Query(_gauge("requests_waiting", "reason"), "{{reason}}"),)),
    Panel(
        "Preemptions and failures",
        "short",
        (
            Query(_rate("preemptions_total"), "preemptions {{instance}}"),
            Query(_rate("failures_total", "kind"), "{{kind}}"),
        ),
    ),
    Panel("Wait for the scheduler lock", "s", _quantiles("scheduler_lock_wait_seconds")),
    Panel("Device idle with work waiting", "s", _quantiles("host_gap_seconds")),
    Panel(
        "Limits in force",
        "short",
        (
            Query(_gauge("max_batched_tokens"), "token budget {{instance}}"),
            Query(_gauge("max_sequences"), "sequences {{instance}}"),
        ),
        "A runbook may lower them for a while.",
    ),
)


def dashboard() -> str:
    """JSON, as Grafana imports it."""
    return json.dumps(
        {
            "uid": "stallscope-engine",
            "title": "stallscope: why are the tokens late",
            "tags": ["llm", "stallscope"],
            "schemaVersion": 39,
            "version": 1,
            "refresh": "10s",
            "time": {"from": "now-30m", "to": "now"},
            "templating": {"list": [_datasource(), _variable("job", ""), _variable("instance", 'job=~"$job"')]},
            "panels": [_panel(number, panel) for number, panel in enumerate(PANELS)],
        },
        indent=1,
    ) + "\n"  # fmt: skip


def _datasource() -> dict[str, object]:
    return {"name": "datasource", "type": "datasource", "query": "prometheus"}


def _variable(label: str, chosen: str) -> dict[str, object]:
    query = f"label_values({ours('max_batched_tokens')}{{{chosen}}}, {label})"
    return {
        "name": label,
        "type": "query",
        "datasource": _SOURCE,
        "query": query,
        "refresh": 2,
        "multi": True,
        "includeAll": True,
        "current": {"text": "All", "value": "$__all"},
    }


def _panel(number: int, panel: Panel) -> dict[str, object]:
    row, column = divmod(number, _PER_ROW)
    return {
        "id": number + 1,
        "type": "timeseries",
        "title": panel.title,
        "description": panel.description,
        "datasource": _SOURCE,
        "gridPos": {"x": column * _WIDTH, "y": row * _HEIGHT, "w": _WIDTH, "h": _HEIGHT},
        "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0}, "overrides": []},
        "targets": [
            {"refId": chr(ord("A") + index), "datasource": _SOURCE, "expr": query.expr, "legendFormat": query.legend}
            for index, query in enumerate(panel.queries)
        ],
    }
