"""The Diagnosis as versioned JSON."""

from math import inf
from typing import Any

from diagnose.account import Account
from diagnose.case import Window
from diagnose.diagnosis import Diagnosis
from diagnose.policy import overridden
from diagnose.report.outline import headline
from diagnose.signals import Signals
from diagnose.verdict import Evidence

SCHEMA = 1


def to_json(diagnosis: Diagnosis) -> dict[str, Any]:
    case = diagnosis.case
    return {
        "schema": SCHEMA,
        "target": case.target,
        "exit_code": int(diagnosis.exit_code),
        "idle": diagnosis.idle,
        "headline": headline(diagnosis),
        "windows": {
            "incident": _window(case.incident),
            "baseline": None if case.baseline is None else _window(case.baseline),
        },
        "policy": {
            "overridden": {o.name: {"value": o.value, "default": o.default} for o in overridden(case.policy)},
        },
        "symptom": {
            "stall_share": case.stall_share(),
            "stalled_tokens_share": (
                case.analysis.stalled_tokens_share(case.policy.slow_gap_factor) if case.analysis.gaps else None
            ),
            "median_shift": case.median_shift(),
            "mean_shift": case.mean_shift(),
            "itl_moved": case.itl_moved(),
        },
        "primary": diagnosis.primary,
        "verdicts": {
            finding.name: {
                "verdict": finding.verdict.value,
                "share_of_excess": finding.judgement.share_of_excess,
                "evidence": [_evidence(item) for item in finding.judgement.evidence],
                "missing": [
                    {"measurement": m.measurement, "decides": m.decides, "command": m.command}
                    for m in finding.judgement.missing
                ],
                "error": finding.error,
            }
            for finding in diagnosis.findings
        },
        "account": _accounts(diagnosis),
        "protocol": [
            {"name": m.name, "done": m.done, "found": m.found, "command": m.command} for m in diagnosis.protocol
        ],
        "decision": {
            "kind": diagnosis.decision.kind.value,
            "summary": diagnosis.decision.summary,
            "steps": [{"text": step.text, "command": step.command} for step in diagnosis.decision.steps],
            "trade": diagnosis.decision.trade,
        },
        "warnings": list(diagnosis.warnings),
    }


def _evidence(item: Evidence) -> dict[str, Any]:
    return {
        "text": item.text,
        "speaks": item.stance.value,
        "value": item.value,
        "unit": item.unit,
        "compared_with": item.compared_with,
        "source": item.source,
        "window": item.window,
        "samples": item.samples,
        "coverage": item.coverage,
    }


def _accounts(diagnosis: Diagnosis) -> dict[str, Any] | None:
    if diagnosis.account_p50 is None or diagnosis.account_p99 is None:
        return None
    return {"p50": _account(diagnosis.account_p50), "p99": _account(diagnosis.account_p99)}


def _account(account: Account) -> dict[str, Any]:
    return {
        "total_seconds": account.total_seconds,
        "parts": account.parts,
        "basis": account.basis,
        "quantile_seconds": account.quantile_seconds,
        "gaps": account.num_gaps,
        "bounds": {name: [bounds.low, bounds.high] for name, bounds in account.bounds.items()} or None,
        "total_bounds": (
            None if account.total_bounds is None else [account.total_bounds.low, account.total_bounds.high]
        ),
        "inseparable": [
            {"parts": [pair.first, pair.second], "measurement": pair.measurement} for pair in account.inseparable
        ],
    }


def _window(window: Window) -> dict[str, Any]:
    signals = window.signals
    return {
        "dialect": signals.dialect,
        "sources": list(signals.sources),
        "length_seconds": signals.length_seconds,
        "scrapes": signals.num_scrapes,
        "steps": len(signals.steps),
        "steps_lost": signals.steps_lost,
        "restarted": signals.restarted,
        "latency": {
            name: _latency(window, name) for name in ("inter_token_latency", "time_to_first_token", "queue_time")
        },
        "signals": _signals(signals),
    }


def _latency(window: Window, metric: str) -> dict[str, Any] | None:
    quantiles: dict[str, Any] = {}
    samples = 0
    for label, q in (("p50", 0.5), ("p95", 0.95), ("p99", 0.99)):
        found = window.latency(metric, q)
        if found is None:
            return None
        bounds, samples, _ = found
        quantiles[label] = [bounds.low, None if bounds.high == inf else bounds.high]
    return {"samples": samples, **quantiles}


def _signals(signals: Signals) -> dict[str, Any]:
    values: dict[str, Any] = {name: {"delta": c.delta, "source": c.source} for name, c in signals.counters.items()}
    values |= {name: {"last": g.last, "peak": g.peak, "source": g.source} for name, g in signals.gauges.items()}
    values |= {name: {"count": h.count, "mean": h.mean, "source": h.source} for name, h in signals.histograms.items()}
    return values
