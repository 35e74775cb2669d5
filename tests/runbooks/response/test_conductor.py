"""Evidence, decision, act, verification, undoing: each way an incident can go, with a clock that tests move."""

import pytest

from runbooks.errors import Refused
from runbooks.response.journal import Limits
from runbooks.response.look import Look
from runbooks.response.serving import tell_what_is_left
from tests.runbooks.response.fake_admin import FakeAdmin
from tests.runbooks.response.scenes import ACT, alert, better, kinds, make_scene, slow

LIMITS = Limits(6, 1.0, "command")


@pytest.fixture
def admin():
    with FakeAdmin() as server:
        yield server


@pytest.fixture
def scene(tmp_path, admin):
    def make(*looks, **config):
        return make_scene(tmp_path, admin.url, list(looks), **config)

    return make


def budgets(admin: FakeAdmin) -> list[int]:
    return [body["max_batched_tokens"] for _, body in admin.posts]


def test_an_act_that_helped_is_kept_for_its_time_and_undone(scene, admin):
    here = scene(slow(400), better(80))
    (number,) = here.receive(alert())
    early = here.carry(number)
    assert kinds(early) == ["look", "decide", "act"], "the second look waits until the act can show"
    here.clock.sleep(11)
    assert kinds(here.carry(number)) == ["look", "decide", "act", "verify"]
    here.receive(alert("resolved"))
    assert budgets(admin) == [256], "resolved by the act: taking it away at once would bring the symptom back"
    here.clock.sleep(15 * 60)
    done = here.carry(number)
    assert kinds(done) == ["look", "decide", "act", "verify", "undo"]
    assert budgets(admin) == [256, 512]
    assert done.outcome == (
        "max_batched_tokens 512 -> 256 helped (itl_p99 400 ms before, itl_p99 80 ms after (-80 %); help is a fall by 10 %); "
        "max_batched_tokens is 512 again; the alert is resolved"
    )


def test_a_receiver_that_stops_says_what_stays_in_force(scene):
    here = scene(slow(400), better(80))
    (number,) = here.receive(alert())
    stays = "max_batched_tokens 512 -> 256 stays in force until it is undone then"

    def told_at_a_stop() -> list[str]:
        lines: list[str] = []
        tell_what_is_left(here.journal, lines.append)
        return lines

    head = f"incident {number} (slow on chat) goes on when this is started again"
    assert told_at_a_stop() == [head]
    here.carry(number)
    assert told_at_a_stop() == [f"{head}: {stays}"]
    here.clock.sleep(15 * 60)
    assert here.carry(number).closed is not None
    assert told_at_a_stop() == []


def test_an_act_that_did_not_help_is_undone_at_once(scene, admin):
    here = scene(slow(400), slow(390))
    (number,) = here.receive(alert())
    done = here.carry_to_end(number)
    assert budgets(admin) == [256, 512]
    assert done.closed is not None and done.closed - done.opened < 60
    assert "did not help" in (done.outcome or "")
    assert "still fires" in (done.outcome or "")


@pytest.mark.parametrize(
    ("after", "words"),
    [
        (better(frozen=20), "did not change once in 20 scrapes"),
        (better(idle=True), "the target is idle now"),
        (better(reading=None), "no sample of itl_p99 since"),
        (better(stated={"max_batched_tokens": 512.0}), "says max_batched_tokens 512, the admin surface 256"),
    ],
    ids=["frozen", "idle", "no sample", "page and admin disagree"],
)
def test_what_cannot_be_shown_to_help_is_undone(scene, admin, after, words):
    """A lying or silent target proves nothing, and an act stays only on proof."""
    here = scene(slow(), after)
    (number,) = here.receive(alert())
    done = here.carry_to_end(number)
    assert budgets(admin) == [256, 512]
    assert words in (done.outcome or "")


def test_an_admin_surface_that_lies_is_found_out(scene, admin):
    """It answers yes with the old value: what it did is not known, nothing shows that it helped, and nothing has to be undone."""
    admin.lies = True
    here = scene(slow(), slow())
    (number,) = here.receive(alert())
    done = here.carry_to_end(number)
    act = done.last("act")
    assert act is not None
    assert act.result["status"] == "unknown"
    assert "is 512 after it was set to 256" in act.result["text"]
    assert budgets(admin) == [256]
    assert done.closed is not None


@pytest.mark.parametrize(
    ("look", "words"),
    [
        (better(), "an objective is breached"),
        (slow(decision="measure"), "measure: an objective is breached"),
        (slow(decision="experiment"), "experiment: "),
        (slow(causes=["hard_failure"]), "has no act for hard_failure: a person must contain it"),
        (slow(idle=True), "does the alert name another target?"),
        (slow(frozen=20), "did not change once in 20 scrapes"),
    ],
    ids=["nothing wrong", "insufficient evidence", "unconfirmed cause", "another cause", "idle", "frozen"],
)
def test_without_a_verified_reason_nothing_is_done(scene, admin, look, words):
    here = scene(look)
    (number,) = here.receive(alert())
    done = here.carry_to_end(number)
    assert admin.posts == []
    assert words in (done.outcome or "")


def test_a_look_that_decides_nothing_is_taken_again_while_the_alert_fires(scene, admin):
    here = scene(slow(decision="measure"), slow(400), better(80))
    (number,) = here.receive(alert())
    assert kinds(here.carry(number)) == ["look", "decide"]
    here.clock.sleep(61)
    assert kinds(here.carry(number)) == ["look", "decide", "look", "decide", "act"]
    here.carry_to_end(number)
    assert budgets(admin) == [256, 512]


def test_three_looks_are_enough(scene, admin):
    here = scene(slow(decision="measure"))
    (number,) = here.receive(alert())
    assert kinds(here.carry_to_end(number)) == ["look", "decide"] * 3
    (second,) = here.receive(alert(starts_at="2026-11-30T11:00:00Z"))
    here.carry(second)
    here.receive(alert("resolved", starts_at="2026-11-30T11:00:00Z"))
    assert here.carry(second).outcome == "resolved by itself: nothing was done"


def test_plan_only_and_the_default_policy_change_nothing(scene, admin):
    """The default is to plan: an act runs only where the configuration says so, and never under --plan-only."""
    here = scene(slow(), acts=ACT.replace('policy = "auto"\n', ""))
    (number,) = here.receive(alert())
    planned = here.carry_to_end(number)
    assert planned.outcome == "planned and not done: max_batched_tokens 512 -> 256"
    (second,) = here.receive(alert(starts_at="2026-11-30T11:00:00Z"))
    assert here.carry_to_end(second).outcome == planned.outcome
    assert admin.posts == []


def test_plan_only_overrides_auto(scene, admin):
    here = scene(slow())
    (number,) = here.receive(alert(), plan_only=True)
    assert (here.carry_to_end(number).outcome or "").startswith("planned and not done")
    assert admin.posts == []


def test_an_act_waits_for_approval(scene, admin):
    here = scene(slow(), better(), acts=ACT.replace('"auto"', '"approve"'))
    (number,) = here.receive(alert())
    here.carry(number)
    assert admin.posts == []
    assert any("approval wanted: max_batched_tokens 512 -> 256" in text for text in here.told)
    here.journal.answer(number, approved=True, who="ada", now=here.clock.unix())
    with pytest.raises(Refused, match="answered already"):
        here.journal.answer(number, approved=False, who="bob", now=here.clock.unix())
    here.carry_to_end(number)
    assert budgets(admin) == [256, 512]


@pytest.mark.parametrize("way", ["rejected", "expired", "resolved", "changed"])
def test_without_approval_nothing_is_done(scene, admin, way):
    here = scene(slow(), acts=ACT.replace('"auto"', '"approve"'))
    (number,) = here.receive(alert())
    here.carry(number)
    if way == "rejected":
        here.journal.answer(number, approved=False, who="ada", now=here.clock.unix())
    elif way == "expired":
        here.clock.sleep(1801)
    elif way == "resolved":
        here.receive(alert("resolved"))
    else:
        admin.state["max_batched_tokens"] = 300
        here.journal.answer(number, approved=True, who="ada", now=here.clock.unix())
    done = here.carry(number)
    assert admin.posts == []
    words = {
        "rejected": "rejected by ada",
        "expired": "not approved",
        "resolved": "resolved",
        "changed": "somebody else",
    }
    assert words[way] in (done.outcome or "")


def test_a_flapping_alert_acts_once(scene, admin):
    here = scene(slow(400), better(80))
    for minute in range(0, 50, 2):
        starts = f"2026-11-30T10:{minute:02d}:00Z"
        here.receive(alert(starts_at=starts))
        for number in here.journal.open_incidents():
            here.carry(number)
        here.clock.sleep(60)
        here.receive(alert("resolved", starts_at=starts))
        for number in here.journal.open_incidents():
            here.carry(number)
        here.clock.sleep(60)
    assert budgets(admin) == [256, 512], "once, and undone once"


def test_acts_keep_to_the_cooldown_and_the_hourly_rate(scene, admin):
    act = ACT.replace('cooldown = "1h"', 'cooldown = "1s"').replace('ttl = "15m"', 'ttl = "1m"')
    here = scene(slow(400), slow(400), acts=act, max_acts_per_hour=2)
    outcomes = []
    for minute in (0, 5, 10):
        (number,) = here.receive(alert(starts_at=f"2026-11-30T10:{minute:02d}:00Z"))
        outcomes.append(here.carry_to_end(number).outcome or "")
        here.clock.sleep(60)
    assert budgets(admin) == [256, 512] * 2
    assert "max_acts_per_hour is 2" in outcomes[-1]


def test_somebody_elses_change_is_left_alone(scene, admin):
    here = scene(slow(400), better(80))
    (number,) = here.receive(alert())
    here.carry(number)
    admin.state["max_batched_tokens"] = 100
    done = here.carry_to_end(number)
    assert budgets(admin) == [256]
    assert "changed by somebody else since, and left as it is" in (done.outcome or "")


def test_a_dead_target_cannot_be_changed_and_says_so(scene, admin):
    dead = Look("unreachable", "gone", "contain", "the target does not answer: refused", causes=["hard_failure"])
    act = ACT.replace('["prefill_interference"]', '["hard_failure"]').replace("lower_budget", "drain")
    here = scene(dead, acts=act)
    admin.shutdown()
    admin.server_close()
    (number,) = here.receive(alert())
    done = here.carry_to_end(number)
    assert "drain was called for" in (done.outcome or "")
    assert "does not answer" in (done.outcome or "")


def test_an_undoing_that_fails_is_tried_again(scene, admin):
    here = scene(slow(400), slow(400))
    (number,) = here.receive(alert())
    here.carry(number)
    admin.lies = True
    here.clock.sleep(11)
    assert here.carry(number).closed is None
    admin.lies = False
    done = here.carry_to_end(number)
    assert kinds(done).count("undo") == 2
    assert admin.state["max_batched_tokens"] == 512


def test_an_undoing_that_never_works_is_shouted(scene, admin):
    here = scene(slow(400), slow(400))
    (number,) = here.receive(alert())
    here.carry(number)
    admin.lies = True
    done = here.carry_to_end(number)
    assert (done.outcome or "").startswith("NOT UNDONE after 20 attempts, restore it by hand")
    assert here.told[-1] == done.outcome


def test_time_to_live_ends_without_a_second_look_after_a_long_absence(scene, admin):
    here = scene(slow(400), better())
    (number,) = here.receive(alert())
    here.carry(number)
    here.clock.sleep(3600)
    done = here.carry(number)
    assert kinds(done) == ["look", "decide", "act", "undo"]
    assert admin.state["max_batched_tokens"] == 512


def test_a_clock_that_is_set_back_ends_the_act(scene, admin):
    here = scene(slow(400), better())
    (number,) = here.receive(alert())
    here.carry(number)
    here.clock.now -= 86_400
    assert kinds(here.carry(number))[-1] == "undo"
    assert admin.state["max_batched_tokens"] == 512


def test_a_notification_that_fails_stops_nothing(scene, admin):
    def fail(title, text):
        raise OSError("the mail server is gone")

    here = scene(slow(400), better(80))
    here.on_send = fail
    (number,) = here.receive(alert())
    done = here.carry_to_end(number)
    assert budgets(admin) == [256, 512]
    notes = [step.intent["text"] for step in done.steps if step.kind == "note"]
    assert notes[0] == "notification by list failed: OSError: the mail server is gone"


@pytest.mark.parametrize("look", ["", 'look_command = "seen"\n'], ids=["cannot be seen", "is seen"])
def test_a_command_that_a_crash_cut_off_is_not_run_again(scene, tmp_path, look):
    """What cannot be seen is done at most once; where a look command says that it took effect, it counts as done."""
    done = tmp_path / "done.txt"
    act = ACT.replace("lower_budget", "command") + f'command = "note"\n{look}'
    here = scene(slow(400), better(80), acts=act)
    here.config.commands["note"] = ["/bin/sh", "-c", f"echo $STALLSCOPE_KEY >> {done}"]
    here.config.commands["seen"] = ["/usr/bin/test", "-e", str(done)]
    (number,) = here.receive(alert())
    conductor = here.conductor()
    assert conductor.advance(number) and conductor.advance(number), "looked and decided"
    decided = here.journal.incident(number).last("decide")
    assert decided is not None
    here.journal.begin_act(number, {**decided.result["intent"], "label": "command"}, LIMITS, here.clock.unix())
    done.write_text("by the process that died\n")
    act_step = here.carry_to_end(number).last("act")
    assert act_step is not None
    assert act_step.result["status"] == ("done" if look else "unknown")
    assert done.read_text() == "by the process that died\n"
