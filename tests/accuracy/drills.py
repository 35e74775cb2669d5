"""`python -m tests.accuracy.drills`: every drill on the real engine, some seeds each, and their table.

Each run is kept in a file of its own line as soon as it has ended, and is not run again: what was interrupted goes on where it
stopped. Timing sensitive: to be run on a machine that does nothing else.
"""

import argparse
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from diagnose.commands.diagnose import judge
from diagnose.diagnosis import Diagnosis
from diagnose.observation import Observation, observe
from diagnose.stats import median
from probes.recording import Entry
from runbooks.drills.catalog import DRILLS, Drill
from runbooks.drills.run import SETTLE_SECONDS, DrillRun, Outcome
from runbooks.drills.truth import AccountCheck
from runbooks.errors import DrillError, ExperimentError
from tests.accuracy.conditions import CONDITIONS
from tests.accuracy.report import put_section, summary
from tests.accuracy.rivals import RIVALS
from tests.accuracy.scenario import Condition, Mask
from tests.accuracy.score import NONE, Answer, answer_from
from tests.accuracy.windows import Truth, View, hide_families
from tests.builders import build_signals

RESULTS = Path(__file__).parent / "results"
_KIN = {
    "prefill_interference_unchunked": "prefill_interference",
    "dropped_connections": "oom_abort",
    "prefill_interference_mild": "prefill_interference",
    "lock_contention": "scheduler_contention",
    "lookup_contention": "scheduler_contention",
    "slow_host": "scheduler_contention",
}
"""Drills and the generated condition that is masked as they are; others have the same name, or none."""


@dataclass(frozen=True, slots=True)
class DrillResult:
    drill: str
    seed: int
    moved: bool
    answers: tuple[Answer, ...]
    check: AccountCheck | None
    wall_seconds: float


def kin_of(drill: Drill) -> Condition | None:
    return CONDITIONS.get(_KIN.get(drill.name, drill.name))


def truth_of(drill: Drill, *, moved: bool, masked: bool = False) -> Truth:
    kin = kin_of(drill)
    allowed = frozenset(drill.primary) | frozenset(drill.required) | frozenset(kin.also if kin is not None else ())
    if not moved:
        return Truth(frozenset(), frozenset(), allowed)
    if masked:
        assert kin is not None
        return Truth(frozenset(), frozenset(), allowed, kin.hidden)
    return Truth(frozenset(drill.primary), frozenset(drill.required), allowed)


def result_of(outcome: Outcome, seed: int, wall_seconds: float) -> DrillResult:
    answers = [_answer(outcome, seed, View.RECORDS), _answer(outcome, seed, View.SCRAPE)]
    kin = kin_of(outcome.drill)
    if kin is not None and kin.mask is not None and outcome.moved:
        answers.append(_answer(outcome, seed, View.MASKED, kin.mask))
    if answers[0].is_right and answers[0].truth.primary:
        answers[0] = replace(answers[0], seconds=_seconds_to(outcome))
    return DrillResult(
        outcome.drill.name,
        seed,
        outcome.moved,
        (*answers, *_rivals(outcome, answers[1])),
        outcome.account_check if outcome.moved else None,
        wall_seconds,
    )


def _answer(outcome: Outcome, seed: int, view: View, mask: Mask | None = None) -> Answer:
    truth = truth_of(outcome.drill, moved=outcome.moved, masked=mask is not None)
    diagnosis = _judge(outcome, outcome.incident.entries, view, mask)
    blank = Answer(
        "stallscope",
        outcome.drill.name,
        outcome.drill.model,
        seed,
        False,
        view,
        outcome.moved,
        None,
        frozenset(),
        truth,
        False,
    )
    return answer_from(blank, diagnosis)


def _judge(outcome: Outcome, entries: Sequence[Entry], view: View, mask: Mask | None = None) -> Diagnosis:
    baseline = None if mask is not None and mask.baseline else _seen(outcome.quiet.entries, view, mask)
    return judge(
        _seen(entries, view, mask),
        baseline,
        (),
        reported=() if mask is not None and mask.reported else outcome.reported,
        is_live=True,
        target=outcome.incident.url,
    )


def _seen(entries: Sequence[Entry], view: View, mask: Mask | None) -> Observation:
    hide_records = view is View.SCRAPE or (mask is not None and mask.records)
    families = mask.families if mask is not None else ()
    hidden = {"steps"} if hide_records else set()
    if mask is not None and mask.log:
        hidden.add("log")
    kept = [entry for entry in entries if entry.kind not in hidden]
    return observe(
        "drill",
        [replace(e, body=hide_families(e.body, families)) if families and e.kind == "exposition" else e for e in kept],
    )


def _seconds_to(outcome: Outcome) -> float:
    """From the start of the load: how long until the answer was right and stayed so."""
    drill, entries = outcome.drill, outcome.incident.entries
    scrapes = [entry.unix for entry in entries if entry.kind == "exposition"]
    seen = entries[-1].unix
    for until in reversed(scrapes[1:]):
        diagnosis = _judge(outcome, [entry for entry in entries if entry.unix <= until], View.RECORDS)
        supported = {finding.name for finding in diagnosis.findings if finding.is_supported}
        if diagnosis.primary not in drill.primary or not set(drill.required) <= supported:
            break
        seen = until
    return SETTLE_SECONDS + seen - scrapes[0]


def _rivals(outcome: Outcome, scrape: Answer) -> Iterator[Answer]:
    now = build_signals(_seen(outcome.incident.entries, View.SCRAPE, None))
    before = build_signals(_seen(outcome.quiet.entries, View.SCRAPE, None))
    for tool, rival in RIVALS.items():
        said = rival(now, before)
        supported = frozenset() if said is None else frozenset({said}) | scrape.truth.required
        yield replace(scrape, tool=tool, primary=said, supported=supported, undetermined=False, checks=())


def render(results: Sequence[DrillResult], failed: int) -> str:
    day = time.strftime("%Y-%m-%d")
    did_not = f" {failed} could not be run." if failed else ""
    lines = [
        f"# Drills on the real engine: {len(results)}",
        "",
        f"`python -m tests.accuracy.drills`, {day}, {sum(r.wall_seconds for r in results):.0f} s of runs."
        f"{did_not} "
        f"In {sum(not r.moved for r in results)} of them the symptom did not show: nothing is the right answer there.",
        "",
        *summary([answer for result in results for answer in result.answers]),
        "",
        "| drill | seed | symptom | named | right | time to it | by scrape alone | clients: later by | account says |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for result in sorted(results, key=lambda r: (list(DRILLS).index(r.drill), r.seed)):
        lines.append(_row(result))
    errors = [r.check.error for r in results if r.check is not None]
    if errors:
        lines += [
            "",
            f"The account of the part that a drill lengthens is off by {100 * median(errors):.0f} % of what clients saw in the "
            f"median of {len(errors)} runs, by {100 * max(errors):.0f} % at most.",
        ]
    return "\n".join(lines) + "\n"


def _row(result: DrillResult) -> str:
    own = {answer.view: answer for answer in result.answers if answer.tool == "stallscope"}
    records, scrape, check = own[View.RECORDS], own[View.SCRAPE], result.check
    verdict = "yes" if records.is_right else "WRONG" if records.is_wrong_and_confident else "no"
    seconds = "-" if records.seconds is None else f"{records.seconds:.0f} s"
    clients, said = (
        ("-", "-") if check is None else (f"{1e3 * check.clients:.1f} ms", f"{1e3 * check.said:.1f} ms {check.part}")
    )
    return (
        f"| {result.drill} | {result.seed} | {'yes' if result.moved else 'did not show'} | {records.primary or NONE} | {verdict} "
        f"| {seconds} | {scrape.primary or NONE} | {clients} | {said} |"
    )


def read_results(path: Path) -> list[DrillResult]:
    lines = path.read_bytes().splitlines() if path.exists() else []
    return [msgspec.json.decode(line, type=DrillResult) for line in lines]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.accuracy.drills", description=__doc__)
    parser.add_argument("--seeds", type=int, default=2, help="runs of each drill")
    parser.add_argument("--only", choices=list(DRILLS), help="this drill alone")
    parser.add_argument("--minutes", type=float, default=60.0, help="no run starts after so long; call again to go on")
    parser.add_argument("--kept", type=Path, default=RESULTS / "drills.jsonl", help="finished runs, one a line")
    parser.add_argument("-o", "--output", type=Path, default=RESULTS / "accuracy.md", help="where the table goes")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # the engine is stopped on the way out, as on Ctrl-C
    results, failed, began = read_results(options.kept), 0, time.monotonic()
    done = {(result.drill, result.seed) for result in results}
    wanted = [
        (name, seed) for seed in range(1, options.seeds + 1) for name in ([options.only] if options.only else DRILLS)
    ]
    for name, seed in wanted:
        if (name, seed) in done:
            continue
        if time.monotonic() - began > 60 * options.minutes:
            print("out of time: call again to go on", file=sys.stderr)
            break
        started = time.monotonic()
        try:
            outcome = DrillRun(DRILLS[name], DRILLS[name].model, seed).run()
        except (DrillError, ExperimentError) as error:
            print(f"{name}, seed {seed}: {error}", file=sys.stderr)
            failed += 1
            continue
        except KeyboardInterrupt:
            print(f"interrupted: {len(results)} runs are kept in {options.kept}; call again to go on", file=sys.stderr)
            sys.exit(130)
        result = result_of(outcome, seed, time.monotonic() - started)
        results.append(result)
        with options.kept.open("ab") as kept:
            kept.write(msgspec.json.encode(result) + b"\n")
        print(_row(result), file=sys.stderr)
    table = render(results, failed)
    print(table)
    put_section(options.output, table)


if __name__ == "__main__":
    main()
