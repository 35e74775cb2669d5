"""From evidence to an act or to none, and from two looks to a verdict on the act. Pure: no clock, no network."""

from dataclasses import dataclass
from typing import Any

from diagnose.decision import DecisionKind
from runbooks.response.acts import Act
from runbooks.response.config import Runbook
from runbooks.response.look import Look
from runbooks.response.symptom import has_fallen

_CALLS_FOR_CHANGE = (DecisionKind.CONTAIN.value, DecisionKind.CHANGE.value)


def choose(runbook: Runbook, look: Look) -> Act | str:
    """The first act of the runbook that the evidence calls for, or why there is none.

    Only a hard failure or a confirmed cause allows a change of the target (the method's decision rule). Acts that only look
    are free as soon as their cause is in question.
    """
    if look.frozen:
        return (
            f"its metrics page did not change once in {look.frozen} scrapes: frozen metrics prove nothing and could not show "
            "that an act helped, so nothing is done; look at the target itself"
        )
    if look.kind == "unreadable":
        return f"nothing is done on an answer that cannot be judged: {look.summary}"
    if look.idle:
        return "the target is idle by its own counters while the alert fires: does the alert name another target?"
    if look.decision == DecisionKind.NONE.value:
        return look.summary
    may_change = look.decision in _CALLS_FOR_CHANGE
    for act in runbook.acts:
        if set(act.causes) & set(look.causes) and (may_change or not act.changes_target):
            return act
    next_step = f"; next: {look.steps[0]}" if look.steps else ""
    if may_change:
        causes = ", ".join(look.causes) or "no single cause"
        return f"{look.summary}; runbook {runbook.name} has no act for {causes}: a person must contain it{next_step}"
    return f"{look.decision}: {look.summary}{next_step}"


def is_inconclusive(look: Look) -> bool:
    """Nothing is known yet, and a later look may know more."""
    return bool(look.frozen) or look.idle or look.decision == DecisionKind.MEASURE.value


@dataclass(frozen=True, slots=True)
class Judged:
    helped: bool | None
    """None: nothing shows whether it did, which undoes it as well."""
    text: str


def compare(runbook: Runbook, before: Look, after: Look, intent: dict[str, Any], setting: str) -> Judged:
    """`setting` is the one that the act changed, where there is one that the target's page states too."""
    if after.kind != "diagnosed":
        return Judged(None, f"cannot be judged: {after.summary}")
    if after.frozen:
        return Judged(None, f"cannot be judged: the metrics page did not change once in {after.frozen} scrapes")
    stated = after.stated.get(setting)
    if stated is not None and stated != intent["after"]:
        return Judged(
            None, f"cannot be judged: the metrics page says {setting} {stated:.0f}, the admin surface {intent['after']}"
        )
    if after.idle:
        return Judged(None, "cannot be judged: the target is idle now")
    if before.reading is None:
        restored = not {"hard_failure", "engine_hung"} & set(after.causes)
        return Judged(restored, "it serves again" if restored else f"it is no better: {after.headline}")
    if after.reading is None:
        return Judged(None, f"cannot be judged: no sample of {before.reading.name} since")
    return Judged(*has_fallen(before.reading, after.reading, runbook.min_improvement))
