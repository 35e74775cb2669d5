"""Situations that several tests judge, each an engine that did something, seen over the wire."""

from dataclasses import replace
from typing import Any

from diagnose.commands.diagnose import judge
from diagnose.decision import Finding
from diagnose.diagnosis import Diagnosis, diagnose
from diagnose.observation import Event, Observation
from diagnose.signals import Signals
from diagnose.slo import parse_reported, parse_slo
from probes.gpu import ThrottleReason
from probes.host_profile import HostProfile, ThreadUse
from probes.records import BlockCensus, DeviceTime
from probes.stack_patterns import Activity, Role
from tests.builders import Engine, Machine, Plan, make_signals, make_steps, varied, watch, with_prefill
from tests.probes.gpus import healthy_gpu

TARGET = "http://127.0.0.1:8000"
FULL = BlockCensus(98, 0, 2)
MOSTLY_FREE = BlockCensus(20, 60, 20)
HIGH_MEMORY = {"total": 100 << 30, "reserved": 98 << 30, "weights": 20 << 30, "kv_pool": 78 << 30}

# A machine on which a decode step is nothing but reading: 32 MB of weights and 1600 bytes a position, at 8 GB/s.
READING = Machine(base_us=4000, per_sequence_us=0, per_context_ns=200)
READING_INFO = {"weight_bytes": "32000000", "kv_bytes_per_token": "1600"}


def look(
    incident: Observation,
    baseline: Observation | None = None,
    *,
    slo: str = "",
    events: tuple[Event, ...] = (),
    live: bool = True,
) -> Diagnosis:
    incident.events += events
    return judge(incident, baseline, parse_slo(slo) if slo else (), is_live=live, target=incident.target)


def verdict(diagnosis: Diagnosis, name: str) -> str:
    return finding(diagnosis, name).verdict.value


def finding(diagnosis: Diagnosis, name: str) -> Finding:
    return next(f for f in diagnosis.findings if f.name == name)


def texts(diagnosis: Diagnosis, name: str) -> str:
    judgement = finding(diagnosis, name).judgement
    lacks = (f"{m.measurement}: {m.decides} $ {m.command}" for m in judgement.missing)
    return "\n".join([*(item.text for item in judgement.evidence), *lacks])


def quiet(**over: Any) -> Observation:
    return watch(make_steps(300, seed=3), **over)


def interference(**over: Any) -> Observation:
    """A prompt of about 1500 tokens in every fifth step."""
    return watch(make_steps(300, with_prefill(5, 1500)), **over)


def long_contexts(**over: Any) -> Observation:
    """Uniformly slow decode, without prefill: contexts ten times as long as in `short_contexts`."""
    return watch(
        make_steps(300, lambda i: Plan(8, 30_000 + 100 * (i * 37 % 200)), READING), **{"info": READING_INFO} | over
    )


def short_contexts(**over: Any) -> Observation:
    return watch(
        make_steps(300, lambda i: Plan(8, 3_000 + 10 * (i * 37 % 200)), READING), **{"info": READING_INFO} | over
    )


def exhaustion(**over: Any) -> Observation:
    """A pool that live sequences fill: every tenth step preempts one, which comes back half a second later."""

    def plan(index: int) -> Plan:
        if index % 10 != 9:
            return varied(index)
        return replace(varied(index), recompute=60, preempted=1, late_ms=(500.0,))

    steps = make_steps(300, plan, census=FULL)
    state: dict[str, Any] = {
        "census": FULL,
        "num_waiting": 3,
        "waiting_by_reason": {"kv_blocks": 3},
        "memory_bytes": HIGH_MEMORY,
    }
    return watch(steps, **(state | over))


def slow_host(**over: Any) -> Observation:
    return watch(make_steps(300, machine=Machine(schedule_us=6000, lock_us=2000)), **over)


def late_collectives(**over: Any) -> Observation:
    """Every eighth step waits 40 ms for another rank, in a kernel that spins."""
    steps = make_steps(300, lambda i: replace(varied(i), disturbed_us=40_000 if i % 8 == 7 else 0))
    timed = [
        record._replace(
            device_ns=DeviceTime(gemm=5_000_000, comm=40_500_000 if i % 8 == 7 else 500_000), forward_cpu_ns=None
        )
        for i, record in enumerate(steps)
    ]
    return watch(timed, **over)


def host(
    *, frontend: float = 0.1, starved: float = 0.1, scheduling: float = 0.05, delay: float = 0.01, gil: float = 0.3
) -> HostProfile:
    """An API server's event loop and an engine's loop in two processes, as the host probe sees them."""
    event_loop = ThreadUse(
        pid=1,
        tid=1,
        name="MainThread",
        role=Role.FRONTEND,
        run_share=frontend,
        delay_share=0.01,
        gil_share=frontend,
        activities={Activity.TOKENISING: frontend * 0.7, Activity.SERIALISING: frontend * 0.3},
    )
    forward = max(0.0, 1 - starved - scheduling)
    loop = ThreadUse(
        pid=2,
        tid=2,
        name="EngineCore",
        role=Role.ENGINE,
        run_share=scheduling,
        delay_share=delay,
        gil_share=gil,
        activities={
            Activity.WAITING: starved,
            Activity.SCHEDULING: scheduling,
            Activity.FORWARD: forward,
        },
    )
    return HostProfile(pid=1, seconds=20.0, threads=(event_loop, loop))


def looked_at(profile: HostProfile, **over: Any) -> Observation:
    """A bare page beside a look at the host."""
    observation = quiet(show_records=False, **over)
    observation.host = profile
    return observation


def queue(**over: Any) -> Observation:
    return watch(make_steps(300), **({"ttft": 2.0, "queue": 1.8, "num_waiting": 30} | over))


def hung(seconds: float = 60.0, **over: Any) -> Observation:
    """Three requests inside, and no step in the whole window."""
    return watch([], seconds=seconds, **({"num_running": 3} | over))


def capped(**over: Any) -> Observation:
    """All 64 sequence slots taken, in a pool that is nearly empty."""
    state: dict[str, Any] = {"num_running": 64, "num_waiting": 5, "waiting_by_reason": {"max_sequences": 5}}
    return watch(make_steps(300), **(state | over))


def stuck_line(**over: Any) -> Observation:
    """Running 0, waiting 1, pool nearly empty, nothing moves."""
    state: dict[str, Any] = {"num_running": 0, "num_waiting": 1, "census": BlockCensus(0, 20, 80)}
    return watch([], **(state | over))


def leaked(**over: Any) -> Observation:
    """Nobody inside, and forty blocks held all the same."""
    state: dict[str, Any] = {"num_running": 0, "census": BlockCensus(40, 20, 40)}
    return watch([], **(state | over))


GEOMETRY = {
    "num_parameters": "1000000",
    "num_layers": "1",
    "num_query_heads": "1",
    "head_dim": "1",
    "weight_bytes": "4000000",
}


def saturated_units(flops_ceiling: float = 70e9, queue: float = 0.5) -> Diagnosis:
    """Steps of nothing but prompts, 2 x 10^6 x 1500 FLOPs in 47 ms, and requests that wait for them."""
    steps = make_steps(40, lambda _: Plan(sequences=0, context=0, prefill=1500))
    signals = make_signals(
        counters={"tokens_prefill": 60_000, "tokens_decode": 40},
        gauges={"flops_ceiling": flops_ceiling, "running": (3.0, 3.0), "waiting": (2.0, 2.0)},
        histograms={"queue_time": {queue: 40}, "time_to_first_token": {queue * 3: 40}},
        steps=tuple(steps),
        info=GEOMETRY,
    )
    return diagnose(TARGET, signals, is_live=True)


def prefix(hits: float, before: float | None, evictions: float | None = 0, cache: str = "true") -> Diagnosis:
    """10,000 prompt tokens looked up; `hits` of them found, and `before` in the baseline."""

    def window(found: float) -> Signals:
        counters = {"prefix_query_tokens": 10_000.0, "prefix_hit_tokens": found, "tokens_decode": 500.0}
        if evictions is not None:
            counters["evictions"] = evictions
        return make_signals(counters=counters, info={"prefix_cache": cache})

    return diagnose(TARGET, window(hits), None if before is None else window(before), is_live=True)


def throttled(*reasons: ThrottleReason, clock_mhz: int = 900, slowdown: float = 2.0, **over: Any) -> Observation:
    """The engine of `quiet` on a GPU whose steps take `slowdown` times as long."""
    machine = Machine(base_us=4000 * slowdown, per_sequence_us=250 * slowdown, per_context_ns=200 * slowdown)
    gpu = healthy_gpu(*reasons, sm_clock_hz=clock_mhz * 1_000_000)
    return watch(make_steps(300, machine=machine, seed=3), **({"gpu": gpu} | over))


def thrashing() -> Diagnosis:
    """A pool of 600 blocks under a working set of 1,450: nearly all that is evicted is asked for again."""
    signals = make_signals(
        counters={"evictions": 2000, "ghost_hits": 1900, "tokens_prefill": 32_000, "tokens_decode": 500},
        gauges={"blocks_active": 40, "blocks_reclaimable": 560, "blocks_free": 0, "working_set_blocks": 1450},
    )
    return diagnose(TARGET, signals, is_live=True)


def speculation(accepted: float, before: float | None = 800, itl: float = 0.1, drafted: float = 1000) -> Diagnosis:
    """A thousand drafted tokens of which `accepted` were kept; inter-token latency 50 ms in the baseline."""

    def window(kept: float, drafts: float, gap: float) -> Signals:
        return make_signals(
            counters={"spec_draft_tokens": drafts, "spec_accepted_tokens": kept},
            histograms={"inter_token_latency": {gap: 500}},
        )

    baseline = None if before is None else window(before, 1000, 0.05)
    return diagnose(TARGET, window(accepted, drafted, itl), baseline, is_live=True)


def transfers(seconds: float = 1.5, failed: float = 0, waiting: float = 0) -> Diagnosis:
    """Two seconds to the first token, `seconds` of them for moving KV blocks."""
    signals = make_signals(
        counters={"transfer_failures": failed},
        gauges={"waiting_transfer": waiting},
        histograms={"kv_transfer": {seconds: 40}, "time_to_first_token": {2.0: 40}},
    )
    return diagnose(TARGET, signals, is_live=True)


def replicas(*loads: tuple[float, float]) -> Diagnosis:
    """Replicas that hold `(running, waiting)` requests on average."""
    each = {
        f"replica-{index}": make_signals(gauges={"running": running, "waiting": waiting})
        for index, (running, waiting) in enumerate(loads)
    }
    totals = {"running": sum(running for running, _ in loads), "waiting": sum(waiting for _, waiting in loads)}
    signals = make_signals(gauges=totals, num_replicas=len(loads), replicas=each)
    return diagnose(TARGET, signals, is_live=True)


def clients(reported: str, gap: float = 0.05, tokens: float = 500) -> Diagnosis:
    """By the engine's clock all gaps are `gap` seconds, give or take the bucket."""
    signals = make_signals(histograms={"inter_token_latency": {gap: tokens}})
    return diagnose(TARGET, signals, reported=parse_reported(reported), is_live=True)


def restarted_engine(running: int) -> Observation:
    """The page before belongs to another start."""
    engine = Engine(start_unix=1_699_000_000.0)
    before = watch(make_steps(300), engine=engine, show_records=False, num_running=running)
    after = watch(make_steps(300), engine=Engine())
    return replace(after, scrapes=[before.scrapes[-1], *after.scrapes[1:]])
