"""`python -m tests.accuracy`: generates the cases, lets every tool answer, and prints the table."""

import argparse
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path

from tests.accuracy.cases import What, cached_case, kept_for_this_code
from tests.accuracy.report import put_section, render
from tests.accuracy.rivals import rival_answers
from tests.accuracy.score import Answer, answer_of
from tests.accuracy.windows import is_held_out, make_case, plan


def answer_case(cache: Path | None, what: What) -> list[Answer]:
    case = make_case(*what) if cache is None else cached_case(cache, what)
    ours = [answer_of(case, view, case.diagnose(view)) for view in case.views]
    return [*ours, *rival_answers(case)]


def answers_of(cases: Sequence[What], processes: int, cache: Path | None) -> list[Answer]:
    answers: list[Answer] = []
    kept = None if cache is None else kept_for_this_code(cache)
    with ProcessPoolExecutor(processes) as pool:
        for number, found in enumerate(pool.map(partial(answer_case, kept), cases, chunksize=2), 1):
            answers += found
            if sys.stderr.isatty() or number % 25 == 0:
                print(f"{number}/{len(cases)} cases", file=sys.stderr)
    return answers


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.accuracy", description=__doc__)
    parser.add_argument("--seeds", type=int, default=5, help="per condition and shape; 5 makes 300 cases")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--every", type=int, default=1, help="a sample: each n-th case only")
    parser.add_argument("--only", help="cases whose name contains this")
    parser.add_argument("--tuning", action="store_true", help="without what is held out: what rules may be changed by")
    parser.add_argument("--cache", type=Path, help="keep the simulated windows in this directory, for changes of rules")
    parser.add_argument("-o", "--output", type=Path, help="put the table into this file too, in place of the last one")
    options = parser.parse_args()
    cases = [
        what for what in plan(options.seeds)[:: options.every] if not options.only or options.only in "+".join(what[0])
    ]
    if options.tuning:
        cases = [what for what in cases if not is_held_out(*what[1:])]
    began = time.perf_counter()
    answers = answers_of(cases, options.processes, options.cache)
    asked = " ".join(["python -m tests.accuracy", *sys.argv[1:]])
    heading = (
        f"# Generated cases: {len(cases)}\n\n`{asked}`, {time.strftime('%Y-%m-%d')}, "
        f"{time.perf_counter() - began:.0f} s with {options.processes} processes. "
        "Shares with counts and 95 % Wilson intervals."
    )
    table = render(answers, heading)
    print(table)
    if options.output is not None:
        put_section(options.output, table)


if __name__ == "__main__":
    main()
