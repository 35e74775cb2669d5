"""Logs as people have them: wrapped, coloured, prefixed, in JSON, endless, and in what order things happened."""

import gzip
import io
import json
import sys
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import pytest

from diagnose.errors import SourceError
from diagnose.observation import Cut, Span, When
from diagnose.signals import Signals
from diagnose.sources import engine_log
from diagnose.sources.engine_log import EngineLog, looks_like_log, read_log
from diagnose.sources.files import read_files
from diagnose.sources.log_signals import LogEvidence
from diagnose.sources.steps import histogram_of

V1 = (
    "(APIServer pid=7) INFO 11-30 04:{:02}:{:02} [loggers.py:335] Engine 000: Avg prompt throughput: 8.0 tokens/s, "
    "Avg generation throughput: 30.0 tokens/s, Running: 5 reqs, Waiting: 3 reqs, GPU KV cache usage: 93.8%, "
    "Prefix cache hit rate: 12.5%"
)
V0 = (
    "INFO 11-03 12:33:{:02} metrics.py:349] Avg prompt throughput: 0.0 tokens/s, Avg generation throughput: 7220.5 "
    "tokens/s, Running: 2 reqs, Swapped: 1 reqs, Pending: 98 reqs, GPU KV cache usage: 73.8%, CPU KV cache usage: 5.0%."
)
STEP = (
    "(APIServer pid=7) INFO 11-30 04:00:50 [loggers.py:199] Engine 000: Iteration({}): {} context requests, {} context "
    "tokens, {} generation requests, {} generation tokens, iteration elapsed time: {} ms, GPU KV cache usage: 0.6%"
)


def signals(*lines: str, span: Span | None = None, newest: float | None = None) -> Signals:
    return LogEvidence(read_log("log", lines, newest)).signals(span)


def test_the_periodic_line_of_v1():
    found = signals(*(V1.format(0, 10 * n) for n in range(3)))
    assert found.length_seconds == 30
    assert (found.delta("tokens_prefill"), found.delta("tokens_decode")) == (240, 900)
    assert (found.last("running"), found.last("waiting")) == (5, 3)
    assert found.last("pool_usage") == pytest.approx(0.938)
    assert found.counters["tokens_prefill"].late
    assert not found.counters["tokens_decode"].late


def test_the_periodic_line_of_v0_and_its_swap_space():
    """Every 5 s; the second usage is that of the swap space."""
    found = signals(V0.format(34), V0.format(39))
    assert found.length_seconds == 10
    assert found.delta("tokens_decode") == 72205
    assert (found.last("waiting"), found.last("swapped"), found.last("pool_usage")) == (98, 1, 0.738)


def test_a_silence_of_an_idle_engine_is_not_work():
    """Idle engines write no line: a rate holds for its own interval."""
    found = signals(V1.format(0, 0), V1.format(0, 10), V1.format(30, 0))
    assert found.delta("tokens_decode") == 900
    assert found.length_seconds == 1810


def test_preemptions_of_the_line_and_of_the_warnings():
    line = V1.format(0, 0).replace("GPU KV", "Preemptions: 4, GPU KV")
    assert signals(line, line).delta("preemptions") == 8
    warning = (
        "WARNING 11-03 12:33:41 scheduler.py:1483] Sequence group a is preempted by PreemptionMode.SWAP mode because there is "
        "not enough KV cache space. total_num_cumulative_preemption={}"
    )
    assert signals(V0.format(34), warning.format(51)).delta("preemptions") == 51


def test_engines_of_one_server_add_up_and_the_fullest_one_counts():
    other = V1.replace("Engine 000", "Engine 001").replace("93.8%", "20.0%")
    found = signals(V1.format(0, 0), other.format(0, 0), V1.format(0, 10), other.format(0, 10))
    assert found.last("running") == 10
    assert found.last("pool_usage") == pytest.approx(0.938)
    assert found.delta("tokens_decode") == 1200
    assert found.length_seconds == 20


def test_iteration_lines_are_step_durations_by_kind():
    found = signals(
        STEP.format(0, 1, 500, 0, 0, 900.0),
        *(STEP.format(n, 0, 0, 4, 4, 200.0) for n in range(1, 11)),
        STEP.format(11, 1, 508, 4, 4, 700.0),
        STEP.format(12, 0, 0, 4, 69, 400.0),
    )
    kinds = {
        name: found.histograms[name].count for name in ("step_prefill", "step_decode", "step_mixed", "step_recompute")
    }
    assert kinds == {"step_prefill": 1, "step_decode": 10, "step_mixed": 1, "step_recompute": 1}
    assert found.delta("tokens_prefill") == 1008
    assert found.delta("tokens_recompute") == 65
    assert found.delta("stall_prefill_seconds") == pytest.approx(0.5)
    assert found.histograms["step_mixed"].mean == pytest.approx(0.7)


def test_speculation_is_not_taken_for_recompute():
    found = signals(*(STEP.format(n, 0, 0, 4, 9, 200.0) for n in range(20)))
    assert "tokens_recompute" not in found.counters
    assert "preemptions" not in found.counters
    assert found.histograms["step_decode"].count == 20


def test_start_up_lines_state_settings():
    lines = [
        "INFO 11-30 04:00:00 [core.py:133] Initializing a V1 LLM engine (v0.32.0) with config: model='/srv/m', "
        "dtype=torch.bfloat16, max_seq_len=512, served_model_name=smol, enable_prefix_caching=True, x=1",
        "INFO 11-30 04:00:00 [api_utils.py:286] non-default args: {'max_num_seqs': 16, 'block_size': 32}",
        "INFO 11-30 04:00:00 [scheduler.py:307] Chunked prefill is enabled with max_num_batched_tokens=512.",
        "INFO 11-30 04:00:00 [kv_cache_utils.py:2327] GPU KV cache size: 1,056 tokens, Maximum concurrency for 512 tokens "
        "per request: 2.06x",
    ]
    log = read_log("log", lines)
    assert log.engine is not None and log.engine.engine == "vllm"
    found = LogEvidence(log).signals(None)
    gauges = {name: gauge.last for name, gauge in found.gauges.items()}
    assert gauges == {"max_sequences": 16, "block_size": 32, "max_batched_tokens": 512, "pool_tokens": 1056}
    assert found.info["version"] == "0.32.0"
    assert (found.info["model"], found.info["dtype"], found.info["prefix_cache"]) == ("smol", "bfloat16", "True")


EVENTS = {
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.": "out_of_memory",
    "(EngineCore pid=3) ERROR 11-30 04:00:00 [core.py:1] EngineCore encountered a fatal error.": "engine_dead",
    "vllm.v1.engine.exceptions.EngineDeadError: EngineCore encountered an issue.": "engine_dead",
    "[rank0]:[E822 17:48:16 ProcessGroupNCCL.cpp:632] [Rank 0] Watchdog caught collective operation timeout: W": (
        "collective_timeout"
    ),
    "2026-11-30 17:13:38,909 ERROR stallscope.engine: step failed (oom), 2 requests ended with an error": "out_of_memory",
    "2026-11-30 17:13:40,310 CRITICAL stallscope.engine: engine dead: 3 forward passes in a row failed": "engine_dead",
    "2026-11-30 17:13:40,310 ERROR stallscope.server: connection dropped in the middle of a stream: CutOff: x": (
        "connection_dropped"
    ),
    "ERROR 11-30 04:00:00 CUDA error: an illegal memory access was encountered": "device_error",
}


@pytest.mark.parametrize(
    ("line", "kind"), EVENTS.items(), ids=[f"{kind}-{number}" for number, kind in enumerate(EVENTS.values())]
)
def test_failures_are_events_and_are_counted(line, kind):
    log = read_log("log", [V1.format(0, 0), line])
    assert [event.kind for event in log.events] == [kind]
    assert LogEvidence(log).signals(None).failures == {kind: 1.0}


def test_events_keep_their_order():
    """What came first is evidence; the events of a traceback have the time of the line above it."""
    log = read_log(
        "log",
        [
            "WARNING 11-03 12:33:41 scheduler.py:1] Sequence group a is preempted by PreemptionMode.RECOMPUTE mode because",
            "ERROR 11-03 12:33:45 [core.py:1] EngineCore failed",
            "Traceback (most recent call last):",
            '  File "a.py", line 1, in f',
            "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.",
            "ERROR 11-03 12:33:46 [core.py:1] EngineDeadError",
        ],
    )
    assert [event.kind for event in log.events] == ["preempted", "out_of_memory", "engine_dead"]
    times = [event.unix for event in log.events]
    assert times == sorted(times)
    assert times[-1] - times[0] == 5


# ---- what surrounds a line


@pytest.mark.parametrize("width", [40, 80, 97, 120, 200])
def test_lines_that_a_terminal_has_cut(width):
    lines = []
    for n in range(3):
        text = V1.format(0, 10 * n)
        lines += [text[at : at + width].rstrip() for at in range(0, len(text), width)]
    found = signals(*lines)
    assert (found.delta("tokens_decode"), found.last("running"), found.last("waiting")) == (900, 5, 3)
    assert found.last("pool_usage") == pytest.approx(0.938)


def docker(text: str, n: int) -> list[str]:
    stamp = f"2026-11-30T04:00:{10 * n:02}.123456789Z"
    half = len(text) // 2
    parts = (text[:half], text[half:] + "\n")
    return [json.dumps({"log": part, "stream": "stderr", "time": stamp}) for part in parts]


def cri(text: str, n: int) -> list[str]:
    stamp = f"2026-11-30T04:00:{10 * n:02}.123456789Z stderr"
    return [f"{stamp} P {text[:50]}", f"{stamp} F {text[50:]}"]


def journal(text: str, n: int) -> list[str]:
    return [json.dumps({"MESSAGE": text, "__REALTIME_TIMESTAMP": str((1_796_011_200 + 10 * n) * 1_000_000)})]


WRAPPERS = {
    "plain": lambda text, n: [text],
    "docker": docker,
    "cri": cri,
    "journald json": journal,
    "journal": lambda text, n: [f"Nov 30 04:00:{10 * n:02} host vllm[12]: {text}"],
    "kubectl --timestamps": lambda text, n: [f"2026-11-30T04:00:{10 * n:02}.5Z {text}"],
    "compose": lambda text, n: [f"vllm-1  | {text}"],
    "ansi": lambda text, n: [f"\x1b[0;36m(EngineCore_0 pid=9)\x1b[0;0m \x1b[32m{text}\x1b[0m"],
    "multi-process": lambda text, n: [f"(Worker_DP0_TP1 pid=12) {text}"],
    "windows": lambda text, n: [text + "\r"],
}


@pytest.mark.parametrize("wrap", WRAPPERS.values(), ids=WRAPPERS.keys())
def test_what_is_around_a_line_is_taken_off(tmp_path, wrap):
    lines = [line for n in range(3) for line in wrap(V1.format(0, 10 * n), n)]
    path = tmp_path / "engine.log"
    path.write_text("\n".join(lines) + "\n")
    (source,) = read_files([str(path)], None).others
    found = source.signals(None)
    assert (found.delta("tokens_decode"), found.last("running"), found.length_seconds) == (900, 5, 30)


def test_a_stamp_without_a_year_is_of_the_past():
    """A log written in December and read in January."""
    january = 1_767_916_800.0  # 2026-01-09
    log = read_log(
        "log", [V1.format(0, 0).replace("11-30", "12-31"), V1.format(0, 10).replace("11-30", "01-01")], january
    )
    assert log.first_unix is not None and log.last_unix is not None
    assert log.last_unix - log.first_unix == 86_410
    assert log.last_unix < january


def test_since_and_until_take_lines_out_but_not_settings(tmp_path):
    path = tmp_path / "engine.log"
    fact = "INFO 11-30 03:00:00 [scheduler.py:307] Chunked prefill is enabled with max_num_batched_tokens=512."
    path.write_text("\n".join([fact, *(V1.format(n, 0) for n in range(10))]))
    all_of_it = read_files([str(path)], None).others[0].signals(None)
    log = read_log("log", path.read_text().split("\n"))
    start = (log.last_unix or 0) - 120
    (source,) = read_files([str(path)], None, Cut(When(start, is_unix=True), When(start + 60, is_unix=True))).others
    found = source.signals(None)
    assert len(all_of_it.gauges["running"].values) == 10
    assert len(found.gauges["running"].values) == 2
    assert found.last("max_batched_tokens") == 512


def test_a_log_is_streamed(monkeypatch):
    """Of a log without end the latest lines are kept; memory does not grow with it."""
    monkeypatch.setattr(engine_log, "_MAX_KEPT", 100)

    def endless() -> Iterator[str]:
        n = 0
        while True:
            yield STEP.format(n, 0, 0, 4, 4, 200.0)
            n += 1

    log = EngineLog("log")
    assert log.steps.maxlen == 100
    log = read_log("log", islice(endless(), 5_000))
    assert (log.num_steps, len(log.steps)) == (5_000, 100)


def test_gz_and_standard_input(monkeypatch, tmp_path):
    text = "\n".join(V1.format(0, 10 * n) for n in range(3))
    path = tmp_path / "log.gz"
    path.write_bytes(gzip.compress(text.encode()))
    assert read_files([str(path)], None).others[0].signals(None).delta("tokens_decode") == 900
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(gzip.compress(text.encode()))))
    assert read_files(["-"], None).others[0].signals(None).delta("tokens_decode") == 900
    path.write_bytes(gzip.compress(text.encode())[:-10])
    with pytest.raises(SourceError, match="the gzip data is damaged or was cut off"):
        read_files([str(path)], None)


def test_a_log_of_something_else(tmp_path):
    path = tmp_path / "access.log"
    path.write_text("".join(f"2026-11-30 04:00:0{n} INFO request served\n" for n in range(5)))
    with pytest.raises(SourceError, match=r"a log \(5 lines\), but none of them is one that this version reads"):
        read_files([str(path)], None)


def test_lines_without_end_do_not_fill_the_memory(tmp_path):
    path = tmp_path / "big.log"
    with path.open("w") as file:
        file.write(V1.format(0, 0) + "\n")
        file.write("x" * 5_000_000 + "\n")
        file.write(V1.format(0, 10) + "\n")
    (source,) = read_files([str(path)], None).others
    assert source.signals(None).delta("tokens_decode") == 600


def test_text_is_not_a_log():
    assert not looks_like_log("Dear all,\nthe server is slow.\nRegards\n")
    assert looks_like_log(V1.format(0, 0))


def test_values_as_a_histogram_keep_sum_count_and_quantiles():
    values = [0.2] * 98 + [7.0, 7.5]
    histogram = histogram_of(values, "x")
    assert histogram.count == 100
    assert histogram.sum == pytest.approx(sum(values))
    p50, p99 = histogram.quantile(0.5), histogram.quantile(0.99)
    assert p50 is not None and p99 is not None
    assert (p50.high, p99.high) == (0.2, 7.0)
    many = histogram_of([float(n) for n in range(10_000)], "x")
    assert many.count == 10_000
    assert len(many.bounds) <= 501


def test_real_logs(tmp_path):
    """The whole log of a real server is read the same from a file, gzipped or not, and through a container runtime."""
    path = Path(__file__).resolve().parent.parent / "data/vllm/engine-kv.log.gz"
    text = gzip.decompress(path.read_bytes()).decode()
    plain = tmp_path / "kv.log"
    plain.write_text("".join(f"2026-11-30T04:00:00.5Z stdout F {line}\n" for line in text.split("\n")))
    first, second = (read_files([str(name)], None).others[0].signals(None) for name in (path, plain))
    assert first.gauges["running"].values == second.gauges["running"].values
    assert first.histograms["step_decode"] == second.histograms["step_decode"]
