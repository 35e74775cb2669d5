"""Each condition of compute_saturation, from both sides."""

from typing import Any

import pytest

from diagnose.hypotheses.compute_saturation import ComputeSaturation
from diagnose.signals import Signals
from probes.records import StepKind
from tests.builders import make_signals
from tests.diagnose.rules.alone import judged, says
from tests.probes.records import make_record

RULE = ComputeSaturation()
CEILING = 200_000.0
"""2 FLOPs of each of a thousand parameters for each of a hundred tokens a second."""
INFO = {"num_parameters": "1000", "num_layers": "1", "num_query_heads": "1", "head_dim": "1", "weight_bytes": "1"}


def prefill(tokens: int | None, **fields: Any) -> Any:
    """A step of one second that computes prompts alone, and no attention."""
    defaults = {"num_decode_seqs": 0, "decode_context_tokens": 0, "forward_ns": 1_000_000_000, "sample_ns": 0}
    own = {"num_prefill_seqs": 1, "prefill_tokens": tokens, "forward_cpu_ns": None, "kind": StepKind.PREFILL}
    return make_record(**(defaults | own | fields))


def window(
    *steps: Any, queue: float | None = 0.5, ceiling: float | None = CEILING, info: dict[str, str] = INFO
) -> Signals:
    """0 in the queue: nobody began."""
    return make_signals(
        steps=steps,
        gauges={} if ceiling is None else {"flops_ceiling": ceiling},
        histograms={} if queue is None else {"queue_time": {queue: 10} if queue else {}},
        info=info,
    )


@pytest.mark.parametrize(
    ("signals", "expected"),
    [
        (window(*[prefill(70)] * 5), "supported +0.7 +0.5"),
        (window(*[prefill(69)] * 5), "undetermined -0.69 +0.5 ?FLOP"),
        (window(*[prefill(40)] * 5), "undetermined -0.4 +0.5 ?FLOP"),
        (window(*[prefill(39)] * 5), "refuted -0.39 +0.5"),
        (window(*[prefill(70)] * 5, queue=0.1), "supported +0.7 +0.1"),
        (window(*[prefill(70)] * 5, queue=0.0999), "refuted +0.7 -0.0999"),
        (window(*[prefill(40)] * 5, queue=0.0999), "refuted -0.4 -0.0999"),
        (window(*[prefill(70)] * 5, queue=0), "refuted +0.7 -"),
        (window(*[prefill(70)] * 5, queue=None), "refuted +0.7 -"),
        (window(*[prefill(70)] * 4), "undetermined ?steps"),
        (window(*[prefill(70)] * 4, prefill(0)), "undetermined ?steps"),
        (window(*[prefill(10)] * 2, *[prefill(70)] * 3), "supported +0.7 +0.5"),  # the median step
        (window(*[prefill(0, recomputed_tokens=70)] * 5), "supported +0.7 +0.5"),
        (window(*[prefill(70)] * 5, prefill(None)), "supported +0.7 +0.5"),
        (window(*[prefill(70)] * 4, prefill(None)), "supported +0.7 +0.5"),  # a prompt, of unknown length
        (window(*[prefill(None)] * 5), "undetermined ?device"),
        (window(*[prefill(0)] * 9), "refuted -"),
        (window(), "undetermined ?steps"),
        (window(*[prefill(70)] * 5, ceiling=None), "undetermined ?device"),
        (window(*[prefill(70)] * 5, info={}), "undetermined ?device"),
        (window(*[prefill(70, forward_cpu_ns=500_000_000)] * 5), "supported +1.4 +0.5"),
    ],
)
def test_the_units_and_who_waits_for_them(signals, expected):
    assert says(RULE, signals) == expected


@pytest.mark.parametrize(("steps", "command"), [((prefill(70),), "stallscope diagnose"), ((), "stallscope record")])
def test_more_steps_come_from_a_longer_look_and_any_steps_from_the_engine(steps, command):
    asked = judged(RULE, window(*steps)).missing[0]
    assert asked.measurement.endswith(f"(found {len(steps)})")
    assert ("--window" in asked.command) == bool(steps), command
