"""Inputs for incidents of which only numbers are posted: a server's pages, a client's table, lines of a log."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from diagnose.observation import Observation
from diagnose.sources.files import read_files
from tests.diagnose.test_cases import Posted

BOUNDS = (
    0.001,
    0.005,
    0.01,
    0.015,
    0.02,
    0.025,
    0.04,
    0.05,
    0.06,
    0.075,
    0.1,
    0.15,
    0.25,
    0.5,
    1,
    2.5,
    5,
    10,
    20,
    40,
    80,
    160,
    320,
)
Seconds = Mapping[float, float]
"""How often a duration was observed."""


@dataclass(frozen=True)
class Window:
    """What two pages of a server show: growth, levels and durations, by the engine's own names."""

    prefix: str
    seconds: float
    counters: Mapping[str, float] = field(default_factory=dict)
    gauges: Mapping[str, float] = field(default_factory=dict)
    durations: Mapping[str, Seconds] = field(default_factory=dict)

    def files(self) -> list[str]:
        return [self._page(0.0, 1_796_011_200), self._page(1.0, 1_796_011_200 + self.seconds)]

    def _page(self, share: float, unix: float) -> str:
        lines = [f"# scraped_at_unix {unix}"]
        lines += [f"{self.prefix}{name} {1000 + share * value}" for name, value in self.counters.items()]
        lines += [f"{self.prefix}{name} {value}" for name, value in self.gauges.items()]
        for name, seen in self.durations.items():
            metric, _, labels = (self.prefix + name).partition("{")
            inner = labels.rstrip("}") + "," if labels else ""
            tail = "{" + labels if labels else ""
            counts = [sum(count for value, count in seen.items() if value <= bound) for bound in BOUNDS]
            lines += [f'{metric}_bucket{{{inner}le="{b}"}} {share * n}' for b, n in zip(BOUNDS, counts, strict=True)]
            total = sum(seen.values())
            lines.append(f'{metric}_bucket{{{inner}le="+Inf"}} {share * total}')
            lines.append(f"{metric}_count{tail} {share * total}")
            lines.append(f"{metric}_sum{tail} {share * sum(value * count for value, count in seen.items())}")
        return "\n".join(lines) + "\n"


Input = Window | Sequence[str]
"""A server's window, or texts that are a file each."""


@dataclass(frozen=True)
class Numbers:
    given: Input
    expected: Posted
    baseline: Input | None = None


def bench(*, ttft: tuple[float, float], tpot: tuple[float, float], seconds: float = 60.0) -> list[str]:
    """Mean and p99 in milliseconds."""
    return [
        f"============ Serving Benchmark Result ============\nBenchmark duration (s): {seconds}\n"
        f"Mean TTFT (ms): {ttft[0]}\nP99 TTFT (ms): {ttft[1]}\nMean TPOT (ms): {tpot[0]}\nP99 TPOT (ms): {tpot[1]}\n"
    ]


def iterations(paused: Sequence[int], *, used: int = 9_900, total: int = 10_000) -> list[str]:
    """Records of TensorRT-LLM, one per step."""
    return [
        json.dumps(
            [
                {
                    "iter": n,
                    "iterLatencyMS": 25.0,
                    "numActiveRequests": 32,
                    "numQueuedRequests": 4,
                    "kvCacheStats": {"maxNumBlocks": total, "freeNumBlocks": total - used, "usedNumBlocks": used},
                    "inflightBatchingStats": {
                        "numScheduledRequests": 32 - held,
                        "numContextRequests": 0,
                        "numGenRequests": 32 - held,
                        "numPausedRequests": held,
                        "numCtxTokens": 0,
                    },
                }
                for n, held in enumerate(paused)
            ]
        )
    ]


def sglang(stall: float, *, prefills: int, waiting: int = 0, before: int = 12) -> list[str]:
    """One stream at 60 tokens/s, a line per 40 tokens, and a prompt of so many chunks before the last lines."""
    pace = (
        "[2026-11-03 15:{:02}:{:02} TP0] {} batch, {} #running-req: 1, {}token usage: 0.20, {}#queue-req: "
        + f"{waiting}, "
    )
    lines, at = [], 0.0

    def add(kind: str, one: str, two: str, three: str) -> None:
        lines.append(pace.format(int(at) // 60, int(at) % 60, kind, one, two, three))

    for n in range(before + 6):
        if n == before:
            for _ in range(prefills):
                at += stall / prefills
                add("Prefill", "#new-seq: 1, #new-token: 3456, #cached-token: 0,", "", "")
        at += 40 / 60
        slow = 40 / (stall + 40 / 60) if n == before else 60.0
        add("Decode", "", "#token: 900, ", f"cuda graph: True, gen throughput (token/s): {slow:.2f}, ")
    return ["\n".join(lines)]


def tgi(
    *, queue: float, inference: float, decode: float, size: int, waiting: int, forward: float | None = None
) -> Window:
    """Means in seconds, of 300 requests and 2400 decode batches."""
    durations: dict[str, Seconds] = {
        "request_queue_duration": {queue: 300},
        "request_duration": {queue + inference: 300},
        'batch_inference_duration{method="decode"}': {decode: 2400},
    }
    if forward is not None:
        durations['batch_forward_duration{method="decode"}'] = {decode: 2400}
        durations['batch_inference_duration{method="prefill"}'] = {inference: 300}
        durations['batch_forward_duration{method="prefill"}'] = {forward: 300}
    return Window("tgi_", 300, {"request_success": 300}, {"queue_size": waiting, "batch_current_size": size}, durations)


def vllm(seconds: float, counters: Mapping[str, float], gauges: Mapping[str, float], **durations: Seconds) -> Window:
    return Window("vllm:", seconds, counters, gauges, {f"{name}_seconds": seen for name, seen in durations.items()})


def observed(given: Input, directory: Path) -> Observation:
    texts_ = given.files() if isinstance(given, Window) else _one(given)
    directory.mkdir()
    names = []
    for index, text in enumerate(texts_):
        path = directory / f"{index}.txt"
        path.write_text(text + "\n")
        names.append(str(path))
    return read_files(names, None).observation()


def _one(given: Sequence[str]) -> list[str]:
    """Lines of a log are one file."""
    return list(given) if len(given) == 1 else ["\n".join(given)]
