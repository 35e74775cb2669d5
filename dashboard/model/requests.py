"""The engine's list of live requests, read strictly: it comes from elsewhere."""

import json
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RequestRow:
    """A live request as the engine lists it."""

    request_id: str
    state: str
    reason: str
    deferred_steps: int
    """Steps in a row that passed it over."""
    age_seconds: float
    prompt_tokens: int
    computed_tokens: int
    output_tokens: int
    blocks: int
    preemptions: int


@dataclass(frozen=True, slots=True)
class Requests:
    """One answer of the engine's request list, or why there is none."""

    unix: float
    rows: tuple[RequestRow, ...] = ()
    total: int = 0
    problem: str = ""


def parse_requests(unix: float, body: str) -> Requests:
    """What the page shows; a body that is not such a list is named as that."""
    try:
        answer = json.loads(body)
        rows = tuple(
            RequestRow(
                request_id=str(row["request_id"]),
                state=str(row["state"]),
                reason=str(row["reason"] or ""),
                deferred_steps=int(row["deferred_steps"]),
                age_seconds=float(row["age_seconds"]),
                prompt_tokens=int(row["prompt_tokens"]),
                computed_tokens=int(row["computed_tokens"]),
                output_tokens=int(row["output_tokens"]),
                blocks=int(row["blocks"]),
                preemptions=int(row["preemptions"]),
            )
            for row in answer["requests"]
        )
        return Requests(unix, rows, int(answer["total"]))
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        return Requests(unix, problem=f"the request list cannot be read: {type(error).__name__}: {error}")
