"""Alerts on symptoms, with recording rules: made from the names of the dialects, never typed.

Latency alerts burn an error budget over two windows (a short one so that they end soon, a long one so that a blip does not
wake anybody). There is none on reserved memory: `stallscope runbook show DeviceMemoryHigh` says why.
"""

import json
from dataclasses import dataclass

from diagnose.policy import DEFAULT_POLICY
from diagnose.units import seconds
from runbooks.alerts.metrics import ENGINES, EngineMetrics, Latency
from runbooks.errors import Refused

_INSTANCE = "(job, instance)"
_MIN_EVICTIONS_PER_SECOND = 1.0
_MADE = "# Made by `stallscope runbook alerts {engine}`; edit runbooks/alerts/ instead."
_NEEDS = "# The names are those of {engine} {since} and later: an alert on a metric that is not there never fires."


@dataclass(frozen=True, slots=True)
class Burn:
    """A burn rate over two windows. At rate 1 the budget is gone at the end of its 30 days."""

    severity: str
    rate: float
    short: str
    long: str


@dataclass(frozen=True, slots=True)
class Pace:
    """How patient the alerts are. Another pace than this one is for tests, which have no hours."""

    burns: tuple[Burn, ...] = (Burn("page", 14.4, "5m", "1h"), Burn("ticket", 6.0, "30m", "6h"))
    rate_window: str = "5m"
    hold: str = "2m"
    down_after: str = "1m"
    stuck_after: str = "2m"
    """Longer than any sane step (the method calls an engine hung from 30 s on)."""
    min_tokens_per_second: float = 1.0
    min_requests_per_second: float = 0.05
    """Below either a share is a handful of events, and one slow one breaks the objective."""


@dataclass(frozen=True, slots=True)
class Objectives:
    """`share` of the tokens within these limits. Seconds; None for the engine's default."""

    inter_token: float | None = None
    first_token: float | None = None
    share: float = 0.99


Rule = dict[str, object]
DEFAULT_PACE = Pace()
DEFAULT_OBJECTIVES = Objectives()


def rules(
    engine: str, objectives: Objectives = DEFAULT_OBJECTIVES, pace: Pace = DEFAULT_PACE
) -> list[tuple[str, list[Rule]]]:
    """Groups: name and rules. Raises Refused when a limit is no bucket bound of the engine."""
    names = ENGINES[engine]
    recorded: list[Rule] = []
    alerts: list[Rule] = []
    for word, alert, latency, limit in (
        ("inter_token", "InterTokenLatencySlow", names.inter_token, objectives.inter_token),
        ("first_token", "FirstTokenLatencySlow", names.first_token, objectives.first_token),
    ):
        bound = _bound(engine, latency, limit)
        recorded += _slow_shares(engine, word, latency, bound, pace)
        least = pace.min_tokens_per_second if word == "inter_token" else pace.min_requests_per_second
        alerts += _burns(engine, word, alert, bound, objectives.share, least, pace)
    alerts += _capacity(names, pace)
    alerts += _failures(names, pace)
    return [(f"{engine}-recorded", recorded), (f"{engine}-alerts", alerts)]


def alert_names() -> list[str]:
    return sorted(
        {str(rule["alert"]) for engine in ENGINES for _, group in rules(engine) for rule in group if "alert" in rule}
    )


def to_yaml(engine: str, groups: list[tuple[str, list[Rule]]]) -> str:
    """The rules file. JSON's strings are YAML's, so that nothing in an expression has to be escaped twice."""
    since = ENGINES[engine].since
    lines = [_MADE.format(engine=engine), *([_NEEDS.format(engine=engine, since=since)] if since else []), "groups:"]
    for name, group in groups:
        lines += [f"  - name: {name}", "    rules:"]
        for rule in group:
            for index, (key, value) in enumerate(rule.items()):
                lead = "      - " if index == 0 else "        "
                if isinstance(value, dict):
                    lines += [
                        f"{lead}{key}:",
                        *(f"          {name}: {json.dumps(text)}" for name, text in value.items()),
                    ]
                else:
                    lines.append(f"{lead}{key}: {json.dumps(value)}")
    return "\n".join(lines) + "\n"


def _bound(engine: str, latency: Latency, limit: float | None) -> float:
    wanted = latency.limit if limit is None else limit
    if wanted not in latency.bounds:
        known = ", ".join(seconds(bound) for bound in latency.bounds)
        raise Refused(f"{seconds(wanted)} is no bucket bound of {engine}'s {latency.metric}; choose one of {known}")
    return wanted


def _windows(pace: Pace) -> list[str]:
    return list(dict.fromkeys(window for burn in pace.burns for window in (burn.short, burn.long)))


def _slow_shares(engine: str, word: str, latency: Latency, bound: float, pace: Pace) -> list[Rule]:
    """Share of events beyond the limit, and events per second, per window."""
    found: list[Rule] = []
    # Clients of other languages write a bound of 2 seconds as 2 and not as 2.0; newer Prometheus rewrites it, too.
    le = f"{bound:g}(\\\\.0)?" if bound == int(bound) else f"{bound:g}".replace(".", "\\\\.")
    labels = {"engine": engine}
    for window in _windows(pace):
        count = f"sum by {_INSTANCE} (rate({latency.metric}_count[{window}]))"
        good = f'sum by {_INSTANCE} (rate({latency.metric}_bucket{{le=~"{le}"}}[{window}]))'
        found.append(
            {"record": f"llm:{word}_slow:ratio_rate{window}", "expr": f"1 - {good} / {count}", "labels": labels}
        )
        found.append({"record": f"llm:{word}:rate{window}", "expr": count, "labels": labels})
    return found


def _burns(engine: str, word: str, alert: str, bound: float, share: float, least: float, pace: Pace) -> list[Rule]:
    found = []
    for burn in pace.burns:
        limit = f"{burn.rate * (1 - share):.6g}"
        chosen = f'{{engine="{engine}"}}'
        expr = (
            f"llm:{word}_slow:ratio_rate{burn.short}{chosen} > {limit} "
            f"and llm:{word}_slow:ratio_rate{burn.long}{chosen} > {limit} "
            f"and llm:{word}:rate{burn.short}{chosen} > {least:g}"
        )
        what = "gaps between tokens" if word == "inter_token" else "first tokens"
        text = f"{{{{ $value | humanizePercentage }}}} of the {what} took longer than {seconds(bound)}"
        found.append(_alert(alert, expr, "0s", burn.severity, text, engine))
    return found


def _capacity(names: EngineMetrics, pace: Pace) -> list[Rule]:
    window = pace.rate_window
    per_request = (
        f"sum by {_INSTANCE} (rate({names.preemptions}[{window}])) / sum by {_INSTANCE} (rate({names.finished}[{window}]))"
        f" > {DEFAULT_POLICY.storm_preemptions_per_request:g}"
    )
    found = [
        _alert(
            "PreemptionStorm",
            per_request,
            pace.hold,
            "page",
            '{{ $value | printf "%.1f" }} preemptions per request',
            names.engine,
        ),
        _alert(
            "CapacityWaits",
            f"sum by {_INSTANCE} ({names.capacity_waits}) > 0",
            pace.hold,
            "page",
            "{{ $value }} requests wait for KV blocks",
            names.engine,
        ),
    ]
    if names.ghost_hits is not None and names.evictions is not None:
        evicted = f"sum by {_INSTANCE} (rate({names.evictions}[{window}]))"
        again = f"sum by {_INSTANCE} (rate({names.ghost_hits}[{window}]))"
        expr = (
            f"{again} / {evicted} > {DEFAULT_POLICY.thrash_ghost_share:g} and {evicted} > {_MIN_EVICTIONS_PER_SECOND:g}"
        )
        text = "{{ $value | humanizePercentage }} of the evicted blocks are asked for again"
        found.append(_alert("CacheThrashing", expr, pace.hold, "ticket", text, names.engine))
    return found


def _failures(names: EngineMetrics, pace: Pace) -> list[Rule]:
    stuck = (
        f"sum by {_INSTANCE} ({names.running}) > 0 "
        f"and sum by {_INSTANCE} (rate({names.tokens}[{pace.rate_window}])) == 0"
    )
    found = [
        _alert(
            "TargetDown",
            f'up{{job="{names.engine}"}} == 0',
            pace.down_after,
            "page",
            "it cannot be scraped",
            names.engine,
        ),
        _alert(
            "EngineNotAdvancing",
            stuck,
            pace.stuck_after,
            "page",
            "{{ $value }} requests run and no token comes",
            names.engine,
        ),
    ]
    if names.failures is not None:
        expr = f"sum by {_INSTANCE} (increase({names.failures}[{pace.rate_window}])) > 0"
        found.append(
            _alert("HardFailure", expr, "0s", "page", "{{ $value | humanize }} failures were counted", names.engine)
        )
    return found


def _alert(name: str, expr: str, hold: str, severity: str, text: str, engine: str) -> Rule:
    return {
        "alert": name,
        "expr": expr,
        "for": hold,
        "labels": {"severity": severity, "engine": engine},
        "annotations": {
            "summary": f"{engine} {{{{ $labels.instance }}}}: {text}",
            "runbook": f"stallscope runbook show {name}",
        },
    }
