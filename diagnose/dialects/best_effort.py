"""A page of an unknown engine, read by names that say what they are. Labelled so wherever it is shown."""

from collections.abc import Mapping

from diagnose.dialects.base import Alias, Dialect, Table
from diagnose.dialects.view import PageView

_GUESS = "guessed from its name: nobody has checked what this engine counts here"

_ENDINGS: Mapping[str, Mapping[str, tuple[str, ...]]] = {
    "gauge": {
        "running": (
            "num_requests_running",
            "num_running_reqs",
            "requests_running",
            "running_requests",
            "requests_processing",
        ),
        "waiting": (
            "num_requests_waiting",
            "num_queue_reqs",
            "requests_waiting",
            "waiting_requests",
            "requests_deferred",
        ),
    },
    "counter": {
        "tokens_prefill": ("prompt_tokens", "prefill_tokens"),
        "tokens_decode": ("generation_tokens", "decode_tokens", "output_tokens"),
        "preemptions": ("num_preemptions", "preemptions"),
    },
    "histogram": {
        "inter_token_latency": ("inter_token_latency_seconds",),
        "time_to_first_token": ("time_to_first_token_seconds",),
        "e2e_latency": ("e2e_request_latency_seconds",),
        "queue_time": ("request_queue_time_seconds", "queue_time_seconds"),
    },
}
_NEEDED = 3
"""Names that must be recognised before a page is taken for an engine's: one or two of these words occur elsewhere."""


def best_effort(view: PageView) -> Dialect | None:
    """None when too little of the page reads like an engine's."""
    tables = {kind: _table(view, kind, endings) for kind, endings in _ENDINGS.items()}
    if sum(map(len, tables.values())) < _NEEDED:
        return None
    return Dialect(
        name="unknown engine, best effort",
        prefixes=(),
        counters=tables["counter"],
        gauges=tables["gauge"],
        histograms=tables["histogram"],
        cannot=dict.fromkeys(("steps", "blocks", "host", "evictions", "limits"), "not known for this engine"),
    )


def _table(view: PageView, kind: str, endings: Mapping[str, tuple[str, ...]]) -> Table:
    found: dict[str, tuple[Alias, ...]] = {}
    for signal, names in endings.items():
        metrics = [
            name for name in map(_base, view.names) if any(name == end or name.endswith(f"_{end}") for end in names)
        ]
        if metrics:
            # What an unknown engine books late is not known either, so that no growth must prove nothing.
            found[signal] = (Alias(metrics[0], coverage=_GUESS, late=kind == "counter"),)
    return found


def _base(name: str) -> str:
    for suffix in ("_total", "_bucket"):
        name = name.removesuffix(suffix)
    return name
