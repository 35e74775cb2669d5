"""The table of drills on the real engine: what a run counts as, what is kept of it, and that it is not run twice."""

import signal
import sys
from pathlib import Path

import pytest

import tests.accuracy.drills as drills
from runbooks.drills.catalog import DRILLS
from runbooks.drills.run import SETTLE_SECONDS, DrillRun, Outcome
from runbooks.drills.truth import AccountCheck
from runbooks.errors import DrillError
from tests.accuracy.conditions import CONDITIONS
from tests.accuracy.drills import DrillResult, kin_of, read_results, render, result_of, truth_of
from tests.accuracy.windows import View
from tests.runbooks.test_drill import replayed


@pytest.fixture(scope="module")
def exhausted() -> Outcome:
    return replayed("kv_exhaustion")


def test_every_condition_that_can_be_induced_here_has_a_drill():
    without = {"device_degraded", "engine_hung"}
    assert {kin.name for drill in DRILLS.values() if (kin := kin_of(drill)) is not None} == set(CONDITIONS) - without


def test_a_run_is_judged_in_each_view_and_beside_the_rivals(exhausted: Outcome):
    result = result_of(exhausted, 3, 1.5)
    views = {(answer.tool, answer.view) for answer in result.answers}
    own = {("stallscope", view) for view in (View.RECORDS, View.SCRAPE, View.MASKED)}
    assert views == own | {("naive thresholds", View.SCRAPE), ("largest relative change", View.SCRAPE)}
    assert result.moved and {answer.seed for answer in result.answers} == {3}
    masked = next(answer for answer in result.answers if answer.view is View.MASKED)
    assert masked.undetermined and masked.is_right


def test_without_a_symptom_a_drill_expects_nothing():
    truth = truth_of(DRILLS["sequence_cap"], moved=False)
    assert truth.primary == frozenset() and {"sequence_cap", "queue_overload"} <= truth.allowed
    calm = replayed("sequence_cap")
    calm.incident.levels.gaps[:], calm.incident.levels.ttfts[:] = [0.02] * 50, [0.1] * 20
    result = result_of(calm, 1, 1.0)
    assert not result.moved and View.MASKED not in {answer.view for answer in result.answers}


def test_time_to_a_dead_target_is_from_the_start_of_the_load():
    result = result_of(replayed("hard_failure"), 1, 1.0)
    seconds = result.answers[0].seconds
    assert seconds is not None and seconds > SETTLE_SECONDS


def test_what_was_run_is_kept_and_not_run_again(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, exhausted: Outcome, capsys: pytest.CaptureFixture[str]
):
    ran: list[tuple[str, int]] = []

    def run(self: DrillRun) -> Outcome:
        ran.append((self.drill.name, self.seed))
        if len(ran) == 2:
            raise DrillError("no core to spare")
        return exhausted

    monkeypatch.setattr(DrillRun, "run", run)
    kept, table = tmp_path / "drills.jsonl", tmp_path / "accuracy.md"
    table.write_text("# Generated cases: 3\n\nkept\n")
    command = ["drills", "--only", "kv_exhaustion", "--seeds", "2", "--kept", str(kept), "-o", str(table)]
    monkeypatch.setattr(sys, "argv", command)
    drills.main()
    assert ran == [("kv_exhaustion", 1), ("kv_exhaustion", 2)]
    assert "seed 2: no core to spare" in capsys.readouterr().err
    assert "1 could not be run" in table.read_text() and table.read_text().startswith("# Generated cases: 3")
    drills.main()
    assert ran[2:] == [("kv_exhaustion", 2)]
    assert [(result.drill, result.seed) for result in read_results(kept)] == [
        ("kv_exhaustion", 1),
        ("kv_exhaustion", 2),
    ]
    assert table.read_text().count("# Drills on the real engine: 2") == 1


def test_an_interruption_keeps_what_was_run(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, exhausted: Outcome, capsys: pytest.CaptureFixture[str]
):
    """SIGTERM is one, so that the engine of the run that goes on is stopped."""
    runs = iter([exhausted])

    def run(self: DrillRun) -> Outcome:
        for outcome in runs:
            return outcome
        signal.raise_signal(signal.SIGTERM)
        raise AssertionError("the signal ends the run")

    before = signal.getsignal(signal.SIGTERM)
    monkeypatch.setattr(DrillRun, "run", run)
    kept, table = tmp_path / "drills.jsonl", tmp_path / "accuracy.md"
    monkeypatch.setattr(sys, "argv", ["drills", "--only", "kv_exhaustion", "--kept", str(kept), "-o", str(table)])
    try:
        with pytest.raises(SystemExit) as ended:
            drills.main()
    finally:
        signal.signal(signal.SIGTERM, before)
    assert ended.value.code == 130 and not table.exists()
    assert f"interrupted: 1 runs are kept in {kept}" in capsys.readouterr().err
    assert [result.seed for result in read_results(kept)] == [1]


def test_the_table_says_what_was_wrong_and_by_how_much_an_account_is_off(exhausted: Outcome):
    result = result_of(exhausted, 1, 2.0)
    told = DrillResult("slow_host", 1, True, result.answers, AccountCheck("host", 0.010, 0.009), 2.0)
    table = render([told], 0)
    assert "| slow_host | 1 | yes |" in table and "| 10.0 ms | 9.0 ms host |" in table
    assert "off by 10 % of what clients saw in the median of 1 runs" in table
