"""How fast traces are read, and in how much memory: `python -m tests.benchmarks.trace_import [--megabytes 100]`.

A trace of that size is generated (an engine of 32 layers, with operators and launches as torch writes them), read in a process
of its own, plain and gzipped, and beside it by `ijson`, the usual streaming parser, where that is installed.
"""

import argparse
import gzip
import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from tests.traces import Trace, decode, mixed

READ = """
import json, resource, sys, time
from pathlib import Path
from diagnose.sources.trace import read_trace
from diagnose.profile_steps import step_records
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
began, cpu = time.perf_counter(), time.process_time()
profile = read_trace(Path(sys.argv[1]))
seconds, cpu = time.perf_counter() - began, time.process_time() - cpu
records = step_records(profile)
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
print(json.dumps({"seconds": seconds, "cpu_seconds": cpu, "peak_mib": peak / 1024, "grown_mib": (peak - before) / 1024,
                  "kernels": profile.num_kernels, "events": profile.num_events, "records": len(records)}))
"""
IJSON = """
import json, resource, sys, time
import ijson
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
began, cpu = time.perf_counter(), time.process_time()
with open(sys.argv[1], "rb") as file:
    events = sum(1 for _ in ijson.items(file, "traceEvents.item", use_float=True))
seconds, cpu = time.perf_counter() - began, time.process_time() - cpu
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
print(json.dumps({"seconds": seconds, "cpu_seconds": cpu, "peak_mib": peak / 1024, "grown_mib": (peak - before) / 1024,
                  "events": events}))
"""


def generate(path: Path, megabytes: float) -> None:
    """Repeats the events of some steps, each time later and with new correlation ids."""
    trace = Trace(layers=32)
    with path.open("w") as file:
        file.write(json.dumps(trace.header)[:-1] + ', "traceEvents": [\n')
        number = 0
        while file.tell() < megabytes * 1e6:
            trace.events = []
            trace.run([mixed(8 + number % 4, 512) if number % 8 == 7 else decode(8 + number % 4)])
            file.write("".join(f"{json.dumps(event, indent=2)},\n" for event in trace.events))
            number += 1
        file.write('{"ph": "i", "name": "Record Window End", "ts": 1, "s": "g"}\n], "traceName": "t.json"}')


def measure(program: str, path: Path) -> dict[str, Any] | None:
    done = subprocess.run([sys.executable, "-c", program, str(path)], capture_output=True, text=True, check=False)
    if done.returncode:
        print(done.stderr.splitlines()[-1], file=sys.stderr)
        return None
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--megabytes", type=float, default=100)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    rows: dict[str, dict[str, Any]] = {}
    with tempfile.TemporaryDirectory() as folder:
        plain, zipped = Path(folder) / "t.json", Path(folder) / "t.json.gz"
        generate(plain, options.megabytes)
        with plain.open("rb") as source, gzip.open(zipped, "wb", compresslevel=6) as target:
            shutil.copyfileobj(source, target)
        size = plain.stat().st_size / 1e6
        print(f"{size:.0f} MB, gzip {zipped.stat().st_size / 1e6:.1f} MB; MB/s are of the unpacked file\n")
        print(f"{'reader':<16}{'MB/s':>8}{'MB/CPU s':>10}{'seconds':>10}{'peak MiB':>10}{'events':>12}")
        for name, program, path in (("plain", READ, plain), ("gzip", READ, zipped), ("ijson, plain", IJSON, plain)):
            found = measure(program, path)
            if found is None:
                continue
            row = found | {
                "mb_per_second": size / found["seconds"],
                "mb_per_cpu_second": size / found["cpu_seconds"],
            }
            rows[name] = row
            speeds = f"{row['mb_per_second']:>8.0f}{row['mb_per_cpu_second']:>10.0f}{row['seconds']:>10.2f}"
            print(f"{name:<16}{speeds}{row['peak_mib']:>10.0f}{row['events']:>12,}")
    if options.json is not None:
        options.json.write_text(json.dumps({"megabytes": size, "readers": rows}, indent=2) + "\n")


if __name__ == "__main__":
    main()
