"""Runs every benchmark, one after the other, and keeps what each printed: `python -m tests.benchmarks` (`make bench`).

Tables go to the terminal and to `tests/benchmarks/results/NAME.txt`, figures to `NAME.json` where the benchmark has them.
"""

import subprocess
import sys
from pathlib import Path

RESULTS = Path(__file__).resolve().parent / "results"

# name -> (module and options, option that takes a JSON file)
BENCHMARKS: dict[str, tuple[list[str], str | None]] = {
    "toolkit_speed": (["tests.benchmarks.toolkit_speed"], "--json"),
    "exposition_speed": (["tests.benchmarks.exposition_speed"], "--json"),
    "dashboard_cost": (["tests.benchmarks.dashboard_cost"], "--json"),
    "trace_import": (["tests.benchmarks.trace_import"], "--json"),
    "probe_cost": (["tests.benchmarks.probe_cost"], "--json"),
    "policy_speed": (["tests.benchmarks.policy_speed"], None),
    "recording_cost": (["tests.benchmarks.recording_cost"], "--json"),
    "matrix_products": (["tests.benchmarks.matrix_products"], "--json"),
    "chunk_attention": (["tests.benchmarks.chunk_attention"], "--json"),
    "step_profile": (["tests.benchmarks.step_profile"], "--json"),
    "cpu_engines": (["tests.benchmarks.cpu_engines"], "--json"),
    "experiment_null": (["tests.benchmarks.experiment_null"], "--json"),
    "experiment_proofs": (["tests.benchmarks.experiment_proofs"], None),
    "client_streams": (["tests.benchmarks.client_streams"], "--json"),
    "validate_chunking": (["tests.benchmarks.validate_chunking"], None),
    "kv_overlap": (["tests.benchmarks.kv_overlap"], "--json"),
}


def main() -> int:
    """Exit code 1 when a benchmark failed; the others still run."""
    RESULTS.mkdir(exist_ok=True)
    failed = []
    for name, (module, json_option) in BENCHMARKS.items():
        print(f"== {name}", flush=True)
        json_file = [json_option, str(RESULTS / f"{name}.json")] if json_option else []
        done = subprocess.run(
            [sys.executable, "-m", *module, *json_file], stdout=subprocess.PIPE, text=True, check=False
        )
        print(done.stdout, flush=True)
        if done.returncode:
            failed.append(name)
        else:
            (RESULTS / f"{name}.txt").write_text(done.stdout)
    if failed:
        print(f"failed: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
