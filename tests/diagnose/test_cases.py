"""Public incidents: what is posted of a live server, and what may be concluded from that alone.

A case asks three things: what must be supported, what must be refuted, and what must stay open. A culprit that the posted data do
not prove is as wrong as none where they do. Where a verdict differs from what the incident turned out to be, or from what a
reader of the whole thread would say, `why` argues it.
"""

from dataclasses import dataclass
from pathlib import Path

import pytest

from diagnose.commands.diagnose import judge
from diagnose.diagnosis import Diagnosis
from diagnose.sources.files import read_files
from tests.diagnose.cases import texts

DATA = Path(__file__).resolve().parent.parent / "data/cases"


@dataclass(frozen=True)
class Posted:
    """Hypotheses by the verdict that the file must lead to; every hypothesis that is not named must not be supported."""

    file: str
    supported: tuple[str, ...] = ()
    refuted: tuple[str, ...] = ()
    undetermined: tuple[str, ...] = ()
    primary: str | None = None
    says: tuple[tuple[str, str], ...] = ()
    """Hypothesis and words that its evidence must hold; `warning` for the report's warnings."""
    why: str = ""


POSTED = [
    Posted(
        "01-vllm-37307-admit-first-chunk.log",
        supported=("queue_overload",),
        undetermined=("preemption_storm", "kv_exhaustion", "cache_thrashing", "kv_leak", "scheduler_contention"),
        primary="queue_overload",
        says=(("kv_exhaustion", "full in about 30"),),
        why="The pool is at 65 % and nobody was denied a block: exhaustion is foretold, with its time, and not supported. That "
        "the prefix cache is off and that the host keeps up was said in the thread and stands in none of the five lines.",
    ),
    Posted(
        "02-vllm-21809-chunk-preempt-loop.log",
        refuted=("queue_overload", "cache_thrashing", "engine_hung"),
        undetermined=("kv_exhaustion", "preemption_storm", "prefill_interference", "bandwidth_saturation"),
        says=(("kv_exhaustion", "full in about"), ("bandwidth_saturation", "no more than ordinary variation")),
        why="A pool at 96 % on which eight streams run steadily and nobody waits is well used. When it will be full is said.",
    ),
    Posted(
        "02-vllm-21809-prefill-ramp.log",
        refuted=("engine_hung", "admission_stall"),
        undetermined=("kv_exhaustion", "queue_overload", "prefill_interference"),
    ),
    Posted(
        "05-sglang-26248-retract-collapse.log",
        supported=("kv_exhaustion",),
        undetermined=("preemption_storm", "scheduler_contention"),
        primary="kv_exhaustion",
        why="No line of the excerpt tells of a retraction: that it happened is read from the pool's fall, and how often is not "
        "known. The slow regime afterwards is another cause, which nothing in these lines names.",
    ),
    Posted(
        "09-vllm-546-swap-preempt.log",
        supported=("kv_exhaustion", "queue_overload"),
        undetermined=("preemption_storm",),
        primary="kv_exhaustion",
        says=(("kv_exhaustion", "PreemptionMode.SWAP"),),
        why="One warning is one preemption (vLLM V0 writes every fiftieth): the denial is proven, a storm is not.",
    ),
    Posted(
        "11-tt-vllm-55-pool-run-dry.log",
        refuted=("queue_overload", "cache_thrashing"),
        undetermined=("kv_exhaustion", "hard_failure", "bandwidth_saturation", "scheduler_contention"),
        says=(("kv_exhaustion", "full in about 4"),),
        why="The failure is in the title of the thread and not in the log, which ends before it.",
    ),
    Posted(
        "15-llamacpp-14097-no-kv-slot.log",
        supported=("kv_exhaustion",),
        undetermined=("hard_failure", "expected_reservation"),
        primary="kv_exhaustion",
        why="Denials count, retries do not: what a smaller batch finds room for failed no request.",
    ),
    Posted(
        "21-llmscaler-391-one-running-14-waiting.log",
        refuted=("engine_hung", "cache_thrashing"),
        undetermined=("admission_stall", "sequence_cap", "kv_exhaustion", "queue_overload"),
        says=(("admission_stall", "one slot that is taken"),),
        why="A cap of one sequence and prompts that do not fit beside the running one look the same in these lines.",
    ),
    Posted(
        "22-vllm-11517-one-running-three-pending.log",
        refuted=("kv_exhaustion",),
        undetermined=("admission_stall", "sequence_cap", "preemption_storm"),
        says=(("kv_exhaustion", "it was not for blocks"),),
        why="One line: what limits admission besides blocks (adapters, a cap) is asked for. Nothing says that none was "
        "preempted.",
    ),
    Posted(
        "25-sglang-11970-leak-check-arithmetic.log",
        supported=("kv_leak", "hard_failure"),
        refuted=("kv_exhaustion", "engine_hung"),
        primary="hard_failure",
        says=(("kv_leak", "59 of 270,331 tokens"), ("hard_failure", "first leak")),
    ),
    Posted(
        "28-vllm-31353-one-long-request.log",
        refuted=("kv_leak", "queue_overload", "kv_exhaustion"),
        undetermined=("bandwidth_saturation", "scheduler_contention"),
        says=(("bandwidth_saturation", "while the pool's usage went from"),),
        why="The slowdown follows the context, which is a reason to look at bandwidth. Host work that grows with the context has "
        "the same slope; only bytes per step against the device's ceiling would tell, and the log has neither.",
    ),
    Posted(
        "33-lmcache-1353-no-hits.log",
        undetermined=("cache_prefix_broken", "cache_thrashing"),
        says=(("cache_prefix_broken", "asked for 3,335 prompt tokens and had 0"),),
    ),
    Posted(
        "35-llamacpp-14625-full-reprocess.log",
        supported=("cache_prefix_broken",),
        refuted=("cache_thrashing",),
        primary="cache_prefix_broken",
    ),
    Posted(
        "35-llamacpp-23269-full-reprocess-short.log",
        supported=("cache_prefix_broken",),
        refuted=("cache_thrashing",),
        primary="cache_prefix_broken",
    ),
    Posted(
        "37-freetoken-483-prefill-burst.txt",
        undetermined=("prefill_interference", "bandwidth_saturation", "queue_overload", "preemption_storm"),
        says=(
            ("prefill_interference", "58 prefill steps in a row took 77.0 s"),
            ("prefill_interference", "how many streams were running"),
        ),
        why="The summary does not say that a stream was alive while the prompt was computed: the decode steps before and after "
        "may be of two requests, and a prompt of 200k tokens takes 77 s on an idle server, too. Beside the posted pace of the "
        "victim, as the log of such an engine states it, it is interference: see the numbers of 37.",
    ),
    Posted(
        "46-vllm-19036-idle-spin.pyspy.txt",
        undetermined=("scheduler_contention", "frontend_bottleneck"),
        says=(("scheduler_contention", "spins in a wait is busy without work"),),
        why="The thread does no work, and that is evidence against a busy host. It waits for another thread that the profile "
        "does not show and that may be late: refuted would say more than one thread's samples can.",
    ),
    Posted(
        "57-sglang-3909-slow-decline.log",
        refuted=("kv_exhaustion", "queue_overload"),
        undetermined=("bandwidth_saturation", "preemption_storm"),
        why="Preemptions are counted nowhere in these lines; that the pool is at 14 % makes them unlikely and no more.",
    ),
    Posted(
        "59-vllm-2442-allreduce.txt",
        supported=("collective_stall",),
        refuted=("bandwidth_saturation",),
        undetermined=("scheduler_contention",),
        primary="collective_stall",
        says=(
            ("collective_stall", "84 % of the device's time, from 0.6 ms to 1.1 ms each"),
            ("collective_stall", "traces of all ranks tell"),
            ("bandwidth_saturation", "take 13 % of the device's time"),
        ),
        why="The thread calls the host refuted. A table of kernels has no idle time in it, and a rank that its host delays makes "
        "the collectives of the others long: the same question as link or late rank.",
    ),
    Posted(
        "61-sglang-4759-spec-queue.log",
        supported=("sequence_cap",),
        refuted=("kv_exhaustion",),
        undetermined=("speculation_loss",),
        primary="sequence_cap",
        says=(("sequence_cap", "exactly 32 ran"), ("speculation_loss", "2.54 tokens")),
        why="Tokens per verifying step say nothing of that step's price: a loss shows against the same load without speculation.",
    ),
    Posted(
        "61-sglang-11948-low-accept.log",
        refuted=("kv_exhaustion", "queue_overload"),
        undetermined=("speculation_loss",),
        why="As above.",
    ),
    Posted(
        "71-vllm-23448-nccl-watchdog.log",
        supported=("hard_failure",),
        undetermined=("collective_stall",),
        primary="hard_failure",
        says=(("hard_failure", "rank 3 is behind"), ("hard_failure", "it began 10 min before")),
    ),
    Posted(
        "73-vllm-17972-hang-one-running.log",
        refuted=("queue_overload", "kv_exhaustion"),
        undetermined=("engine_hung", "hard_failure", "preemption_storm"),
        says=(
            ("engine_hung", "at least 1 requests were inside"),
            ("engine_hung", "their first step has not been made"),
        ),
        why="No progress is stated; a compilation for the first request and a hang look the same for some minutes.",
    ),
    Posted(
        "73-vllm-9640-drain-stuck.log",
        refuted=("engine_hung", "queue_overload", "kv_exhaustion"),
    ),
    Posted(
        "76-sglang-11648-10110-pd-timeouts.log",
        supported=("transfer_stall",),
        undetermined=("scheduler_contention", "hard_failure"),
        primary="transfer_stall",
        says=(("transfer_stall", "the decode side waited for data"),),
        why="That the host is not at fault does not follow from a deadline that passed.",
    ),
    Posted(
        "81-dynamo-4425-2552-ttft.txt",
        undetermined=("queue_overload", "transfer_stall", "client_artifact"),
        why="A client's table shows that first tokens are late and not where: the sweep over concurrency that tells is in "
        "the thread.",
    ),
    Posted(
        "87-sglang-4244-5625-stale-gauges.prom",
        undetermined=("cache_thrashing", "cache_prefix_broken", "kv_exhaustion", "queue_overload", "engine_hung"),
        says=(("warning", "one scrape is a moment"),),
    ),
    Posted(
        "90-sglang-33067-22331-derived-step-time.log",
        refuted=("engine_hung", "queue_overload"),
        says=(("warning", "does not follow the contexts"),),
    ),
    Posted(
        "92-spyre-1030-1cat-90-hit-rate.log",
        refuted=("cache_thrashing",),
        undetermined=("cache_prefix_broken",),
        says=(("warning", "the last 1,000 requests"),),
    ),
    Posted(
        "94-prodstack-617-renamed-metrics.prom",
        undetermined=("prefill_interference", "kv_exhaustion", "queue_overload"),
        says=(("warning", "one scrape is a moment"),),
    ),
    Posted(
        "94-prodstack-318-idle-router.prom",
        undetermined=("kv_exhaustion", "queue_overload"),
        why="Nothing waits at the moment of the scrape; queue times since the start are not those of an incident.",
    ),
    Posted(
        "97-tgis-ibm-18-prefill-histogram.prom",
        undetermined=("kv_exhaustion", "queue_overload", "preemption_storm", "prefill_interference"),
    ),
    Posted(
        "97-sglang-7944-aborted-requests.prom",
        undetermined=("kv_exhaustion", "queue_overload", "hard_failure", "transfer_stall"),
        why="157 of 217 requests were aborted since the start: by clients or by the engine, a count alone does not say.",
    ),
    Posted("97-vllm-31193-iteration-log.log", refuted=("prefill_interference",), undetermined=("kv_exhaustion",)),
    Posted(
        "98-tpu-2983-offload-healthy.log",
        refuted=("cache_thrashing",),
        undetermined=("kv_exhaustion", "preemption_storm", "queue_overload"),
        why="Whether anything was preempted stands in no line of this version's log.",
    ),
]

V1 = (
    "INFO 11-03 07:{:02}:{:02} [loggers.py:118] Engine 000: Avg prompt throughput: {prompt} tokens/s, Avg generation "
    "throughput: {tokens} tokens/s, Running: {running} reqs, Waiting: {waiting} reqs, GPU KV cache usage: {usage}%, "
    "Prefix cache hit rate: {hits}%"
)


def v1(count: int = 6, *, prompt: float = 0.0, tokens: float = 0.0, running: int = 0, waiting: int = 0, usage: float = 0.0,
       hits: float = 0.0) -> list[str]:  # fmt: skip
    """The same line every 10 s."""
    values = {"prompt": prompt, "tokens": tokens, "running": running, "waiting": waiting, "usage": usage, "hits": hits}
    return [V1.format(n // 6, n % 6 * 10, **values) for n in range(count)]


NUMBERS = {
    "12 a pool that is reserved, beside its log": (
        # 13B on 80 GB: 0.9 x 81920 MiB, idle (vllm-project/vllm#550)
        {
            "smi.csv": ["memory.used [MiB], memory.total [MiB]", "73728 MiB, 81920 MiB"],
            "engine.log": v1(running=1, tokens=40.0, usage=3.0),
        },
        Posted("", supported=("expected_reservation",), refuted=("kv_exhaustion",), primary="expected_reservation"),
    ),
    "12 a pool that is reserved, without its usage": (
        {"smi.csv": ["memory.used [MiB], memory.total [MiB]", "73728 MiB, 81920 MiB"]},
        Posted("", undetermined=("expected_reservation", "kv_exhaustion", "kv_leak")),
    ),
    "13 less than was asked for": (
        # vllm-project/vllm#7768: nothing high to explain; why it is less, only the start-up lines say
        {"smi.txt": ["| 30%   26C    P8    16W / 450W |  14214MiB / 24564MiB |      0%      Default |"]},
        Posted("", refuted=("expected_reservation",), undetermined=("kv_exhaustion",)),
    ),
    "17 a request larger than the pool": (
        # vllm-project/vllm#39734
        {
            "engine.log": [
                "INFO 11-03 06:59:00 [config.py:1] Using max model len 262144",
                "INFO 11-03 06:59:30 [kv_cache_utils.py:1] GPU KV cache size: 76,640 tokens",
                *v1(waiting=1),
            ]
        },
        Posted(
            "",
            supported=("admission_stall",),
            refuted=("kv_exhaustion",),
            undetermined=("engine_hung", "hard_failure", "scheduler_contention"),
            primary="admission_stall",
            says=(("admission_stall", "the pool holds 76,640 tokens and one request may have 262,144"),),
        ),
    ),
    "62 one line of a burst": (
        # vllm-project/vllm#8804: 190 run, 651 wait; one line shows no line that moves and no cap
        {"engine.log": v1(1, prompt=3943.4, tokens=8317.6, running=190, waiting=651, usage=6.7)},
        Posted("", refuted=("kv_exhaustion",), undetermined=("queue_overload", "sequence_cap")),
    ),
    "62 lines of a burst at one number": (
        {"engine.log": v1(6, prompt=3943.4, tokens=8317.6, running=190, waiting=651, usage=6.7)},
        Posted("", supported=("queue_overload", "sequence_cap"), refuted=("kv_exhaustion",), primary="sequence_cap"),
    ),
    "75 an allocation in the middle of a prefill": (
        # wtdcode/vllm-backport#94, vllm-project/vllm#26863
        {
            "engine.log": [
                *v1(3, prompt=900.0, tokens=40.0, running=3, usage=31.0),
                "ERROR 11-03 07:00:31 [core.py:1] torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 232.00 MiB. "
                "GPU 0 has a total capacity of 23.57 GiB of which 154.25 MiB is free.",
                "ERROR 11-03 07:00:32 [async_llm.py:1] EngineDeadError: EngineCore encountered an issue.",
            ]
        },
        Posted(
            "",
            supported=("hard_failure",),
            refuted=("kv_exhaustion",),
            primary="hard_failure",
            says=(("hard_failure", "first out_of_memory"), ("hard_failure", "then engine_dead")),
        ),
    ),
    "86 a gauge a layer too high": (
        # vllm-project/vllm-omni#6547: ten run where one may
        {
            "engine.log": [
                "INFO 11-03 06:59:00 [api_server.py:1] non-default args: {'max_num_seqs': 1}",
                *v1(running=10, tokens=50.0, usage=5.0),
            ]
        },
        Posted("", refuted=("kv_exhaustion",), says=(("warning", "a layer above the scheduler"),)),
    ),
}
"""Incidents of which only numbers are posted, as the lines or tables that state these numbers."""


def diagnose_files(*files: Path) -> Diagnosis:
    observation = read_files([str(file) for file in files], None).observation()
    return judge(observation, None, (), is_live=False, target=observation.target)


def check(posted: Posted, diagnosis: Diagnosis) -> None:
    by_verdict = {f.name: f.verdict.value for f in diagnosis.findings}
    assert not [f.name for f in diagnosis.findings if f.error], "a rule failed"
    assert {name for name, found in by_verdict.items() if found == "supported"} == set(posted.supported)
    assert {name: by_verdict[name] for name in posted.refuted} == dict.fromkeys(posted.refuted, "refuted")
    assert {name: by_verdict[name] for name in posted.undetermined} == dict.fromkeys(
        posted.undetermined, "undetermined"
    )
    assert diagnosis.primary == posted.primary
    for name, words in posted.says:
        found = "\n".join(diagnosis.warnings) if name == "warning" else texts(diagnosis, name)
        assert words in found


@pytest.mark.parametrize("posted", POSTED, ids=lambda posted: posted.file)
def test_a_posted_file(posted):
    check(posted, diagnose_files(DATA / posted.file))


@pytest.mark.parametrize(("files", "posted"), NUMBERS.values(), ids=NUMBERS)
def test_posted_numbers(tmp_path, files, posted):
    for name, lines in files.items():
        (tmp_path / name).write_text("\n".join(lines) + "\n")
    check(posted, diagnose_files(*(tmp_path / name for name in files)))


def test_what_is_open_asks_for_what_would_settle_it():
    for posted in POSTED:
        diagnosis = diagnose_files(DATA / posted.file)
        unasked = [f.name for f in diagnosis.findings if f.verdict.value == "undetermined" and not f.judgement.missing]
        assert not unasked, posted.file
