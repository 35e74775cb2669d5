"""What the toolkit itself costs: `python -m tests.benchmarks.toolkit_speed`. Prints a table and asserts nothing.

Parsing is compared with the official client's parser on the same page in the same run, taking turns; commands are whole
processes, timed by their own CPU time, best of several.
"""

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from time import perf_counter

from prometheus_client.parser import text_string_to_metric_families

from diagnose.exposition import ExpositionParser
from probes.recording import read_recording
from tests.benchmarks.turns import best_milliseconds

ROUNDS = 9
DATA = Path(__file__).resolve().parent.parent / "data"
Row = tuple[str, float, str]


def page() -> str:
    """A real page of our engine."""
    recording = read_recording((DATA / "interference.rec").read_bytes())
    return next(entry.body for entry in recording.entries if entry.kind == "exposition")


def parsing() -> list[Row]:
    text = page()
    warm = ExpositionParser()
    warm.parse(text)
    contenders: dict[str, Callable[[], object]] = {
        "first sight": lambda: ExpositionParser().parse(text),
        "known series": lambda: warm.parse(text),
        "prometheus_client": lambda: list(text_string_to_metric_families(text)),
    }
    best = best_milliseconds(contenders, ROUNDS)
    size = len(text.encode()) / 1024
    rows: list[Row] = [(f"parse {size:.0f} KiB, {name}", ms, "ms CPU") for name, ms in best.items()]
    rows.append(("prometheus_client / known series", best["prometheus_client"] / best["known series"], "x"))
    rows.append(("prometheus_client / first sight", best["prometheus_client"] / best["first sight"], "x"))
    return rows


def command(*arguments: str) -> tuple[float, float]:
    """CPU and wall seconds of one process: best of the rounds."""
    cpu = wall = float("inf")
    for _ in range(ROUNDS):
        before, started = os.times(), perf_counter()
        subprocess.run(
            [sys.executable, "-m", "diagnose.cli", *arguments], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        after = os.times()
        wall = min(wall, perf_counter() - started)
        cpu = min(cpu, after.children_user + after.children_system - before.children_user - before.children_system)
    return cpu, wall


def commands() -> list[Row]:
    rows: list[Row] = []
    recording = str(DATA / "interference.rec")
    for name, arguments in (("--help", ["--help"]), ("diagnose FILE", ["diagnose", recording])):
        cpu, wall = command(*arguments)
        rows += [(f"stallscope {name}", cpu * 1e3, "ms CPU"), (f"stallscope {name}", wall * 1e3, "ms wall")]
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--json", type=Path, help="also write the rows to this file")
    options = parser.parse_args()
    rows = [*parsing(), *commands()]
    for name, value, unit in rows:
        print(f"{name:<40}{value:>10.2f} {unit}")
    if options.json:
        options.json.write_text(json.dumps([{"name": n, "value": v, "unit": u} for n, v, u in rows], indent=1) + "\n")


if __name__ == "__main__":
    main()
