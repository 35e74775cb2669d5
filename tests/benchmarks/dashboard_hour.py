"""An hour of watching one target, as fast as it can be played: `python -m tests.benchmarks.dashboard_hour`.

Every simulated second a page and its step records are parsed, digested, spooled and taken in, the screen is drawn twice, and
every tenth second the latest are diagnosed; the page changes every minute. Nothing waits and nothing is scraped, so an hour takes
a minute or two of CPU time. What is shown must not grow: CPU time per simulated second, resident memory, live objects.
The target plays two minutes of an engine again and again: its counters start over each time.
"""

import argparse
import gc
import json
import os
import time
from collections.abc import Sequence
from pathlib import Path

from dashboard.judge import Rules, make_diagnosis
from dashboard.model.digest import Digest
from dashboard.model.verdicts import summarise
from dashboard.model.view import Page
from dashboard.options import Options
from dashboard.panels.pages import draw_frame
from dashboard.session import Session
from diagnose.dialects.registry import recognise
from diagnose.exposition import ExpositionParser
from probes.recording import Entry
from probes.wire import decode_steps
from tests.benchmarks.dashboard_cost import COLUMNS, LINES, Tick, prepare
from tests.builders import START_UNIX

URL = "http://127.0.0.1:8000"
DISTINCT_SECONDS = 120
REPORTS = 6


class CompressedRun:
    """The dashboard of one live target without its threads: `second` plays one second of it."""

    def __init__(self, ticks: Sequence[Tick]) -> None:
        self._ticks, self._played = ticks, 0
        self.session = Session([URL], Options(span=300.0))
        self._keeper = self.session._feeds[0].keeper
        self._parser = ExpositionParser()
        self._digest = Digest(recognise(URL, self._parser.parse(ticks[0].page)))

    def second(self) -> None:
        at, tick = START_UNIX + self._played, self._ticks[self._played % len(self._ticks)]
        stamp = (self._played + 1) * 1_000_000_000
        head = {"stallscope_steps": 1, "engine_id": "engine-1", "next_id": tick.first_id + len(tick.steps), "lost": 0,
                "monotonic_ns": stamp, "unix_ns": round(at * 1e9)}  # fmt: skip
        body = json.dumps(head) + "\n" + "".join(tick.steps)
        self._keeper.keep([Entry(at, "exposition", tick.page), Entry(at, "steps", body)])
        header, records = decode_steps(body)
        self._keeper.post(0, self._digest.scraped(at, self._parser.parse(tick.page), header, records))
        view = self.session.view
        view.page = list(Page)[self._played // 60 % len(Page)]
        for later in (0.1, 0.6):
            self.session.tick(at + later)
            draw_frame(view, COLUMNS, LINES - 1)
        if self._played % 10 == 9:
            self._diagnose()
        self._played += 1

    def _diagnose(self) -> None:
        job = self.session.job(0)
        assert job is not None
        diagnosis = make_diagnosis(job, Rules(), parser=self._parser)
        target = self.session.view.target
        target.summary = summarise(diagnosis, job.end, job.start, job.end, trailing=True)

    def close(self) -> None:
        self.session.close()


def rss_mib() -> float:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20


def live_objects() -> int:
    gc.collect()
    return len(gc.get_objects())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--minutes", type=int, default=60, help="how much to play [60]")
    parser.add_argument("--json", type=Path, help="also write the rows to this file")
    options = parser.parse_args()
    run = CompressedRun(prepare(DISTINCT_SECONDS))
    rows: list[dict[str, float]] = []
    for _ in range(120):  # every page once, caches filled
        run.second()
    print(f"{'minutes':>8}{'CPU ms/second':>16}{'RSS MiB':>10}{'objects':>10}")
    each = options.minutes * 60 // REPORTS
    for part in range(1, REPORTS + 1):
        before = time.process_time()
        for _ in range(each):
            run.second()
        cost = (time.process_time() - before) / each * 1e3
        rows.append({"minutes": part * each / 60, "cpu_ms": cost, "rss_mib": rss_mib(), "objects": live_objects()})
        print("{minutes:>8.0f}{cpu_ms:>16.1f}{rss_mib:>10.1f}{objects:>10}".format(**rows[-1]), flush=True)
    run.close()
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
