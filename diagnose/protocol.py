"""The four measurements without which a cause must not be acted on, and which of them this window holds."""

from dataclasses import dataclass

from diagnose.case import Case
from diagnose.hypotheses.base import command_for, command_host, command_records, only_traced
from diagnose.hypotheses.pool import bucket_text, occupancy
from diagnose.units import percent
from probes.records import OpClass


@dataclass(frozen=True, slots=True)
class Measurement:
    name: str
    done: bool
    found: str
    """What was measured, or what is lacking."""
    command: str
    """How to get it on this target."""


def checklist(case: Case) -> tuple[Measurement, ...]:
    return (_buckets(case), _steps(case), _host(case), _comparison(case))


def _buckets(case: Case) -> Measurement:
    pool = occupancy(case.signals)
    found = "active, reclaimable and free blocks were not measured as disjoint counts"
    if pool is not None and not pool.is_split:
        found = bucket_text(pool)
    elif pool is not None:
        includes = "includes" if case.signals.free_includes_reclaimable else "does not include"
        found = f"{bucket_text(pool)}; the engine's free count {includes} reclaimable"
    done = pool is not None and pool.is_split
    return Measurement("block buckets", done, found, command_for(case, "blocks"))


def _steps(case: Case) -> Measurement:
    decode, mixed = len(case.analysis.decode_steps), len(case.analysis.mixed_steps)
    done, found = bool(case.analysis.steps), f"{decode} pure decode and {mixed} mixed steps recorded"
    if shares := _device_shares(case):
        found += f"; device time: {shares}"
    if not done:
        histograms = case.signals.histograms
        kinds = [
            k for k in ("decode", "mixed", "prefill") if (h := histograms.get(f"step_{k}")) is not None and h.count
        ]
        found = f"only step duration histograms ({', '.join(kinds)})" if kinds else "no step durations by kind"
    return Measurement("step durations by kind", done, found, command_records(case))


def _device_shares(case: Case) -> str:
    """`gemm 61 %, attention_decode 22 %, ...`, the classes that take a hundredth or more; empty when it is not timed."""
    timed = [record.device_ns for record in case.analysis.steps if record.device_ns is not None]
    sums = [sum(column) for column in zip(*timed, strict=True)]
    total = sum(sums)
    ordered = sorted(zip(OpClass, sums, strict=True), key=lambda item: -item[1]) if total else []
    return ", ".join(f"{op} {percent(ns / total)}" for op, ns in ordered if ns >= 0.01 * total)


def _host(case: Case) -> Measurement:
    if only_traced(case):
        found = "a trace shows between steps how long the device idles, and no scheduling and no lock waits"
        return Measurement("host scheduling and lock", False, found, command_host(case))
    lock, schedule = case.signals.histograms.get("lock_wait"), case.signals.histograms.get("schedule")
    done = bool(case.analysis.steps) or (schedule is not None and schedule.count > 0)
    found = "no host scheduling time"
    if done:
        found = (
            "schedule, prepare, post-process and lock wait per step"
            if case.analysis.steps
            else "schedule time per step"
        )
        if lock is not None and lock.count:
            found += f"; {lock.count:.0f} lock takings timed by site"
    command = command_for(case, "host")
    return Measurement("host scheduling and lock", done, found, command)


def _comparison(case: Case) -> Measurement:
    return Measurement(
        "controlled comparison",
        False,
        "not done: two arms that differ in one knob, in paired blocks, under matched load; record the first arm, change "
        "the knob, then diagnose with --baseline arm-a.rec",
        f"stallscope record {case.address} --for 60s -o arm-a.rec",
    )
