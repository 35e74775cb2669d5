"""Results of load generators as the clients' side, and what they tell beside the engine's own clock."""

import json

import pytest

from diagnose.assembly import assemble
from diagnose.errors import SourceError
from diagnose.observation import observe
from diagnose.policy import DEFAULT_POLICY
from diagnose.sources.bench import read_bench
from diagnose.sources.files import read_files
from probes.recording import Entry

BLOCK = """\
============ Serving Benchmark Result ============
Successful requests:                     100
Benchmark duration (s):                  31.36
Request throughput (req/s):              51.34
---------------Time to First Token----------------
Mean TTFT (ms):                          4212.85
Median TTFT (ms):                        3800.00
P99 TTFT (ms):                           12671.61
-----Time per Output Token (excl. 1st token)------
Mean TPOT (ms):                          19.76
---------------Inter-token Latency----------------
Mean ITL (ms):                           168.08
P99 ITL (ms):                            427.21
==================================================
"""
GENAI = """\
┃                            Statistic ┃       avg ┃      min ┃       max ┃       p99 ┃
│             Time To First Token (ms) │  9,909.68 │ 1,676.80 │ 14,073.58 │ 14,049.07 │
│             Inter Token Latency (ms) │     40.74 │    16.58 │    109.24 │    105.84 │
│ Output Token Throughput (tokens/sec) │    292.03 │      N/A │       N/A │       N/A │
"""
JSON = json.dumps({"duration": 31.36, "mean_ttft_ms": 4212.85, "p99_itl_ms": 427.21, "completed": 100})


@pytest.mark.parametrize(
    ("text", "name", "value"),
    [
        (BLOCK, "client_ttft_p99", 12.67161),
        (BLOCK, "client_itl_mean", 0.16808),
        (BLOCK, "client_ttft_p50", 3.8),
        (GENAI, "client_ttft_mean", 9.90968),
        (GENAI, "client_itl_p99", 0.10584),
        (JSON, "client_ttft_mean", 4.21285),
        ('{"mean_ttft_ms": 1}\n' + JSON, "client_itl_p99", 0.42721),
    ],
)
def test_figures_are_read_in_seconds(tmp_path, text, name, value):
    path = tmp_path / "bench.txt"
    path.write_text(text)
    (source,) = read_files([str(path)], None).others
    assert source.signals(None).last(name) == pytest.approx(value)
    assert "figures of the clients' side" in source.origin


def test_a_block_without_latency(tmp_path):
    path = tmp_path / "bench.txt"
    path.write_text("============ Serving Benchmark Result ============\nSuccessful requests: 1\n")
    with pytest.raises(SourceError, match="a benchmark result without a latency"):
        read_files([str(path)], None)


def test_what_the_clients_saw_beside_what_the_engine_says():
    """168 ms a message at 20 ms a token is eight tokens a message, and no stall."""

    def page(n: int) -> str:
        return (
            "".join(f'vllm:time_to_first_token_seconds_bucket{{le="{le}"}} {n}\n' for le in ("0.5", "+Inf"))
            + f"vllm:time_to_first_token_seconds_sum {n * 0.2}\nvllm:generation_tokens_total {n}\n"
        )

    observation = observe("t", [Entry(1000.0 + 10 * n, "exposition", page(n)) for n in (0, 3)])
    bench = read_bench("bench.txt", BLOCK)
    assert bench is not None
    observation.add_source(bench)
    warnings = assemble(observation, DEFAULT_POLICY).contradictions
    assert warnings == [
        "clients waited 4.21 s for the first token on average, the engine says 200 ms: the rest was lost before or behind the "
        "engine",
        "messages to clients carry about 8.5 tokens each: the clients' inter-token latency is one per message, and no stall",
    ]
