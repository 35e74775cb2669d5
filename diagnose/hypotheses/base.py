"""What a hypothesis is."""

from abc import ABC, abstractmethod
from typing import ClassVar

from diagnose.case import Case
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


def command_for(case: Case, topic: str, otherwise: str) -> str:
    """How to get on this engine what belongs to a topic (see `diagnose.dialects.base.TOPICS`)."""
    return case.signals.advice.get(topic, otherwise)


def command_census(case: Case) -> str:
    """How to get the block buckets of this target."""
    return command_for(case, "blocks", f"curl -s {case.address}/debug/census" if case.is_live else command_live(case))


def command_live(case: Case, options: str = "--window 60s") -> str:
    return f"stallscope diagnose {case.address} {options}"


def command_records(case: Case) -> str:
    """How to get step records of this target, or what its engine has instead."""
    if only_traced(case):
        return command_trace(case)
    if (advice := case.signals.advice.get("steps")) is not None:
        return advice
    if case.is_live:
        return f"curl -s '{case.address}/debug/steps?since=0'"
    return f"stallscope record {case.address} --for 60s -o incident.rec   # on the live server"


def only_traced(case: Case) -> bool:
    """A profiler's trace is all there is."""
    return case.signals.is_traced and not case.signals.num_scrapes


def command_trace(case: Case) -> str:
    """How to record a complete trace of every rank, with steps annotated: vLLM's and SGLang's own endpoints."""
    return (
        f"curl -X POST {case.address}/start_profile; sleep 5; curl -X POST {case.address}/stop_profile   "
        "# then stallscope diagnose TRACE..."
    )


def command_host(case: Case) -> str:
    """How to look at the server's threads: on its own machine, by its process id."""
    return f"stallscope diagnose {case.address} --pid PID   # on the server's machine, with stallscope[host]"
