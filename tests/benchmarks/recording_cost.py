"""What recordings and exporters cost: `python -m tests.benchmarks.recording_cost`. Prints a table and asserts nothing.

Sizes are of the two recordings of a real engine in tests/data and of two minutes of a synthetic one, a scrape and 100 step
records a second. CPU time is this thread's, best of the rounds. The last rows run a loop that stands for an engine (4 ms
without the interpreter's lock, 1 ms with it) beside each exporter, taking turns; the figure is the median step.
"""

import argparse
import json
import logging
import os
import statistics
import tempfile
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from probes.exports import ExportThread, close_all
from probes.otlp import MetricsExport, SpansExport, make_resource
from probes.prometheus import EngineCollector, exposition
from probes.recorder import RequestTrace, RingRecorder
from probes.recording import Entry, RecordingWriter, read_recording
from probes.recording_export import RecordingExport, open_recording
from tests.builders import Engine, make_collector, make_steps, with_prefill

DATA = Path(__file__).resolve().parent.parent / "data"
ROUNDS = 5
STEPS_PER_TURN = 150
Row = tuple[str, float, str]


def synthetic(seconds: int = 120) -> list[Entry]:
    engine, steps = Engine(), make_steps(seconds * 100, with_prefill(9, 500))
    entries = [Entry(0.0, "exposition", engine.page())]
    for second in range(seconds):
        part = steps[100 * second : 100 * second + 100]
        engine.run(part)
        entries += [Entry(second + 1.0, "exposition", engine.page()), Entry(second + 1.0, "steps", engine.steps(part))]
    return entries


def write(path: Path, entries: list[Entry]) -> int:
    with closing(RecordingWriter(path, "t", 0.0, existing="replace")) as writer:
        for entry in entries:
            writer.write(entry)
    return path.stat().st_size


def sizes(folder: Path) -> list[Row]:
    rows: list[Row] = []
    sources = {name: read_recording((DATA / f"{name}.rec").read_bytes()).entries for name in ("quiet", "interference")}
    for name, entries in (sources | {"synthetic, 2 min": synthetic()}).items():
        as_lines = sum(len(json.dumps({"t": e.unix, "kind": e.kind, "body": e.body})) + 1 for e in entries)
        packed = sum(len(zlib.compress(e.body.encode(), 6)) for e in entries)
        recorded = write(folder / "a", entries)
        rows += [
            (f"{name}: a JSON line per answer", as_lines / 1024, "KiB"),
            (f"{name}: each body by zlib", packed / 1024, "KiB"),
            (f"{name}: recording", recorded / 1024, "KiB"),
        ]
        pages = [entry for entry in entries if entry.kind == "exposition"]
        more = (write(folder / "a", pages) - write(folder / "a", pages[:1])) / (len(pages) - 1)
        page = len(pages[-1].body.encode()) / 1024
        rows.append((f"{name}: a further page of {page:.0f} KiB", more, "bytes"))
    return rows


def best(act: Callable[[], object], per: int) -> float:
    """CPU seconds of one of `per` items."""
    times = []
    for _ in range(ROUNDS):
        started = time.thread_time()
        act()
        times.append(time.thread_time() - started)
    return min(times) / per


def cpu(folder: Path) -> list[Row]:
    entries = synthetic()
    pages = [entry for entry in entries if entry.kind == "exposition"]
    steps = [entry for entry in entries if entry.kind == "steps"]
    write(folder / "all", entries)
    data = (folder / "all").read_bytes()
    return [
        ("write a page", best(lambda: write(folder / "a", pages), len(pages)) * 1e3, "ms CPU"),
        ("write 100 step records", best(lambda: write(folder / "a", steps), len(steps)) * 1e3, "ms CPU"),
        ("read an entry", best(lambda: read_recording(data), len(entries)) * 1e3, "ms CPU"),
    ]


@contextmanager
def beside(name: str, folder: Path, recorder: RingRecorder, collector: EngineCollector) -> Iterator[None]:
    """An exporter at ten times its usual pace, so that a short turn shows it."""
    threads: list[ExportThread] = []
    if name.startswith("recording"):
        writer = open_recording(folder / f"{os.urandom(4).hex()}.rec", "bench")
        if "full" in name:
            full = os.open("/dev/full", os.O_WRONLY)
            os.dup2(full, writer._fd)
            os.close(full)
        export = RecordingExport(writer, recorder, "bench", lambda: exposition(collector).decode())
        threads = [ExportThread(export, 0.1)]
    elif name.startswith("OTLP"):
        resource, nobody = make_resource("0", "bench"), "http://127.0.0.1:9"
        threads = [
            ExportThread(MetricsExport(collector.readings, 0.0, resource, nobody), 0.1),
            ExportThread(SpansExport(recorder, "bench", "bench", resource, nobody), 0.1),
        ]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        close_all(threads, 2.0)


def turn(recorder: RingRecorder) -> list[float]:
    """Seconds of each step of a loop that stands for an engine."""
    steps, taken = make_steps(STEPS_PER_TURN, first_id=recorder.next_id), []
    for record in steps:
        started = time.perf_counter()
        time.sleep(0.004)
        busy_until = time.thread_time() + 0.001
        while time.thread_time() < busy_until:
            pass
        recorder.on_step(record)
        recorder.on_request_finished(RequestTrace("r", 0, 1, 2, 3, 1, 0, 1, 0, "stop"))
        taken.append(time.perf_counter() - started)
    return taken


def beside_an_engine(folder: Path) -> list[Row]:
    names = ("nothing", "recording", "recording, disk full", "OTLP, receiver down")
    taken: dict[str, list[float]] = {name: [] for name in names}
    recorder = RingRecorder()
    collector = make_collector(recorder)
    for _ in range(ROUNDS):
        for name in names:
            with beside(name, folder, recorder, collector):
                taken[name] += turn(recorder)
    medians = {name: statistics.median(times) for name, times in taken.items()}
    return [
        *((f"step beside {name}", median * 1e3, "ms") for name, median in medians.items()),
        *((f"{name} / nothing", medians[name] / medians["nothing"], "x") for name in names[1:]),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--json", type=Path, help="also write the rows to this file")
    options = parser.parse_args()
    os.environ["OTEL_EXPORTER_OTLP_TIMEOUT"] = "1"  # so that a turn's threads end with it
    logging.disable()  # failures are what is measured
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        rows = [*sizes(folder), *cpu(folder), *beside_an_engine(folder)]
    for name, value, unit in rows:
        print(f"{name:<44}{value:>10.2f} {unit}")
    if options.json:
        options.json.write_text(json.dumps([{"name": n, "value": v, "unit": u} for n, v, u in rows], indent=1) + "\n")


if __name__ == "__main__":
    main()
