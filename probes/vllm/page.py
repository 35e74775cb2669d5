"""Our metrics on vLLM's own page: each scrape fetches them from the engines' side ports."""

from collections.abc import Iterable, Iterator

import urllib3
from prometheus_client.core import Metric
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector
from urllib3.exceptions import HTTPError

from probes.vllm import rendezvous
from probes.vllm.hooks import log

_TIMEOUT_SECONDS = 3.0


class SidePortCollector(Collector):
    """The metrics of every engine of this server, with a label `engine` where there are several."""

    def __init__(self) -> None:
        self._pool = urllib3.PoolManager(maxsize=4, retries=False, timeout=urllib3.Timeout(_TIMEOUT_SECONDS))
        self._was_read = True

    def describe(self) -> Iterable[Metric]:
        return []  # known only once the engines are up

    def collect(self) -> Iterator[Metric]:
        """Nothing while an engine cannot be read: absent, never zero."""
        try:
            ports = rendezvous.side_ports()
            pages = {engine: self._page(url) for engine, url in ports.items()}
        except (HTTPError, OSError) as error:
            if self._was_read:
                log.warning("stallscope: no metrics of the probe on this page: %s", error)
            self._was_read = False
            return
        self._was_read = True
        yield from _merged({engine: page for engine, page in pages.items() if page is not None})

    def _page(self, url: str) -> str | None:
        """None when the probe of that engine is off, as its own log line has said."""
        response = self._pool.request("GET", f"{url}/metrics")
        return response.data.decode() if response.status == 200 else None


def _merged(pages: dict[int, str]) -> Iterator[Metric]:
    merged: dict[str, Metric] = {}
    for engine, page in pages.items():
        for family in text_string_to_metric_families(page):
            if len(pages) > 1:
                family.samples = [one._replace(labels=one.labels | {"engine": str(engine)}) for one in family.samples]
            if family.name in merged:
                merged[family.name].samples += family.samples
            else:
                merged[family.name] = family
    yield from merged.values()
