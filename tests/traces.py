"""Traces as torch's profiler writes them, of an engine whose steps are known: for tests and the import benchmark.

Layout and field order are those of torch 2.13 with CPU and CUDA activities: metadata events first, the annotation and the
launches on the host's thread, then kernels with the launch's correlation id, and the annotation again on the device's clock.
"""

import gzip
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

BASE_US = 5_173_252_277_000.0
"""Boot time in microseconds: as large as on a host that has been up for weeks."""

GEMM = "nvjet_tst_128x24_64x11_2x1_v_bz_TNT"
GEMM_BIG = "nvjet_tst_192x192_64x4_2x1_v_bz_coopB_TNT"
FA3 = (
    "void cutlass::device_kernel<flash::enable_sm90_or_later<flash::FlashAttnFwdSm90<flash::CollectiveMainloopFwdSm90<2, "
    "cute::tuple<cute::C<1>, cute::C<1>, cute::C<1> >, cute::tuple<cute::C<{rows}>, cute::C<128>, cute::C<128> >, 128, "
    "cutlass::bfloat16_t, float, cutlass::arch::Sm90, true, false, false, true, true, false, false, true, true, true, "
    "false, false> > > >(flash::Params)"
)
KV_WRITE = "void vllm::reshape_and_cache_flash_kernel<__nv_bfloat16, __nv_bfloat16, (vllm::Fp8KVCacheDataType)0>(...)"
NORM = "void vllm::fused_add_rms_norm_kernel<c10::BFloat16, 8>(c10::BFloat16*, c10::BFloat16*, float, int, int)"
ACT = "void vllm::act_and_mul_kernel<c10::BFloat16, true>(c10::BFloat16*, c10::BFloat16 const*, int)"
ROPE = "void vllm::rotary_embedding_kernel<c10::BFloat16, true>(long const*, c10::BFloat16*, c10::BFloat16*)"
SAMPLE = "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float, at::native::ArgMaxOps<float>, ...>"
ALL_REDUCE = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
COPY_OUT = "Memcpy DtoH (Device -> Pinned)"


@dataclass(frozen=True, slots=True)
class Step:
    """One step of the traced engine. Microseconds."""

    name: str
    """The annotation."""
    decodes: int = 8
    prefill_tokens: int = 0
    idle_us: float = 100.0
    """Device idle before it, since the host launches late."""
    comm_us: float = 0.0
    """Per layer."""
    slow: float = 1.0
    """Factor on every kernel of it."""
    in_graph: bool = False
    """Replayed: one launch for all kernels."""


def decode(batch: int = 8, **over: Any) -> Step:
    return Step(f"execute_context_0(0)_generation_{batch}({batch})", batch, **over)


def mixed(batch: int = 8, tokens: int = 1500, **over: Any) -> Step:
    return Step(f"execute_context_1({tokens})_generation_{batch}({batch})", batch, tokens, **over)


def sglang_decode(batch: int = 8, **over: Any) -> Step:
    return Step(f"step[DECODE bs={batch}]", batch, **over)


def sglang_extend(prompts: int = 1, tokens: int = 1500, **over: Any) -> Step:
    return Step(f"step[EXTEND bs={prompts} toks={tokens}]", 0, tokens, **over)


@dataclass(slots=True)
class Trace:
    """Runs steps one after the other and writes what the profiler would have seen."""

    layers: int = 4
    rank: int | None = None
    host_annotations: bool = True
    device_annotations: bool = True
    skip_kernels: frozenset[str] = frozenset()
    """Kernel names that the profiler lost."""
    skip_every: int = 0
    """Every which kernel it lost besides."""
    with_cpu_ops: bool = True
    events: list[dict[str, Any]] = field(default_factory=list)
    _now: float = BASE_US
    _correlation: int = 1000
    _count: int = 0

    def run(self, steps: Iterable[Step]) -> "Trace":
        for step in steps:
            self._step(step)
        return self

    def _step(self, step: Step) -> None:
        launched = self._now + step.idle_us - 5
        begin = launched - 20
        at = first = self._now + step.idle_us
        if self.with_cpu_ops:
            self._host("cpu_op", "aten::linear", begin + 1, 3, {"External id": self._count, "Sequence number": 7})
        graph = self._next_correlation() if step.in_graph else None
        if graph is not None:
            self._launch("cudaGraphLaunch", launched, graph)
        for name, grid, duration in self._kernels(step):
            correlation = graph
            if correlation is None:
                correlation = self._next_correlation()
                self._launch("cudaMemcpyAsync" if name == COPY_OUT else "cudaLaunchKernel", launched, correlation)
            at += self._kernel(name, grid, at, duration * step.slow, correlation)
        if self.host_annotations:
            self._host("user_annotation", step.name, begin, 40, {"External id": self._count})
        if self.device_annotations:
            self._device("gpu_user_annotation", step.name, first, at - first, {"External id": self._count})
        self._host("cuda_runtime", "cudaEventSynchronize", launched + 10, at - launched, {"cbid": 1})
        self._now = at

    def _kernels(self, step: Step) -> Iterator[tuple[str, int, float]]:
        tokens = step.decodes + step.prefill_tokens
        rows = 64 if not step.prefill_tokens else 128
        gemm = GEMM_BIG if step.prefill_tokens else GEMM
        for _ in range(self.layers):
            yield NORM, tokens, 2
            yield gemm, 132, 20 + 0.02 * tokens
            yield ROPE, tokens, 2
            yield KV_WRITE, tokens, 3
            yield FA3.format(rows=rows), 132, 10 + 2 * step.decodes + 0.05 * step.prefill_tokens
            yield gemm, 132, 15 + 0.02 * tokens
            if step.comm_us:
                yield ALL_REDUCE, 24, step.comm_us
            yield ACT, tokens, 2
            yield gemm, 132, 40 + 0.05 * tokens
        yield SAMPLE, 1, 8
        yield COPY_OUT, 0, 1

    def _kernel(self, name: str, grid: int, at: float, duration: float, correlation: int) -> float:
        self._count += 1
        lost = name in self.skip_kernels or (self.skip_every and self._count % self.skip_every == 0)
        if not lost:
            args: dict[str, Any] = {"External id": self._count, "device": 0, "context": 1, "stream": 7}
            args |= {"correlation": correlation}
            if name != COPY_OUT:
                args |= {"registers per thread": 168, "grid": [grid, 1, 1], "block": [384, 1, 1], "warps per SM": 12.4}
            self._device("gpu_memcpy" if name == COPY_OUT else "kernel", name, at, duration, args)
        return duration

    def _next_correlation(self) -> int:
        self._correlation += 1
        return self._correlation

    def _launch(self, name: str, at: float, correlation: int) -> None:
        self._host("cuda_runtime", name, at, 4, {"External id": self._count, "cbid": 211, "correlation": correlation})

    def _host(self, category: str, name: str, at: float, duration: float, args: dict[str, Any]) -> None:
        self._event(category, name, 4242, 4242, at, duration, args)

    def _device(self, category: str, name: str, at: float, duration: float, args: dict[str, Any]) -> None:
        self._event(category, name, 0, 7, at, duration, args)

    def _event(
        self, category: str, name: str, pid: int, tid: int, at: float, duration: float, args: dict[str, Any]
    ) -> None:
        event = {"ph": "X", "cat": category, "name": name, "pid": pid, "tid": tid}
        self.events.append(event | {"ts": round(at, 3), "dur": round(duration, 3), "args": args})

    @property
    def header(self) -> dict[str, Any]:
        found: dict[str, Any] = {
            "schemaVersion": 1,
            "deviceProperties": [{"id": 0, "name": "NVIDIA H200", "numSms": 132, "computeMajor": 9}],
        }
        if self.rank is not None:
            found["distributedInfo"] = {"backend": "nccl", "rank": self.rank, "world_size": 2}
        return found | {"displayTimeUnit": "ms", "baseTimeNanoseconds": 1790857026000000000}

    def text(self) -> str:
        metadata = {"ph": "M", "name": "process_name", "ts": BASE_US, "pid": 4242, "tid": 0, "args": {"name": "python"}}
        # The profiler writes the host's events before the device's.
        ordered = sorted(self.events, key=lambda event: event["pid"] == 0)
        end = {"ph": "i", "s": "g", "name": "Record Window End", "pid": "", "tid": "", "ts": self._now}
        head = json.dumps(self.header, indent=2)[:-2]
        events = ",\n".join(json.dumps(event, indent=2) for event in [metadata, *ordered, end])
        return f'{head},\n  "traceEvents": [\n{events}\n  ],"traceName": "trace.json" }}'

    def write(self, path: Path) -> Path:
        data = self.text().encode()
        path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
        return path


def steady(count: int = 60, **over: Any) -> list[Step]:
    """Pure decode steps whose batch varies."""
    return [decode(6 + index % 5, **over) for index in range(count)]


def with_prefill(count: int = 80, every: int = 5) -> list[Step]:
    """A chunk of 800 or 1600 tokens in each `every`-th step."""
    return [
        mixed(6 + i % 4, 1600 if i // every % 2 else 800) if i % every == every - 1 else decode(6 + i % 4)
        for i in range(count)
    ]


def prefill_first(count: int = 80, every: int = 5) -> list[Step]:
    """SGLang's order: a prompt is computed in a step of its own, and the streams wait."""
    return [sglang_extend() if i % every == every - 1 else sglang_decode(6 + i % 4) for i in range(count)]


def slower(steps: Iterable[Step], factor: float) -> list[Step]:
    return [replace(step, slow=factor) for step in steps]
