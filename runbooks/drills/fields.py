"""A drill and its outcome as fields of JSON."""

from typing import TYPE_CHECKING

from diagnose.report.json_report import to_json
from runbooks.drills.catalog import Drill
from runbooks.drills.service_levels import Levels, mean, quantile

if TYPE_CHECKING:  # brings the client of the load, which an extra has
    from runbooks.drills.run import Outcome


def drill_fields(drill: Drill) -> dict[str, object]:
    return {
        "name": drill.name,
        "summary": drill.summary,
        "deciding": drill.deciding,
        "expected_primary": list(drill.primary),
        "expected_supported": list(drill.required),
        "needs_own_engine": drill.needs_own_engine,
    }


def outcome_fields(outcome: "Outcome") -> dict[str, object]:
    check = outcome.account_check
    return {
        "drill": drill_fields(outcome.drill),
        "moved": outcome.moved,
        "named": outcome.named,
        "right": outcome.is_right,
        "clients": {"quiet": _levels(outcome.quiet.levels), "incident": _levels(outcome.incident.levels)},
        "account": None
        if check is None
        else {"part": check.part, "clients_seconds": check.clients, "said_seconds": check.said},
        "diagnosis": to_json(outcome.diagnosis),
    }


def _levels(levels: Levels) -> dict[str, object]:
    gaps, ttfts = levels.gaps, levels.ttfts
    return {
        "gaps": len(gaps),
        "itl_mean_seconds": mean(gaps) if gaps else None,
        "itl_p95_seconds": quantile(gaps, 0.95) if gaps else None,
        "requests": len(ttfts),
        "ttft_p95_seconds": quantile(ttfts, 0.95) if ttfts else None,
        "unanswered": levels.unanswered,
    }
