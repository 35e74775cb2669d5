"""What is done next with an incident: a pure function of its rows in the journal and of the time."""

from dataclasses import dataclass

from runbooks.response.journal import Incident, StepRow

UNDO_RETRY_SECONDS = 30.0
UNDO_ATTEMPTS = 20
NOT_UNDONE = "NOT UNDONE"
"""How the outcome of an incident begins whose act is still in force."""
MAX_LOOKS = 3
"""Of an incident whose evidence decides nothing."""
_CLOCK_SLACK_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class Begin:
    kind: str
    """look, decide, ask, act, verify or undo."""
    why: str = ""


@dataclass(frozen=True, slots=True)
class Redo:
    """A step that a process began and did not end. Acts and undoings look first whether they took effect."""

    step: StepRow


@dataclass(frozen=True, slots=True)
class Wait:
    pass


@dataclass(frozen=True, slots=True)
class Close:
    outcome: str


Move = Begin | Redo | Wait | Close


def next_move(incident: Incident, now: float) -> Move:
    cut = next((step for step in incident.steps if step.ended is None), None)
    if cut is not None:
        return Redo(cut)
    decided = incident.last("decide")
    act = incident.last("act")
    if act is not None:
        assert decided is not None
        return _after_act(incident, decided, act, now)
    if incident.is_resolved:
        return Close("resolved by itself: nothing was done")
    look = incident.last("look")
    if look is None:
        return Begin("look")
    if decided is None or decided.step_id < look.step_id:
        return Begin("decide")
    if "outcome" in decided.result:
        return _look_again(incident, decided, now)
    if incident.plan_only or decided.result["act"]["policy"] == "never":
        return Close(f"planned and not done: {decided.result['text']}")
    if decided.result["act"]["policy"] == "approve":
        return _after_question(incident, decided, now)
    return Begin("act")


def in_force(incident: Incident) -> str:
    """What an open incident has changed and will undo; empty where there is nothing of the kind."""
    decided, act, undo = incident.last("decide"), incident.last("act"), incident.last("undo")
    if incident.closed is not None or decided is None or act is None or act.result.get("status") == "failed":
        return ""
    is_undone = undo is not None and undo.result.get("done", False)
    is_change = decided.result["changes_target"] and decided.result["can_be_undone"]
    return str(decided.result["text"]) if is_change and not is_undone else ""


def _look_again(incident: Incident, decided: StepRow, now: float) -> Move:
    """While the alert fires: a window too short, or a target in the middle of a restart, need not be so a minute later."""
    pause = decided.result["look_again"]
    assert decided.ended is not None
    if pause is None or sum(step.kind == "decide" for step in incident.steps) >= MAX_LOOKS:
        return Close(decided.result["outcome"])
    age = now - decided.ended
    return Begin("look", "the last one decided nothing") if age >= pause or age < 0 else Wait()


def _after_question(incident: Incident, decided: StepRow, now: float) -> Move:
    asked = incident.last("ask")
    if asked is None:
        return Begin("ask")
    if incident.answer is not None:
        if incident.answer.approved:
            return Begin("act")
        return Close(f"rejected by {incident.answer.who}: nothing was done")
    if now >= decided.result["expires"]:
        return Close(f"not approved in time: nothing was done; planned was: {decided.result['text']}")
    return Wait()


def _after_act(incident: Incident, decided: StepRow, act: StepRow, now: float) -> Move:
    if act.result["status"] == "failed":
        return Close(f"{decided.result['text']}: not done: {act.result['text']}")
    if not decided.result["changes_target"]:
        return Close(f"{decided.result['text']}: {act.result['text']}")
    undo = incident.last("undo")
    if undo is not None:
        return _after_undo(incident, decided, undo, now)
    can_undo = decided.result["can_be_undone"]
    # A clock that was set back behind the act's beginning says nothing of its age: then it is over.
    is_over = now >= act.began + decided.result["ttl"] or now < act.began - _CLOCK_SLACK_SECONDS
    verified = incident.last("verify")
    if verified is None:
        if is_over and can_undo:
            return Begin("undo", "its time to live is over")
        assert act.ended is not None
        return Begin("verify") if is_over or now >= act.ended + decided.result["settle"] else Wait()
    if not can_undo:
        return Close(_story(incident, decided, verified, "cannot be undone"))
    if not verified.result["helped"]:
        return Begin(
            "undo", "it did not help" if verified.result["helped"] is False else "nothing shows that it helped"
        )
    return Begin("undo", "its time to live is over") if is_over else Wait()


def _after_undo(incident: Incident, decided: StepRow, undo: StepRow, now: float) -> Move:
    if undo.result["done"]:
        return Close(_story(incident, decided, incident.last("verify"), undo.result["text"]))
    attempts = sum(step.kind == "undo" for step in incident.steps)
    if attempts >= UNDO_ATTEMPTS:
        return Close(f"{NOT_UNDONE} after {attempts} attempts, restore it by hand: {decided.result['text']}")
    assert undo.ended is not None
    age = now - undo.ended
    return Begin("undo", undo.intent["why"]) if age >= UNDO_RETRY_SECONDS or age < 0 else Wait()


def _story(incident: Incident, decided: StepRow, verified: StepRow | None, end: str) -> str:
    helped = None if verified is None else verified.result["helped"]
    word = {True: "helped", False: "did not help", None: "is not shown to have helped"}[helped]
    detail = f" ({verified.result['text']})" if verified is not None else ""
    alert = "the alert is resolved" if incident.is_resolved else "the alert still fires"
    return f"{decided.result['text']} {word}{detail}; {end}; {alert}"
