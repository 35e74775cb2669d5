"""What a diagnosis of a fleet through a Prometheus costs: `python -m tests.benchmarks.prometheus_source`. Asserts nothing.

A real Prometheus serves backfilled pages of our engine, one target per replica, ten minutes long. Beside the diagnosis the last
rows pull one histogram's raw buckets of the same window: what a reader does that does not sum on the server.
"""

import argparse
import json
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import urllib3

from diagnose.commands.diagnose import judge
from diagnose.exposition import ExpositionParser
from diagnose.sources.http import Endpoint
from diagnose.sources.prometheus import read_prometheus
from diagnose.sources.prometheus_api import PrometheusApi
from diagnose.sources.promql import parse_selector
from tests.builders import START_UNIX, Engine, make_steps, with_prefill
from tests.diagnose.prometheus_server import MISSING, REASON, backfill, serve

WINDOW_SECONDS = 600.0
ROUNDS = 3
Row = tuple[str, float, str]


def fleet(replicas: int, step: float) -> Iterator[str]:
    """Every replica does the same, and the first one has a queue."""
    count = round(WINDOW_SECONDS / step) + 1
    engine, records = Engine(), make_steps(5 * count, with_prefill(5, 1500))
    for index in range(count):
        engine.run(records[5 * index : 5 * index + 5])
        engine.requests(2, 0.5, 0.1)
        unix = START_UNIX + index * step
        page = [line for line in engine.page(num_running=4).splitlines() if line and not line.startswith("#")]
        split = [(series.removesuffix("}"), value) for series, _, value in (line.rpartition(" ") for line in page)]
        for replica in range(replicas):
            labels = f'job="llm",instance="10.{replica >> 8}.{replica & 255}.1:8000"'
            for series, value in split:
                yield f"{series}{',' if '{' in series else '{'}{labels}}} {value} {unix:.0f}\n"
    yield "# EOF\n"


def diagnosis(url: str) -> list[Row]:
    rows: list[Row] = []
    walls, cpus = [], []
    for _ in range(ROUNDS):
        api = PrometheusApi(Endpoint(url, 120.0))
        wall, cpu = time.perf_counter(), time.process_time()
        observation = read_prometheus(
            api, parse_selector('job="llm"'), START_UNIX + WINDOW_SECONDS, WINDOW_SECONDS
        ).observation()
        walls.append(time.perf_counter() - wall)
        judge(observation, None, (), is_live=False, target="fleet")
        cpus.append(time.process_time() - cpu)
        (evidence,) = observation.others
        replicas = len(evidence.signals(None).replicas)
        rows = [("replicas found", replicas, ""), ("queries", api.num_queries, "")]
    return [
        *rows,
        ("asking, first time", walls[0], "s wall"),
        ("asking, best", min(walls), "s wall"),
        ("asking and judging, best", min(cpus), "s CPU of ours"),
    ]


def raw(url: str) -> list[Row]:
    """The buckets of one histogram, every series of it, at 30 s."""
    fields = {
        "query": 'stallscope_inter_token_latency_seconds_bucket{job="llm"}',
        "start": f"{START_UNIX:.0f}",
        "end": f"{START_UNIX + WINDOW_SECONDS:.0f}",
        "step": "30",
    }
    wall, cpu = time.perf_counter(), time.process_time()
    body = (
        urllib3.PoolManager()
        .request_encode_body("POST", f"{url}/api/v1/query_range", fields, encode_multipart=False)
        .data
    )
    decoded = json.loads(body)
    assert decoded["status"] == "success", decoded
    return [
        ("one histogram, raw: answer", len(body) / 2**20, "MiB"),
        ("one histogram, raw", time.perf_counter() - wall, "s wall"),
        ("one histogram, raw", time.process_time() - cpu, "s CPU of ours"),
    ]


def of_server(url: str, metric: str) -> float:
    """What the server says of its own process."""
    value = ExpositionParser().parse(Endpoint(url).get("/metrics")).value(metric)
    assert value is not None, metric
    return value


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--replicas", type=int, default=1000)
    parser.add_argument("--step", type=float, default=60.0, help="seconds between scrapes")
    parser.add_argument("--json", type=Path, help="also write the rows to this file")
    options = parser.parse_args()
    if MISSING:
        raise SystemExit(REASON)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        data = backfill(folder, fleet(options.replicas, options.step))
        with serve(folder, data) as url:
            before = of_server(url, "process_cpu_seconds_total")
            rows = diagnosis(url)
            spent = (of_server(url, "process_cpu_seconds_total") - before) / ROUNDS
            rows.append(("asking, mean", spent, "s CPU of the server"))
            rows.append(("server", of_server(url, "process_resident_memory_bytes") / 2**20, "MiB RSS"))
            rows += raw(url)
    for label, value, unit in rows:
        print(f"{label:<32}{value:>10.2f} {unit}")
    if options.json:
        options.json.write_text(json.dumps([{"name": n, "value": v, "unit": u} for n, v, u in rows], indent=1) + "\n")


if __name__ == "__main__":
    main()
