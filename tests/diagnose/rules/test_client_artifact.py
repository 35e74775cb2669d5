"""Each condition of client_artifact, from both sides."""

import pytest

from diagnose.hypotheses.client_artifact import ClientArtifact
from diagnose.signals import HistogramWindow, Signals
from probes.catalog import LATENCY_BOUNDS_SECONDS
from tests.builders import make_signals
from tests.diagnose.rules.alone import judged, says
from tests.probes.records import MS, make_record

RULE = ClientArtifact()
OPEN = "?engine"


def gaps(seconds: float = 0.045, count: int = 100) -> Signals:
    """Of the bucket (30, 50] ms, if nothing else is said."""
    return make_signals(histograms={"inter_token_latency": {seconds: count} if count else {}})


@pytest.mark.parametrize(
    ("signals", "reported", "expected"),
    [
        (gaps(), "", "undetermined ?what"),
        (gaps(), "itl_p99=100ms", "supported +2"),
        (gaps(), "itl_p99=99ms", f"undetermined .3.3 {OPEN}"),
        (gaps(), "itl_p99=60ms", f"undetermined .2 {OPEN}"),
        (gaps(), "itl_p99=59ms", "refuted -1.967"),
        (gaps(count=99), "itl_p99=100ms", f"undetermined +2 {OPEN}"),
        (gaps(count=99), "itl_p99=59ms", f"undetermined -1.967 {OPEN}"),
        (gaps(count=0), "itl_p99=100ms", f"undetermined {OPEN}"),
        (gaps(), "ttft_p99=100ms", f"undetermined {OPEN}"),
        (gaps(), "itl_p99=59ms,itl_p50=100ms", "supported -1.967 +2"),
        (gaps(), "itl_p99=59ms,itl_p50=99ms", f"undetermined -1.967 .3.3 {OPEN}"),
        (gaps(), "itl_p99=59ms,itl_p50=58ms", "refuted -1.967 -1.933"),
        (gaps(0.0001), "itl_p99=1ms", f"supported +{0.001 / LATENCY_BOUNDS_SECONDS[0]:g}"),
        (gaps(0.0001), "itl_p99=0.9ms", f"undetermined .inf {OPEN}"),  # the first bucket begins at nothing
        (gaps(1000), "itl_p99=100s", f"refuted -{100 / LATENCY_BOUNDS_SECONDS[-1]:.4g}"),  # and the last one never ends
        (gaps(1000), "itl_p99=1000s", f"undetermined .{1000 / LATENCY_BOUNDS_SECONDS[-1]:.4g} {OPEN}"),
    ],
)
def test_what_clients_report_against_the_engines_bucket(signals, reported, expected):
    assert says(RULE, signals, reported=reported) == expected


def test_a_bucket_that_ends_at_nothing_is_no_measure():
    signals = make_signals()
    signals.histograms["inter_token_latency"] = HistogramWindow((0.0, 1.0), (100.0, 0.0, 0.0), 0.0, "x_seconds")
    assert says(RULE, signals, reported="itl_p99=100ms") == f"undetermined .inf {OPEN}"


def test_step_records_give_the_engines_quantile_exactly():
    steps = tuple(make_record(i, num_regular_gaps=int(i > 0)) for i in range(101))
    signals = make_signals(steps=steps)
    assert steps[1].emit_ns - steps[0].emit_ns == 10 * MS
    assert says(RULE, signals, reported="itl_p99=20ms") == "supported +2"
    assert says(RULE, signals, reported="itl_p99=19ms") == "refuted -1.9"
    exact = judged(RULE, signals, reported="itl_p99=19ms").evidence[0].text
    assert exact.endswith("by the engine's clock it is 10 ms")
    assert judged(RULE, gaps(), reported="itl_p99=59ms").evidence[0].text.endswith("it is 30 ms to 50 ms")
