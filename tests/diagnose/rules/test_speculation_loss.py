"""Each condition of speculation_loss, from both sides."""

import pytest

from diagnose.hypotheses.speculation_loss import SpeculationLoss
from diagnose.signals import Signals
from tests.builders import make_signals
from tests.diagnose.rules.alone import says

RULE = SpeculationLoss()


def drafted(
    drafts: float | None = 500,
    accepted: float | None = 200,
    length: tuple[float, ...] | None = None,
    absent: bool = False,
) -> Signals:
    named = {"spec_draft_tokens": drafts, "spec_accepted_tokens": accepted}
    return make_signals(
        counters={name: n for name, n in named.items() if n is not None},
        gauges={} if length is None else {"accept_length": length},
        features_absent=frozenset({"speculation"} if absent else ()),
    )


GOOD = drafted(1000, 800)


@pytest.mark.parametrize(
    ("now", "before", "moved", "expected"),
    [
        (drafted(), GOOD, True, "supported .0.4 +0.5"),
        (drafted(), GOOD, False, "refuted .0.4 +0.5"),
        (drafted(), GOOD, None, "undetermined .0.4 +0.5 ?inter-token"),
        (drafted(1000, 401), GOOD, True, "refuted .0.401 -0.5012"),
        (drafted(1000, 401), GOOD, None, "refuted .0.401 -0.5012"),
        (drafted(1000, 600), drafted(1000, 1000), True, "refuted -0.6"),
        (drafted(1000, 599), drafted(1000, 1000), True, "refuted .0.599 -0.599"),
        (drafted(1000, 2000), GOOD, True, "refuted -1"),  # counted apart
        (drafted(499), GOOD, True, "undetermined ?draft"),
        (drafted(accepted=None), GOOD, True, "undetermined ?draft"),
        (drafted(0), GOOD, True, "not_applicable .0"),
        (drafted(), drafted(1000, 0), True, "undetermined .0.4 ?same"),
        (drafted(), drafted(1000, None), True, "undetermined .0.4 ?same"),
        (drafted(), drafted(0, 0), True, "undetermined .0.4 ?same"),
        (drafted(), drafted(1000, 1), True, "refuted .0.4 -400"),
        (drafted(), None, True, "undetermined .0.4 ?same"),
        (drafted(None, None), GOOD, True, "undetermined ?draft"),
        (drafted(None, None, (2.0, 3.0)), GOOD, True, "undetermined .2.5 ?same"),
        (drafted(length=(2.0, 3.0)), GOOD, True, "supported .0.4 +0.5"),
        (drafted(absent=True), GOOD, True, "not_applicable ."),
    ],
)
def test_acceptance_against_the_baselines(now, before, moved, expected):
    assert says(RULE, now, before, itl_moved=moved) == expected
