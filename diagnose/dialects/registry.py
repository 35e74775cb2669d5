"""The dialects this version speaks, and which of them a page speaks."""

from diagnose.dialects.amd import AMD
from diagnose.dialects.base import Dialect
from diagnose.dialects.best_effort import best_effort
from diagnose.dialects.frontends import DCGM, DYNAMO, RAY_SERVE, TRITON
from diagnose.dialects.llamacpp import LLAMACPP
from diagnose.dialects.lmdeploy import LMDEPLOY
from diagnose.dialects.sglang import SGLANG
from diagnose.dialects.stallscope import STALLSCOPE
from diagnose.dialects.tensorrt_llm import TENSORRT_LLM, TRITON_TRTLLM
from diagnose.dialects.tgi import TGI
from diagnose.dialects.view import PageView
from diagnose.dialects.vllm import VLLM
from diagnose.errors import TargetError
from diagnose.exposition import Exposition
from diagnose.units import printable

DIALECTS: tuple[Dialect, ...] = (
    STALLSCOPE,
    VLLM,
    SGLANG,
    LLAMACPP,
    TENSORRT_LLM,
    TRITON_TRTLLM,
    TGI,
    LMDEPLOY,
    TRITON,
    DYNAMO,
    RAY_SERVE,
    AMD,
    DCGM,
)
"""In order of precedence: where two dialects on one target state a signal, the earlier one gives it."""

_FOREIGN = {
    "node_": "node_exporter",
    "container_": "cAdvisor",
    "kube_": "kube-state-metrics",
    "prometheus_": "Prometheus itself",
    "nginx_": "nginx",
    "envoy_": "Envoy",
}
"""Exporters that people take for their engine's."""


def spoken(view: PageView) -> tuple[Dialect, ...]:
    """Every dialect of the page (an engine with our probe speaks two); the best-effort one if none is known."""
    known = tuple(dialect for dialect in DIALECTS if dialect.speaks(view))
    if any(dialect.is_engine for dialect in known):
        return known
    guess = best_effort(view)
    return known if guess is None else (*known, guess)


def engine_of(name: str) -> Dialect | None:
    """The engine's dialect among those that a window speaks (`stallscope + vllm`, `sglang log`): the host of our probes first."""
    spoken_here = {part.removesuffix(" log") for part in name.split(" + ")}
    engines = [dialect for dialect in DIALECTS if dialect.is_engine and dialect.name in spoken_here]
    return next((dialect for dialect in engines if dialect is not STALLSCOPE), engines[0] if engines else None)


def recognise(target: str, page: Exposition) -> tuple[Dialect, ...]:
    """The page's dialects, at least one. Raises TargetError, naming what was found instead."""
    view = PageView(page)
    dialects = spoken(view)
    if dialects:
        return dialects
    raise TargetError(f"{target}: {what_it_is(view)}; it needs the metrics of an engine ({engine_names()})")


def what_it_is(view: PageView) -> str:
    """`a metrics page of node_exporter`, or by the names it holds."""
    for prefix, exporter in _FOREIGN.items():
        if any(name.startswith(prefix) for name in view.names):
            return f"a metrics page of {exporter}, which says nothing of an engine"
    found = sorted({name.split("_")[0].split(":")[0] for name in view.page.samples})
    begin = printable(", ".join(found[:6])) or "nothing: the page is empty"
    return f"a metrics page of no engine this version knows; its metrics begin with {begin}"


def engine_names() -> str:
    return ", ".join(dialect.name for dialect in DIALECTS if dialect.is_engine)
