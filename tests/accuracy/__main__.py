"""`python -m tests.accuracy`: generates the cases, lets every tool answer, and prints the table."""

import argparse
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path

from tests.accuracy.cases import What, answers_of_this_code, cached_case, cases_of_this_code, keep
from tests.accuracy.report import put_section, render
from tests.accuracy.rivals import rival_answers
from tests.accuracy.score import Answer, answer_of
from tests.accuracy.windows import View, is_held_out, make_case, plan

_TIMED_SEEDS = 2
"""Time to the right answer takes a diagnosis per look: these seeds show it."""
_RECORDED_SEEDS = 1
"""A recording holds what the live view sees: these seeds show that it gives the same answer."""


def answer_case(cache: Path | None, what: What) -> list[Answer]:
    case = make_case(*what) if cache is None else cached_case(cache, what)
    views = [view for view in case.views if view is not View.RECORDING or case.seed < _RECORDED_SEEDS]
    timed = case.seed < _TIMED_SEEDS
    ours = [answer_of(case, view, case.diagnose(view), timed=timed) for view in views]
    return [*ours, *rival_answers(case)]


def kept_answers(cache: Path | None, what: What) -> list[Answer]:
    """As answered before, unless any code has changed since."""
    if cache is None:
        return answer_case(None, what)
    return keep(answers_of_this_code(cache), what, lambda: answer_case(cases_of_this_code(cache), what))


def answers_of(cases: Sequence[What], processes: int, cache: Path | None) -> list[Answer]:
    answers: list[Answer] = []
    with ProcessPoolExecutor(processes) as pool:
        for number, found in enumerate(pool.map(partial(kept_answers, cache), cases, chunksize=2), 1):
            answers += found
            if sys.stderr.isatty() or number % 25 == 0:
                print(f"{number}/{len(cases)} cases", file=sys.stderr)
    return answers


def _which(options: argparse.Namespace) -> Iterator[str]:
    """The options that say which cases were asked for, as they are written."""
    for name, usual in (("seeds", 5), ("every", 1), ("only", None)):
        if getattr(options, name) != usual:
            yield f"--{name} {getattr(options, name)}"
    if options.tuning:
        yield "--tuning"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.accuracy", description=__doc__)
    parser.add_argument("--seeds", type=int, default=5, help="per condition and shape; 5 makes 300 cases")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--every", type=int, default=1, help="a sample: each n-th case only")
    parser.add_argument("--only", help="cases whose name contains this")
    parser.add_argument("--tuning", action="store_true", help="without what is held out: what rules may be changed by")
    parser.add_argument(
        "--cache", type=Path, help="keep what was simulated and answered here, while the code is the same"
    )
    parser.add_argument("-o", "--output", type=Path, help="put the table into this file too, in place of the last one")
    options = parser.parse_args()
    cases = [
        what for what in plan(options.seeds)[:: options.every] if not options.only or options.only in "+".join(what[0])
    ]
    if options.tuning:
        cases = [what for what in cases if not is_held_out(*what[1:])]
    began = time.perf_counter()
    answers = answers_of(cases, options.processes, options.cache)
    asked = " ".join(["python -m tests.accuracy", *_which(options)])
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
