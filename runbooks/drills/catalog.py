"""The drills: what each does to a live engine, what is then true, and which signal decides.

Loads are for an engine that decodes a token in 5 ms; `varied` makes them fit the one that is there.
"""

from dataclasses import dataclass, replace
from random import Random

from runbooks.drills.service_levels import Symptom
from runbooks.experiments.workload import Arrival, Load, parse_load

_QUIET = ("rate=1,prompt=24,output=150-300",)


@dataclass(frozen=True, slots=True)
class Drill:
    name: str
    summary: str
    deciding: str
    """The signal that decides."""
    model: str = "tiny"
    """On which it shows; `--model` takes another."""
    options: tuple[str, ...] = ()
    """Of `stallscope serve`, for both windows."""
    quiet: tuple[str, ...] = _QUIET
    """Loads of the baseline, as `stallscope experiment --load` takes them."""
    loads: tuple[str, ...] = _QUIET
    """Of the incident."""
    at_once: str = ""
    """A load of the incident whose rate is a number of requests: all arrive at its start, with their prefix in the cache, and
    are decoding when its window opens."""
    fault: str | None = None
    """Of the incident's engine: what `--drill-fault` takes."""
    idle_window: bool = False
    """The incident's load ends before its window: what is left is seen without requests."""
    part: str = ""
    """Of the latency account: where the condition puts its time (a name in `truth.PARTS`); empty where it puts none there."""
    kills: bool = False
    """SIGKILL in the middle of the incident."""
    reads_log: bool = False
    """The engine's log is evidence as well."""
    slow_reader_seconds: float = 0.0
    """The client's event loop stands still for so long, again and again."""
    symptom: Symptom = Symptom.ITL
    primary: tuple[str, ...] = ()
    """Which one of these is named the primary cause; nothing wrong: none."""
    required: tuple[str, ...] = ()
    """What is supported as well."""

    @property
    def needs_own_engine(self) -> str | None:
        """Why load alone does not induce it in a server that somebody else started; None where it does."""
        if self.fault is not None or self.kills:
            return "it breaks the engine itself"
        return f"it needs an engine started with {' '.join(self.options)}" if self.options else None

    @property
    def expected(self) -> str:
        if not self.primary:
            return "nothing wrong" + (f" ({', '.join(self.required)} supported)" if self.required else "")
        return " or ".join(self.primary)


_SHARED = "rate=5,prompt=1000,output=4-8,prefix=960"
_LONG_CONTEXTS = "rate=6,prompt=2500,output=3000,prefix=2460"
"""One prefix, computed once and read by every stream at every step. A model whose steps read too little hardly notices."""
_SHORT_STREAMS = ("rate=5,prompt=24,output=30-60",)
"""As much as `_QUIET` in smaller pieces: in the window of a slow model there are some."""
_MORE_SHORT_STREAMS = ("rate=10,prompt=24,output=30-60",)

DRILLS: dict[str, Drill] = {
    drill.name: drill
    for drill in (
        Drill(
            "quiet", "a usual load, and nothing wrong", "inter-token gaps against the baseline", symptom=Symptom.NONE
        ),
        Drill("idle", "no request at all", "token counters", loads=(), symptom=Symptom.NONE),
        Drill(
            "expected_reservation",
            "nearly all device memory given to the pool, hardly a block in use",
            "the block buckets",
            options=("--device-memory", "64MiB", "--memory-utilization", "0.97"),
            symptom=Symptom.NONE,
            required=("expected_reservation",),
        ),
        Drill(
            "prefill_interference_mild",
            "now and then a prompt of some of the token budget",
            "mixed steps against like pure decode steps",
            model="smollm2",
            quiet=_MORE_SHORT_STREAMS,
            loads=(*_MORE_SHORT_STREAMS, "rate=4,prompt=200,output=2-4"),
            part="prefill",
            primary=("prefill_interference",),
        ),
        Drill(
            "prefill_interference",
            "long prompts all the time, in most of a budget",
            "mixed steps against like pure decode steps",
            model="smollm2",
            quiet=_MORE_SHORT_STREAMS,
            loads=(*_MORE_SHORT_STREAMS, "rate=4,prompt=420,output=2-4"),
            part="prefill",
            primary=("prefill_interference",),
        ),
        Drill(
            "prefill_interference_unchunked",
            "long prompts that a budget of thousands lets in whole: chunked prefill in name only",
            "mixed steps against like pure decode steps",
            model="smollm2",
            options=("--max-batched-tokens", "2048"),
            quiet=_MORE_SHORT_STREAMS,
            loads=(*_MORE_SHORT_STREAMS, "rate=2,prompt=900,output=2-4"),
            part="prefill",
            primary=("prefill_interference",),
        ),
        Drill(
            "lock_contention",
            "another thread holds the scheduler lock, again and again",
            "lock wait per step",
            fault="lock=10ms",
            part="lock",
            primary=("scheduler_contention",),
        ),
        Drill(
            "lookup_contention",
            "concurrent admissions look long prompts up in the prefix index, under the scheduler lock",
            "lock wait per step",
            fault="lookups=100000tokens",
            part="lock",
            primary=("scheduler_contention",),
        ),
        Drill(
            "slow_host",
            "a callback on the engine's thread delays every hand-out",
            "post-processing time per step",
            fault="host=10ms",
            part="host",
            primary=("scheduler_contention",),
        ),
        Drill(
            "bandwidth_saturation",
            "many streams with long contexts, whose reading is most of each step",
            "pure decode steps against their contexts, and bytes per second against the ceiling",
            model="smollm2",
            quiet=_SHORT_STREAMS,
            loads=(),
            at_once=_LONG_CONTEXTS,
            part="decode",
            primary=("bandwidth_saturation",),
        ),
        Drill(
            "kv_exhaustion",
            "more live sequences than the pool has blocks for",
            "active blocks against the total, with waits or preemptions",
            options=("--kv-blocks", "64"),
            loads=("rate=6,prompt=60-120,output=150-250",),
            symptom=Symptom.EITHER,
            primary=("kv_exhaustion",),
        ),
        Drill(
            "preemption_storm",
            "short prompts with long answers, that outgrow the pool together",
            "preemptions per finished request, recomputed tokens",
            options=("--kv-blocks", "64"),
            loads=("rate=4,prompt=12,output=350-450",),
            symptom=Symptom.EITHER,
            primary=("kv_exhaustion", "preemption_storm"),
            required=("preemption_storm",),
        ),
        Drill(
            "cache_thrashing",
            "shared prefixes of several times the pool",
            "ghost hits: evicted blocks that are asked for again",
            options=("--kv-blocks", "400"),
            quiet=(*_QUIET, f"{_SHARED},groups=3"),
            loads=(*_QUIET, f"{_SHARED},groups=25"),
            symptom=Symptom.EITHER,
            primary=("cache_thrashing", "prefill_interference"),
            required=("cache_thrashing",),
        ),
        Drill(
            "cache_prefix_broken",
            "prompts that used to share their beginning differ from the first word on",
            "hit rate against the baseline, and what became of evicted blocks",
            options=("--kv-blocks", "2048"),
            quiet=(*_QUIET, f"{_SHARED},groups=3"),
            loads=(*_QUIET, "rate=5,prompt=1000,output=4-8"),
            symptom=Symptom.EITHER,
            primary=("cache_prefix_broken", "prefill_interference"),
            required=("cache_prefix_broken",),
        ),
        Drill(
            "queue_overload",
            "prompts arrive faster than a small token budget lets them in",
            "queue time as a share of the time to first token",
            options=("--max-batched-tokens", "8"),
            loads=("rate=1,prompt=24,output=150-300", "rate=10,prompt=150,output=2-4"),
            symptom=Symptom.TTFT,
            primary=("queue_overload",),
        ),
        Drill(
            "sequence_cap",
            "more requests than sequence slots, in a pool with room",
            "running requests against the cap, and active blocks",
            options=("--max-sequences", "4"),
            quiet=("rate=1,prompt=24,output=100-200",),
            loads=("rate=6,prompt=24,output=100-200",),
            symptom=Symptom.TTFT,
            primary=("sequence_cap",),
        ),
        Drill(
            "admission_stall",
            "the head of the line can never be started, in a pool with room",
            "requests that wait while nobody runs, and active blocks",
            loads=("rate=2,prompt=24,output=20-40",),
            fault="stall=1requests",
            symptom=Symptom.UNANSWERED,
            primary=("admission_stall",),
        ),
        Drill(
            "kv_leak",
            "each request that ends leaves blocks without an owner",
            "active blocks while no request is inside",
            loads=("rate=6,prompt=24,output=8-16",),
            fault="leak=8blocks",
            idle_window=True,
            symptom=Symptom.CERTAIN,
            primary=("kv_leak",),
        ),
        Drill(
            "hard_failure",
            "the engine is killed with SIGKILL",
            "scrapes that are refused after answers",
            kills=True,
            symptom=Symptom.CERTAIN,
            primary=("hard_failure",),
        ),
        Drill(
            "dropped_connections",
            "the server cuts off one stream of three in its middle, and closes the connection",
            "failures that the server counts: a client that leaves looks the same to the engine",
            fault="drop=3requests",
            symptom=Symptom.FAILED,
            primary=("hard_failure",),
        ),
        Drill(
            "oom_abort",
            "the engine's memory grows up to its limit: steps fail for lack of memory, and the engine gives up",
            "failures by kind, and the log, which tells what came first",
            fault="memory=64MiB",
            reads_log=True,
            symptom=Symptom.FAILED,
            primary=("hard_failure",),
        ),
        Drill(
            "frontend_bottleneck",
            "the event loop that reads requests and sends tokens is blocked most of the time, the engine's steps are fine",
            "delay of the front end: from the engine's hand-out to the event loop",
            fault="frontend=100ms",
            symptom=Symptom.EITHER,
            primary=("frontend_bottleneck",),
        ),
        Drill(
            "client_artifact",
            "the client's own event loop stands still, the engine is fine",
            "what clients report against the engine's own clock",
            slow_reader_seconds=0.25,
            symptom=Symptom.CERTAIN,
            primary=("client_artifact",),
        ),
        Drill(
            "interference_and_slow_host",
            "two at once: long prompts, and a callback that delays every hand-out",
            "which of both has more of the slow gaps",
            loads=(*_QUIET, "rate=1,prompt=420,output=2-4"),
            fault="host=6ms",
            primary=("prefill_interference", "scheduler_contention"),
        ),
        Drill(
            "interference_in_saturation",
            "two at once: long prompts beside many streams with long contexts",
            "which of both has more of the slow gaps",
            model="smollm2",
            quiet=_SHORT_STREAMS,
            loads=("rate=2,prompt=420,output=2-4",),
            at_once=_LONG_CONTEXTS,
            primary=("prefill_interference", "bandwidth_saturation"),
        ),
        Drill(
            "thrashing_and_overload",
            "two at once: shared prefixes of several times the pool, and more requests than sequence slots",
            "ghost hits, and running requests against the cap",
            options=("--kv-blocks", "400", "--max-sequences", "6"),
            quiet=(*_QUIET, f"{_SHARED},groups=3"),
            loads=("rate=3,prompt=24,output=150-300", f"{_SHARED},groups=25"),
            symptom=Symptom.EITHER,
            primary=("cache_thrashing", "prefill_interference", "sequence_cap", "queue_overload", "kv_exhaustion"),
        ),
    )
}

USUAL_PACE = 0.005
"""Seconds per token for which the loads are written."""


def varied(texts: tuple[str, ...], pace: float, seed: int) -> list[Load]:
    """The loads for an engine that takes `pace` seconds per token, rates varied by a fifth either way by the seed."""
    random = Random(f"drill/{seed}")
    loads = [parse_load(text) for text in texts]
    return [replace(one, rate=one.rate * random.uniform(0.8, 1.2) * USUAL_PACE / pace) for one in loads]


def at_once(text: str, seed: int) -> list[Arrival]:
    """So many arrivals at the start as the load's rate says."""
    if not text:
        return []
    random = Random(f"drill/{seed}/at once")
    one = parse_load(text)
    sizes = [(one.prompt.draw(random), one.output.draw(random)) for _ in range(round(one.rate))]
    return [Arrival(0.0, prompt, output, one.prefix_words, 0) for prompt, output in sizes]
