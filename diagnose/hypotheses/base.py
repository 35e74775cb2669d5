"""What a hypothesis is."""

from abc import ABC, abstractmethod
from math import ceil
from typing import ClassVar

from diagnose.case import Case, is_plain_url
from diagnose.dialects.registry import engine_of
from diagnose.dialects.stallscope import STALLSCOPE
from diagnose.verdict import Argument, Judgement


class Hypothesis(ABC):
    """A possible cause. The subclass's docstring is the explanation a person reads.

    `benign` ones explain a symptom that is no fault; supporting one never fails a check.
    `causes_latency` ones compete to be the primary cause.
    """

    name: ClassVar[str]
    benign: ClassVar[bool] = False
    causes_latency: ClassVar[bool] = True

    @abstractmethod
    def judge(self, case: Case, argument: Argument) -> Judgement:
        """Pure: reads the case, writes evidence, concludes. Whatever it raises is reported as a failed rule."""


def command_for(case: Case, topic: str, otherwise: str = "") -> str:
    """How to get on this engine what belongs to a topic (see `diagnose.dialects.base.TOPICS`).

    It can be pasted as it stands: what is no command is a comment. `otherwise`, or a longer look, where the engine gives the
    topic by itself.
    """
    engine, advice = engine_of(case.signals.dialect), case.signals.advice.get(topic, "")
    if STALLSCOPE.name in case.signals.dialect.split(" + ") and topic != "limits":
        engine, advice = STALLSCOPE, ""  # the probes are there already, in whatever engine
        if topic in ("steps", "blocks") and (elsewhere := _side_port(case)):
            return elsewhere
    command = engine.commands.get(topic, "") if engine is not None else ""
    command = command.replace("{address}", case.address).replace("{source}", case.source)
    if advice:
        return f"{command}   # {advice}" if command else f"# {advice}"
    return command or otherwise or command_live(case)


def _side_port(case: Case) -> str:
    """Empty unless the probe in another engine answers at a port of its own alone, which its metrics name."""
    url = case.signals.info.get("debug_url", "")
    if not is_plain_url(url) or not any(event.kind == "no_step_records" for event in case.events):
        return ""
    return f"stallscope diagnose {url}   # on the server's machine: the port of the probe alone"


def command_census(case: Case) -> str:
    """How to get the block buckets of this target."""
    return command_for(case, "blocks")


def start_flag(case: Case, setting: str) -> str | None:
    """The flag that sets `max_batched_tokens` or `max_sequences` when a server of this engine is started."""
    engine = engine_of(case.signals.dialect)
    return engine.knobs.get(setting) if engine is not None else None


def set_while_serving(case: Case) -> bool:
    """Only our engine has an admin surface for its limits."""
    return engine_of(case.signals.dialect) is STALLSCOPE


def set_knob(case: Case, setting: str, value: float | None) -> str:
    """On our engine while it serves, on another one with its next start. None: a value that the reader has to fill in."""
    number = "N" if value is None else f"{value:.0f}"
    if set_while_serving(case):
        return (
            f'curl -fsS -X POST {case.address}/admin/limits -H "Authorization: Bearer $(cat TOKEN_FILE)" '
            f"-d '{{\"{setting}\": {number}}}'"
        )
    return f"# start the server again with {start_flag(case, setting) or setting} {number}"


def command_live(case: Case, options: str = "--window 60s") -> str:
    """A longer look. Of a Prometheus, whose scrapes are far apart, at three times the window that was judged."""
    if case.arguments is not None:
        minutes = max(_PROMETHEUS_MINUTES, ceil(3 * (case.signals.length_seconds or 0.0) / 60))
        options = f"--window {minutes}m"
    return f"stallscope diagnose {case.source} {options}"


_PROMETHEUS_MINUTES = 30


def command_records(case: Case) -> str:
    """How to get step records of this target, or what its engine has instead."""
    if only_traced(case):
        return command_trace(case)
    if case.is_live or case.signals.advice.get("steps"):
        return command_for(case, "steps")
    return f"stallscope record {case.address} --for 60s -o incident.rec   # on the live server"


def only_traced(case: Case) -> bool:
    """A profiler's trace is all there is."""
    return case.signals.is_traced and not case.signals.num_scrapes


def command_trace(case: Case) -> str:
    """How to record a complete trace of every rank, with steps annotated: vLLM's and SGLang's own endpoints."""
    return (
        f"curl -X POST {case.address}/start_profile; sleep 5; curl -X POST {case.address}/stop_profile   "
        "# vLLM must have been started with --profiler-config.profiler torch --profiler-config.torch_profiler_dir /DIR "
        "(VLLM_TORCH_PROFILER_DIR=/DIR before 0.13); then stallscope diagnose /DIR/*.gz"
    )


def command_host(case: Case) -> str:
    """How to look at the server's threads: on its own machine, by its process id."""
    return f"stallscope diagnose {case.address} --pid PID   # on the server's machine, with stallscope[host]"


def command_gpu(case: Case, fields: str, options: str = "") -> str:
    """How to read these figures of the driver, and how they come to the diagnosis."""
    return (
        f"nvidia-smi --query-gpu={fields} --format=csv{options}   # on the server's machine, into gpu.csv; then stallscope "
        f"diagnose {case.source} gpu.csv"
    )
