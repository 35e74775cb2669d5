"""Entry point of `vllm.stat_logger_plugins`: puts our metrics on vLLM's own /metrics page.

vLLM makes one of these per engine in its API server. What it tells them is not used: the metrics live with the engine.
"""

from typing import Any

from prometheus_client import REGISTRY
from vllm.v1.metrics.loggers import StatLoggerBase

from probes.vllm.page import SidePortCollector
from probes.vllm.plugin import is_wanted


class StallscopeStatLogger(StatLoggerBase):  # type: ignore[misc] # vLLM is not installed where types are checked
    def __init__(self, vllm_config: Any, engine_index: int = 0) -> None:
        if engine_index == 0 and is_wanted():
            REGISTRY.register(SidePortCollector())

    def record(self, *_: Any, **__: Any) -> None:
        pass

    def log_engine_initialized(self) -> None:
        pass
