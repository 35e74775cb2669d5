"""One rule, judged by itself: on signals of a few lines, and with figures of the latency account that are given.

What a rule says is compared as one line: its verdict, then each piece of evidence as the way it speaks (+ for, - against,
. context) and its number, then `?word` for each measurement it lacks, then `=share` of the excess.
"""

import re
from typing import Any

from diagnose.account import PARTS, analyse_steps
from diagnose.case import Case, Excess, Window
from diagnose.hypotheses.base import Hypothesis
from diagnose.observation import Event
from diagnose.policy import DEFAULT_POLICY
from diagnose.signals import Signals
from diagnose.slo import parse_reported, parse_slo
from diagnose.verdict import Argument, Judgement, Stance
from tests.builders import make_signals
from tests.diagnose.cases import TARGET

_SIGNS = {Stance.FOR: "+", Stance.AGAINST: "-", Stance.CONTEXT: "."}
_WORD = re.compile(r"\b(?!least\b)[A-Za-z-]{4,}")


class GivenCase(Case):
    """Has attributes of its own: a figure that is given stands before the method that would compute it."""


def make_case(
    signals: Signals | None = None,
    baseline: Signals | None = None,
    *,
    events: tuple[Event, ...] = (),
    slo: str = "",
    reported: str = "",
    **given: Any,
) -> Case:
    """`given` is what methods of Case return, by their names: `itl_moved=True, excess=excess(prefill=0.5)`."""
    case = GivenCase(
        target=TARGET,
        is_live=True,
        incident=_window(signals or make_signals()),
        baseline=None if baseline is None else _window(baseline),
        policy=DEFAULT_POLICY,
        events=events,
        objectives=parse_slo(slo) if slo else (),
        reported=parse_reported(reported) if reported else (),
    )
    for name, value in given.items():
        assert callable(getattr(Case, name)), name
        vars(case)[name] = lambda value=value: value
    return case


def _window(signals: Signals) -> Window:
    return Window(signals, analyse_steps(signals.steps, DEFAULT_POLICY))


def judged(rule: Hypothesis, *arguments: Any, **options: Any) -> Judgement:
    """As `make_case`."""
    return rule.judge(make_case(*arguments, **options), Argument())


def said(judgement: Judgement) -> str:
    words = [judgement.verdict.value]
    words += [_SIGNS[e.stance] + ("" if e.value is None else f"{e.value:.4g}") for e in judgement.evidence]
    words += ["?" + _WORD.findall(missing.measurement)[0] for missing in judgement.missing]
    if judgement.share_of_excess is not None:
        words.append(f"={judgement.share_of_excess:.4g}")
    return " ".join(words)


def says(rule: Hypothesis, *arguments: Any, **options: Any) -> str:
    """As `make_case`."""
    return said(judged(rule, *arguments, **options))


def excess(**parts: float) -> Excess:
    """Of a second in all; what is not named lies in `other`."""
    return Excess(1.0, dict.fromkeys(PARTS, 0.0) | {"other": 1 - sum(parts.values())} | parts, "fitted")


def pool(active: float, **gauges: Any) -> dict[str, Any]:
    """Gauges of a hundred blocks: what is not active is free."""
    return {"blocks_active": active, "blocks_reclaimable": 0, "blocks_free": 100 - active, **gauges}


def events(*kinds: str, detail: str = "told") -> tuple[Event, ...]:
    """A second apart."""
    return tuple(Event(at, kind, detail) for at, kind in enumerate(kinds))
