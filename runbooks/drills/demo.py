"""`stallscope demo`: a labelled condition on a real engine, from the quiet baseline to the trade of a remedy."""

import signal
import sys
import time
from dataclasses import dataclass, replace

import click

from diagnose.commands.diagnose import judge
from diagnose.commands.output import deliver
from diagnose.commands.progress import watch_progress
from diagnose.comparison import compare
from diagnose.diagnosis import Diagnosis
from diagnose.observation import Observation, observe
from diagnose.report.comparison_table import comparison_lines
from diagnose.sources.clock import SystemClock
from diagnose.sources.http import Endpoint
from diagnose.sources.live import Watch
from diagnose.stats import median
from diagnose.units import seconds
from diagnose.verdict import Verdict
from runbooks.admin import AdminClient
from runbooks.drills.engine_process import EngineProcess
from runbooks.drills.load import Load
from runbooks.errors import AdminError, DrillError

_SETTLE_SECONDS = 4.0
"""From the start of a load to the start of its measurement: first prompts are prefilled by then."""
_MIN_EVERY_SECONDS = 1.0
"""A thread per prompt is enough load for the demo's client."""
_IDLE_SECONDS = 60.0
"""How long the last step of an ended load may take: a whole prompt on a slow CPU."""


@dataclass(frozen=True, slots=True)
class Plan:
    """Sizes of the interference demo: chosen so that a CPU that serves five to ten tokens per second shows it."""

    streams: int = 4
    stream_tokens: int = 1000
    """Longer than a window on such a CPU: a stream that ends asks again at the server's pace, which no longer matches."""
    long_words: int = 260
    """About 270 tokens: one chunk under the large budget, three under the small one."""
    every_seconds: float = 8.0
    """At most: long enough for a slow machine to finish one prompt in small chunks before the next arrives."""
    every_gaps: int = 40
    """A prompt for so many tokens of a stream. Each stretches a gap of all streams: 2.5 % of them, so that the 99th percentile
    is one of them, whatever the machine's speed."""
    budget: int = 512
    smaller_budget: int = 96
    quiet_seconds: float = 25.0
    measure_seconds: float = 50.0

    def fitted_to(self, gaps: list[float]) -> "Plan":
        """gaps: a stream's seconds between tokens while nothing disturbs it."""
        if not gaps:
            return self
        wanted = self.every_gaps * median(gaps)
        return replace(self, every_seconds=min(self.every_seconds, max(_MIN_EVERY_SECONDS, wanted)))


@click.command(
    "demo",
    epilog="""\b
Examples:
  stallscope demo
  stallscope demo --condition reservation
  stallscope demo --model tiny --json""",
)
@click.option("--model", default="smollm2", show_default=True, help="A model, as for `stallscope serve`.")
@click.option(
    "--condition",
    type=click.Choice(["interference", "reservation"]),
    default="interference",
    show_default=True,
    help="interference: long prompts disturb streams. reservation: nearly all memory reserved, the pool nearly idle.",
)
@click.option("--threads", type=click.IntRange(1), default=1, show_default=True, help="Engine threads.")
@click.option("--json", "as_json", is_flag=True, help="The diagnosis as JSON on stdout; the story goes to stderr.")
def demo_command(model: str, condition: str, threads: int, as_json: bool) -> None:
    """Start the engine on a real model, induce a condition under load, and diagnose it over HTTP like any server.

    Takes about three minutes on two cores. Ctrl-C stops the engine. Exit codes: 0 the diagnosis is what was induced, 1 it is
    not, 2 the engine could not be started, 130 interrupted.
    """
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # the engine is stopped on the way out, as on Ctrl-C
    tell = Story(as_json)
    try:
        right = (
            _reservation(model, threads, tell) if condition == "reservation" else _interference(model, threads, tell)
        )
    except (DrillError, AdminError) as error:
        click.echo(f"stallscope demo: {error}", err=True)
        sys.exit(2)
    if not right:
        click.echo(
            "stallscope demo: this diagnosis is not what the demo induced; on a very busy machine, try again", err=True
        )
    sys.exit(0 if right else 1)


class Story:
    """The narration; on stderr when stdout carries JSON."""

    def __init__(self, as_json: bool) -> None:
        self.as_json = as_json

    def __call__(self, text: str = "") -> None:
        click.echo(text, err=self.as_json)

    def report(self, diagnosis: Diagnosis) -> None:
        deliver(diagnosis, "json" if self.as_json else "text", quiet=False, verbose=False)


def _interference(model: str, threads: int, tell: Story) -> bool:
    plan = Plan()
    tell(f"1. Starting the engine: {model}, token budget {plan.budget} ...")
    options = ["--model", model, "--threads", str(threads), "--max-batched-tokens", str(plan.budget)]
    with EngineProcess([*options, "--kv-blocks", "600", "--max-sequences", "16"]) as engine:
        tell(f"   {engine.url} is ready (pid {engine.pid})")
        tell(f"\n2. Quiet phase: {plan.streams} streams decode for {plan.quiet_seconds:.0f} s. This is the baseline.")
        baseline, quiet = _measure(engine.url, plan.quiet_seconds, plan, disturbed=False)
        plan = plan.fitted_to(quiet.gaps("stream"))
        tell(
            f"\n3. The same streams, and a prompt of about {plan.long_words} words every {plan.every_seconds:.1f} s, "
            f"for {plan.measure_seconds:.0f} s. Attached over HTTP, as to any server:\n"
        )
        before, before_load = _measure(engine.url, plan.measure_seconds, plan, disturbed=True)
        first = judge(before, baseline, (), is_live=True, target=engine.url)
        tell.report(first)
        tell(f"\n4. Lowering the token budget {plan.budget} -> {plan.smaller_budget} through the admin surface:")
        state = AdminClient(engine.url, engine.admin_token).set("max_batched_tokens", plan.smaller_budget)
        _reset_prefix_cache(engine)
        tell(
            f"   it answers max_batched_tokens {state['max_batched_tokens']}. The same load again, prefix cache reset ..."
        )
        after, after_load = _measure(engine.url, plan.measure_seconds, plan, disturbed=True)
    second = judge(after, baseline, (), is_live=True, target=engine.url)
    tell("\n5. The same measurement, side by side:\n")
    for line in side_by_side(first, second, before_load.ttfts("long"), after_load.ttfts("long"), plan):
        tell(line)
    verdicts = {finding.name: finding.verdict for finding in first.findings}
    return first.primary == "prefill_interference" and verdicts["prefill_interference"] is Verdict.SUPPORTED


def _reservation(model: str, threads: int, tell: Story) -> bool:
    tell(f"1. Starting the engine: {model}, with 97 % of 2 GiB of device memory given to weights and KV pool ...")
    options = ["--model", model, "--threads", str(threads), "--device-memory", "2GiB", "--memory-utilization", "0.97"]
    with EngineProcess(options) as engine:
        tell(f"   {engine.url} is ready (pid {engine.pid})")
        tell("\n2. Two streams decode: device memory is nearly all reserved, the pool nearly empty of active blocks.")
        tell("   Attached over HTTP, as to any server:\n")
        plan = Plan(streams=2)
        observation, _ = _measure(engine.url, 20.0, plan, disturbed=False)
        diagnosis = judge(observation, None, (), is_live=True, target=engine.url)
        tell.report(diagnosis)
    verdicts = {finding.name: finding.verdict for finding in diagnosis.findings}
    return verdicts["expected_reservation"] is Verdict.SUPPORTED and diagnosis.decision.kind.value == "none"


def _measure(url: str, length: float, plan: Plan, *, disturbed: bool) -> tuple[Observation, Load]:
    """One window under load; also the load, for what its clients saw."""
    long_words = plan.long_words if disturbed else 0
    with Load(
        url,
        streams=plan.streams,
        stream_tokens=plan.stream_tokens,
        long_words=long_words,
        every_seconds=plan.every_seconds,
    ) as load:
        time.sleep(_SETTLE_SECONDS)
        # Off a terminal the story is enough.
        with watch_progress(f"watching {url}", length, quiet=not sys.stderr.isatty()) as on_progress:
            watch = Watch(Endpoint(url, timeout_seconds=30.0), SystemClock(), on_progress=on_progress)
            observation = observe(url, watch.run(length, 1.0))
    if errors := load.errors():
        raise DrillError(f"the load met {len(errors)} errors, the first: {errors[0]}")
    return observation, load


def _reset_prefix_cache(engine: EngineProcess) -> None:
    """The same prompts again, with nothing of them cached: what still runs would stay cached, so it is waited for."""
    admin, deadline = AdminClient(engine.url, engine.admin_token), time.monotonic() + _IDLE_SECONDS
    while (state := admin.reset_prefix_cache())["num_running"] or state["num_waiting"]:
        if time.monotonic() >= deadline:
            raise DrillError(f"the engine was not idle {_IDLE_SECONDS:g} s after the load had ended")
        time.sleep(0.2)
    admin.reset_prefix_cache()  # its last step may have ended between the reset and the state above


def side_by_side(
    first: Diagnosis, second: Diagnosis, first_ttft: list[float], second_ttft: list[float], plan: Plan
) -> list[str]:
    """Both windows under the rules of a comparison, with what the clients of the long prompts saw."""
    comparison = compare(first.case.incident, second.case.incident, first.case.policy)
    labels = (f"budget {plan.budget}", f"budget {plan.smaller_budget}")
    rows = [
        *comparison_lines(comparison, *labels),
        "",
        "Long prompts alone, by the clients' clocks:",
        f"{'TTFT p50':<14}{_median(first_ttft):>18}{_median(second_ttft):>18}",
        f"{'answered':<14}{len(first_ttft):>18}{len(second_ttft):>18}",
        "",
        *comparison.reading(),
    ]
    return [f"   {line}".rstrip() for line in rows]


def _median(values: list[float]) -> str:
    return seconds(median(values)) if values else "not observed"
