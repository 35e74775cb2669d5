"""`python -m tests.accuracy`: generates the cases, lets every tool answer, and prints the table."""

import argparse
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from tests.accuracy.report import render
from tests.accuracy.rivals import rival_answers
from tests.accuracy.score import Answer, answer_of
from tests.accuracy.windows import is_held_out, make_case, plan


def answer_case(what: tuple[tuple[str, ...], str, int]) -> list[Answer]:
    case = make_case(*what)
    ours = [answer_of(case, view, case.diagnose(view)) for view in case.views]
    return [*ours, *rival_answers(case)]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.accuracy", description=__doc__)
    parser.add_argument("--seeds", type=int, default=5, help="per condition and shape; 5 makes 300 cases")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--every", type=int, default=1, help="a sample: each n-th case only")
    parser.add_argument("--only", help="cases whose name contains this")
    parser.add_argument("--tuning", action="store_true", help="without what is held out: what rules may be changed by")
    parser.add_argument("-o", "--output", type=Path, help="write the table to this file too")
    options = parser.parse_args()
    cases = [
        what for what in plan(options.seeds)[:: options.every] if not options.only or options.only in "+".join(what[0])
    ]
    if options.tuning:
        cases = [what for what in cases if not is_held_out(*what[1:])]
    began, answers = time.perf_counter(), []
    with ProcessPoolExecutor(options.processes) as pool:
        for number, found in enumerate(pool.map(answer_case, cases, chunksize=4), 1):
            answers += found
            if sys.stderr.isatty() or number % 25 == 0:
                print(f"{number}/{len(cases)} cases", file=sys.stderr)
    heading = (
        f"# Accuracy on {len(cases)} generated cases\n\n`python -m tests.accuracy {' '.join(sys.argv[1:])}`".rstrip(
            "` "
        )
        + f"`, {time.strftime('%Y-%m-%d')}, {time.perf_counter() - began:.0f} s with {options.processes} processes. "
        "Shares with counts and 95 % Wilson intervals."
    )
    table = render(answers, heading)
    print(table)
    if options.output is not None:
        options.output.write_text(table)


if __name__ == "__main__":
    main()
