"""What recordings and exporters cost: `python -m tests.benchmarks.recording_cost`. Prints a table and asserts nothing.

Sizes are of the two recordings of a real engine in tests/data and of two minutes of a synthetic one, a scrape and 100 step
records a second. CPU time is this thread's, best of the rounds. The last rows run a loop that stands for an engine (4 ms
without the interpreter's lock, 1 ms with it, a request finished each step) beside each exporter at its usual pace, taking turns.
"""

import argparse
import contextlib
import json
import logging
import os
import statistics
import tempfile
import time
import zlib
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

from probes.exports import ExportThread, close_all
from probes.otlp import DeliveryFailed, MetricsExport, SpansExport, make_resource
from probes.prometheus import EngineCollector, exposition
from probes.recorder import RequestTrace, RingRecorder
from probes.recording import Entry, RecordingWriter, read_recording
from probes.recording_export import RecordingExport, open_recording
from tests.builders import Engine, make_collector, make_steps, with_prefill

DATA = Path(__file__).resolve().parent.parent / "data"
ROUNDS = 5
TURNS = 2
STEPS_PER_TURN = 800
NOBODY = "http://127.0.0.1:9"
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


def exporters(name: str, folder: Path, recorder: RingRecorder, collector: EngineCollector) -> list[ExportThread]:
    """By the name of their row, at the pace that `serve` gives them."""
    if name.startswith("recording"):
        writer = open_recording(folder / f"{os.urandom(4).hex()}.rec", "bench")
        if "full" in name:
            full = os.open("/dev/full", os.O_WRONLY)
            os.dup2(full, writer._fd)
            os.close(full)
        return [ExportThread(RecordingExport(writer, recorder, "bench", lambda: exposition(collector).decode()), 1.0)]
    if name.startswith("OTLP"):
        resource = make_resource("0", "bench")
        return [
            ExportThread(MetricsExport(collector.readings, 0.0, resource, NOBODY), 60.0),
            ExportThread(SpansExport(recorder, "bench", "bench", resource, NOBODY), 5.0),
        ]
    return []


def per_export(folder: Path) -> list[Row]:
    """Of one second of the recording, of the metrics, and of 100 spans that nobody takes."""
    recorder, steps = RingRecorder(), make_steps(100 * ROUNDS)
    collector = make_collector(recorder)
    recording = RecordingExport(
        open_recording(folder / "own.rec", "bench"), recorder, "bench", lambda: exposition(collector).decode()
    )
    metrics = MetricsExport(collector.readings, 0.0, make_resource("0", "bench"), NOBODY)
    spans = SpansExport(recorder, "bench", "bench", make_resource("0", "bench"), NOBODY)
    for number in range(100):
        recorder.on_request_finished(RequestTrace(f"r{number}", 0, 1, 2, 3, 1, 0, 1, 0, "stop"))
    waiting = iter(steps)

    def second() -> None:
        for _ in range(100):
            recorder.on_step(next(waiting))
        recording.export()

    def attempt(export: MetricsExport | SpansExport) -> None:
        with contextlib.suppress(DeliveryFailed):
            export.export()

    return [
        ("record one's own second", best(second, 1) * 1e3, "ms CPU"),
        ("send the metrics to nobody", best(lambda: attempt(metrics), 1) * 1e3, "ms CPU"),
        ("send 100 spans to nobody", best(lambda: attempt(spans), 1) * 1e3, "ms CPU"),
    ]


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
    for _ in range(TURNS):
        for name in names:
            threads = exporters(name, folder, recorder, collector)
            for thread in threads:
                thread.start()
            taken[name] += turn(recorder)
            close_all(threads, 5.0)
    medians = {name: statistics.median(times) for name, times in taken.items()}
    return [
        *((f"median step beside {name}", median * 1e3, "ms") for name, median in medians.items()),
        *((f"{name} / nothing", medians[name] / medians["nothing"], "x") for name in names[1:]),
        *((f"p99 step beside {name}", statistics.quantiles(taken[name], n=100)[98] * 1e3, "ms") for name in names),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--json", type=Path, help="also write the rows to this file")
    options = parser.parse_args()
    os.environ["OTEL_EXPORTER_OTLP_TIMEOUT"] = "1"  # so that a turn's threads end with it
    logging.disable()  # failures are what is measured
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        rows = [*sizes(folder), *cpu(folder), *per_export(folder), *beside_an_engine(folder)]
    for name, value, unit in rows:
        print(f"{name:<44}{value:>10.2f} {unit}")
    if options.json:
        options.json.write_text(json.dumps([{"name": n, "value": v, "unit": u} for n, v, u in rows], indent=1) + "\n")


if __name__ == "__main__":
    main()
