"""Entry point of `vllm.general_plugins`: vLLM calls `register` in each of its processes.

The environment says whether: STALLSCOPE_PROBE=0 keeps the probe off, STALLSCOPE_PROBE=force tries it on a vLLM version on
which it has not been tried (the self-check still decides). Nothing here ever raises into vLLM.
"""

import os
from typing import Any

from probes.vllm.hooks import Hooks, log

SWITCH_VARIABLE = "STALLSCOPE_PROBE"

_registered = False


def is_wanted() -> bool:
    return os.environ.get(SWITCH_VARIABLE, "1").lower() not in ("0", "off", "false", "no")


def register() -> None:
    """Idempotent per process."""
    global _registered
    if _registered or not is_wanted():
        return
    _registered = True
    try:
        problem = _problem()
        if problem is None:
            _install()
    except Exception as error:  # noqa: BLE001 - whatever a changed vLLM raises, it must start
        problem = f"{type(error).__name__}: {error}"
    if problem is not None:
        log.warning("stallscope: the probe stays off: %s", problem)


def _problem() -> str | None:
    import vllm

    from probes.vllm import selfcheck

    problem = selfcheck.version_problem(vllm.__version__)
    if problem is None or os.environ.get(SWITCH_VARIABLE, "") == "force":
        return None
    return f"{problem}; {SWITCH_VARIABLE}=force tries it"


def _install() -> None:
    """Hooks the making of a scheduler and the steps of a worker: which of them this process has, is not known yet.

    vLLM calls `register` from within the making of its engine core and its workers: both must be hooked by what comes later.
    """
    from vllm.v1.core.sched.scheduler import Scheduler
    from vllm.v1.worker.worker_base import WorkerWrapperBase

    from probes.vllm.selfcheck import signature_problem
    from probes.vllm.worker import WorkerProbe

    problem = signature_problem(WorkerWrapperBase, "execute_model", "scheduler_output")
    if problem is not None:
        raise RuntimeError(problem)
    hooks = Hooks()
    worker = WorkerProbe(hooks)
    hooks.add(WorkerWrapperBase, "execute_model", before=worker.before_execute, after=worker.after_execute)
    building = Hooks()
    building.add(Scheduler, "__init__", after=_attach)


def _attach(_: None, scheduler: Any, *__: Any) -> None:
    """After Scheduler.__init__. One line says what came of it."""
    from probes.vllm import selfcheck
    from probes.vllm.engine import EngineProbe

    hooks = Hooks()
    try:
        problems = selfcheck.signature_problems()
        if not problems and (problem := selfcheck.pool_problem()) is not None:
            problems = [problem]
        if not problems:
            scheduler.stallscope_probe = probe = EngineProbe(scheduler, hooks)
            log.info("stallscope: the probe is on; step records at %s/debug/steps", probe.side_port.url)
            return
    except Exception as error:  # noqa: BLE001 - the engine is built, and must run
        problems = [f"{type(error).__name__}: {error}"]
    hooks.remove()
    log.error("stallscope: the probe stays off: %s", "; ".join(problems))
