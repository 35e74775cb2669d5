"""What can be wrong with a simulated server: how each condition is induced, what is then true, and which signal decides.

A condition changes a quiet `Scenario`: its load, its limits or its faults, by a dose that the seed draws.
"""

from dataclasses import replace
from random import Random

from probes.gpu import ThrottleReason
from runbooks.drills.service_levels import Symptom
from runbooks.experiments.workload import Load, parse_lengths
from tests.accuracy.scenario import Burst, Condition, Mask, Scenario, Shape
from tests.probes.gpus import healthy_gpu


def lengths(low: float, high: float) -> str:
    return f"{max(1, round(low))}-{max(1, round(high))}"


def load(rate: float, prompt: str, output: str, prefix: int = 0, groups: int = 1) -> Load:
    return Load(rate, "poisson", parse_lengths(prompt), parse_lengths(output), prefix, groups)


def base_us(shape: Shape) -> float:
    return shape.weight_read_us + shape.overhead_us


def _concurrency(scenario: Scenario) -> float:
    """Requests that the quiet load keeps running, about (Little's law)."""
    first = scenario.quiet[0]
    return first.rate * 110 * (base_us(scenario.shape) * 1.2 / 1e6)


def _quiet(scenario: Scenario, random: Random) -> Scenario:
    return scenario


def _idle(scenario: Scenario, random: Random) -> Scenario:
    return replace(scenario, loads=(), ends_with_warm_up=True, settle_seconds=2.0)


def _reservation(scenario: Scenario, random: Random) -> Scenario:
    return replace(scenario, shape=replace(scenario.shape, memory_share=random.uniform(0.9, 0.99)))


def _interference(scenario: Scenario, random: Random) -> Scenario:
    """Long prompts, of one to three budgets each, that take 5 to 45 % of the time."""
    shape = scenario.shape
    tokens = shape.budget * random.uniform(0.9, 2.5)
    rate = random.uniform(0.05, 0.45) / (tokens * shape.per_prompt_token_us / 1e6)
    long = load(rate, lengths(0.6 * tokens, 1.2 * tokens), "2-6")
    return replace(scenario, loads=(*scenario.loads, long), part="prefill")


def _saturation(scenario: Scenario, random: Random) -> Scenario:
    """Long contexts, computed before the window opens, whose reading takes most of each step."""
    shape = scenario.shape
    context = base_us(shape) * random.uniform(1.2, 2.0) / shape.per_context_us
    count = random.randint(20, min(40, shape.max_sequences - 20))
    burst = Burst(count, round(context / count), 3000)
    blocks = max(shape.kv_blocks, round(1.5 * context / shape.block_size) + 20 * count)
    settle = 1.5 * context * shape.per_prompt_token_us / 1e6  # until the last of the long prompts is computed
    return replace(scenario, burst=burst, shape=replace(shape, kv_blocks=blocks), settle_seconds=settle, part="decode")


def _slow_host(scenario: Scenario, random: Random) -> Scenario:
    """Waits for the scheduler lock, a slow scheduler or a slow hand-out, of half a step to one and a half."""
    extra = base_us(scenario.shape) * random.uniform(0.5, 1.5)
    kind = random.choice(("lock", "schedule", "postprocess"))
    faults = scenario.faults
    if kind == "lock":
        faults = replace(faults, lock_wait_us=extra)
    elif kind == "schedule":
        faults = replace(faults, schedule_factor=extra / scenario.shape.schedule_us)
    else:
        faults = replace(faults, postprocess_us=extra)
    return replace(scenario, faults=faults, part="lock" if kind == "lock" else "host")


def _exhaustion(scenario: Scenario, random: Random) -> Scenario:
    """Three to five times the requests in a pool that holds twice the quiet load's."""
    blocks = round(_concurrency(scenario) * 2.2 * (350 / scenario.shape.block_size + 1)) + 10
    first = scenario.quiet[0]
    more = replace(first, rate=first.rate * random.uniform(3, 5), output=parse_lengths("150-250"))
    return replace(scenario, shape=replace(scenario.shape, kv_blocks=blocks), loads=(more,))


def _storm(scenario: Scenario, random: Random) -> Scenario:
    """Short prompts with long answers: admitted together, they outgrow the pool together."""
    blocks = round(_concurrency(scenario) * 2 * (220 / scenario.shape.block_size + 1)) + 10
    first = scenario.quiet[0]
    rate = first.rate * random.uniform(1.5, 2.5)
    grown = load(rate, "16-32", "300-450")
    return replace(scenario, shape=replace(scenario.shape, kv_blocks=blocks), loads=(grown,), part="waiting")


def _shared_tokens(shape: Shape) -> int:
    """A prefix that takes 20 ms to compute."""
    return round(20_000 / shape.per_prompt_token_us)


def _shared(scenario: Scenario, groups: int, random: Random) -> Load:
    """Prompts whose computing would take 20 to 50 % of the time, if their prefixes were not found."""
    tokens = _shared_tokens(scenario.shape)
    rate = random.uniform(0.2, 0.5) / 0.02
    return load(rate, lengths(tokens + 20, tokens + 80), "8-24", tokens, groups)


def _thrashing(scenario: Scenario, random: Random) -> Scenario:
    """Shared prefixes of 1.5 to 4 times the pool, of which the quiet load uses a few."""
    shape = scenario.shape
    few, tokens = _shared(scenario, 4, random), _shared_tokens(shape)
    live = 2 * few.rate * 24 * base_us(shape) / 1e6 * (tokens + 100) + 2 * _concurrency(scenario) * 350
    blocks = round((4 * tokens + live) / shape.block_size) + 100
    groups = round(blocks * shape.block_size * random.uniform(1.5, 4) / tokens)
    many = replace(few, prefix_groups=groups)
    shape = replace(shape, kv_blocks=blocks)
    return replace(scenario, shape=shape, quiet=(*scenario.quiet, few), loads=(*scenario.loads, many), part="prefill")


def _broken_prefix(scenario: Scenario, random: Random) -> Scenario:
    """Prompts of the same length whose shared beginning is no longer shared."""
    few = _shared(scenario, 4, random)
    unshared = replace(few, prefix_words=0, prefix_groups=1)
    return replace(scenario, quiet=(*scenario.quiet, few), loads=(*scenario.loads, unshared), part="prefill")


def _overload(scenario: Scenario, random: Random) -> Scenario:
    """Prompts arrive at 1.2 to 2 times the rate at which a small budget lets them in; streams hardly notice."""
    shape = scenario.shape
    budget = max(48, round(0.12 * base_us(shape) / shape.per_prompt_token_us) + round(2 * _concurrency(scenario)))
    served = (budget - 1.2 * _concurrency(scenario)) / (base_us(shape) * 1.25 / 1e6)
    prompt = 4 * budget
    rate = random.uniform(1.2, 2.0) * served / prompt
    shape = replace(shape, budget=budget)
    return replace(
        scenario, shape=shape, loads=(*scenario.loads, load(rate, lengths(0.7 * prompt, 1.3 * prompt), "8-24"))
    )


def _cap(scenario: Scenario, random: Random) -> Scenario:
    """Twice to four times the requests under a cap that the quiet load stays below."""
    first = scenario.quiet[0]
    cap = round(1.8 * _concurrency(scenario)) + 2
    more = replace(first, rate=first.rate * random.uniform(2.4, 4))
    return replace(scenario, shape=replace(scenario.shape, max_sequences=cap), loads=(more, *scenario.loads[1:]))


def _blocked_line(scenario: Scenario, random: Random) -> Scenario:
    return replace(scenario, faults=replace(scenario.faults, blocked_line=True), settle_seconds=8.0)


def _leak(scenario: Scenario, random: Random) -> Scenario:
    faults = replace(scenario.faults, leaked_share=random.uniform(0.1, 0.6))
    return replace(scenario, faults=faults, ends_with_warm_up=True, settle_seconds=8.0)


def _hang(scenario: Scenario, random: Random) -> Scenario:
    return replace(scenario, faults=replace(scenario.faults, hangs=True), window_seconds=42.0)


def _death(scenario: Scenario, random: Random) -> Scenario:
    return replace(scenario, dies=True)


def _memory(scenario: Scenario, random: Random) -> Scenario:
    return replace(scenario, lacks_memory=True)


def _blocked_front_end(scenario: Scenario, random: Random) -> Scenario:
    """An event loop that stands still for four to ten steps, and never for under a tenth of a second."""
    block = max(100_000.0, base_us(scenario.shape) * random.uniform(4, 10))
    return replace(scenario, faults=replace(scenario.faults, frontend_block_us=block))


def _slow_reader(scenario: Scenario, random: Random) -> Scenario:
    return replace(scenario, client_factor=random.uniform(4, 12))


def _throttled(scenario: Scenario, random: Random) -> Scenario:
    slowdown = random.uniform(1.4, 2.5)
    reason = random.choice((ThrottleReason.HW_THERMAL, ThrottleReason.SW_THERMAL, ThrottleReason.HW_SLOWDOWN))
    gpu = healthy_gpu(reason, sm_clock_hz=round(1_980_000_000 / slowdown))
    return replace(scenario, faults=replace(scenario.faults, slowdown=slowdown, gpu=gpu), part="decode")


_STEP_TIMES = ("step_duration_seconds", "stall_seconds_total", "step_device_seconds_total")
_HOST_TIMES = ("schedule_duration_seconds", "scheduler_lock", "host_gap_seconds", "stall_seconds_total")
_CLOCKS = ("gpu_throttle", "gpu_throttled_seconds_total", "gpu_clock_hertz", "gpu_ecc", "gpu_xid")

CONDITIONS: dict[str, Condition] = {
    condition.name: condition
    for condition in (
        Condition("quiet", _quiet, Symptom.NONE),
        Condition("idle", _idle, Symptom.NONE),
        Condition(
            "expected_reservation",
            _reservation,
            Symptom.NONE,
            required=("expected_reservation",),
            mask=Mask(("kv_blocks",), records=True),
            hidden="expected_reservation",
        ),
        Condition(
            "prefill_interference",
            _interference,
            Symptom.ITL,
            ("prefill_interference",),
            mask=Mask(_STEP_TIMES, records=True),
            hidden="prefill_interference",
        ),
        Condition(
            "bandwidth_saturation",
            _saturation,
            Symptom.ITL,
            ("bandwidth_saturation",),
            mask=Mask(("device_bandwidth_bytes_per_second",)),
            hidden="bandwidth_saturation",
        ),
        Condition(
            "scheduler_contention",
            _slow_host,
            Symptom.ITL,
            ("scheduler_contention",),
            mask=Mask(_HOST_TIMES, records=True),
            hidden="scheduler_contention",
        ),
        Condition(
            "kv_exhaustion",
            _exhaustion,
            Symptom.EITHER,
            ("kv_exhaustion",),
            required=("kv_exhaustion",),
            also=("preemption_storm", "queue_overload"),
            mask=Mask(("kv_blocks",), records=True),
            hidden="kv_exhaustion",
        ),
        Condition(
            "preemption_storm",
            _storm,
            Symptom.EITHER,
            ("preemption_storm", "kv_exhaustion"),
            required=("preemption_storm",),
            also=("queue_overload",),
            mask=Mask(("preemptions_total",)),
            hidden="preemption_storm",
        ),
        Condition(
            "cache_thrashing",
            _thrashing,
            Symptom.EITHER,
            ("cache_thrashing", "prefill_interference"),
            required=("cache_thrashing",),
            mask=Mask(("kv_ghost_hits_total",)),
            hidden="cache_thrashing",
        ),
        Condition(
            "cache_prefix_broken",
            _broken_prefix,
            Symptom.EITHER,
            ("cache_prefix_broken", "prefill_interference"),
            required=("cache_prefix_broken",),
            mask=Mask(baseline=True),
            hidden="cache_prefix_broken",
        ),
        Condition(
            "queue_overload",
            _overload,
            Symptom.TTFT,
            ("queue_overload",),
            mask=Mask(("queue_time_seconds",)),
            hidden="queue_overload",
        ),
        Condition(
            "sequence_cap",
            _cap,
            Symptom.TTFT,
            ("sequence_cap",),
            also=("queue_overload",),
            mask=Mask(("max_sequences",)),
            hidden="sequence_cap",
        ),
        Condition(
            "admission_stall",
            _blocked_line,
            Symptom.UNANSWERED,
            ("admission_stall",),
            mask=Mask(("kv_blocks",), records=True),
            hidden="admission_stall",
        ),
        Condition("kv_leak", _leak, Symptom.CERTAIN, ("kv_leak",), mask=Mask(("requests",)), hidden="kv_leak"),
        Condition(
            "engine_hung",
            _hang,
            Symptom.UNANSWERED,
            ("engine_hung",),
            mask=Mask(("tokens_total",)),
            hidden="engine_hung",
        ),
        Condition("hard_failure", _death, Symptom.CERTAIN, ("hard_failure",)),
        Condition(
            "oom_abort",
            _memory,
            Symptom.FAILED,
            ("hard_failure",),
            mask=Mask(("failures_total",), log=True),
            hidden="hard_failure",
        ),
        Condition(
            "frontend_bottleneck",
            _blocked_front_end,
            Symptom.EITHER,
            ("frontend_bottleneck",),
            mask=Mask(("frontend_delay_seconds",)),
            hidden="frontend_bottleneck",
        ),
        Condition(
            "client_artifact",
            _slow_reader,
            Symptom.CERTAIN,
            ("client_artifact",),
            mask=Mask(reported=True),
            hidden="client_artifact",
        ),
        Condition(
            "device_degraded",
            _throttled,
            Symptom.ITL,
            ("device_degraded",),
            mask=Mask(_CLOCKS),
            hidden="device_degraded",
        ),
    )
}

PAIRS: tuple[tuple[str, str], ...] = (
    ("prefill_interference", "bandwidth_saturation"),
    ("prefill_interference", "scheduler_contention"),
    ("prefill_interference", "device_degraded"),
    ("cache_thrashing", "sequence_cap"),
)
"""Two at once: either is then a right primary cause, and both may be supported."""

_QUIET: dict[str, tuple[float, str, str]] = {
    "small": (3.0, "40-120", "60-160"),
    "large": (7.0, "100-300", "60-160"),
    "wide": (10.0, "100-250", "60-160"),
}
"""Requests per second, prompt and output lengths of each shape's background load."""


def quiet_scenario(shape: Shape, random: Random) -> Scenario:
    """The shape under 0.6 to 1.4 times its usual load."""
    rate, prompt, output = _QUIET[shape.name]
    background = (load(rate * random.uniform(0.6, 1.4), prompt, output),)
    return Scenario(shape, background, background)
