"""How fast metrics pages are parsed: `python -m tests.benchmarks.exposition_speed`. Prints a table and asserts nothing.

The official client's two parsers read the same pages in the same run, taking turns; CPU time, best of several rounds.
"""

import argparse
import gzip
import io
import json
from collections.abc import Callable, Iterator
from pathlib import Path

from prometheus_client.openmetrics import parser as openmetrics_parser
from prometheus_client.parser import text_string_to_metric_families

from diagnose.exposition import ExpositionParser
from tests.benchmarks.turns import best_milliseconds

ROUNDS = 15
openmetrics: Callable[[io.StringIO], Iterator[object]] = openmetrics_parser.text_fd_to_metric_families
DATA = Path(__file__).resolve().parent.parent / "data/vllm"


def vllm_page(engines: int) -> str:
    """A real page of vLLM 0.32, as a server with so many data-parallel engines writes it."""
    text = gzip.decompress((DATA / "decode-1.prom.gz").read_bytes()).decode()
    lines = text.split("\n")
    samples = [line for line in lines if line and not line.startswith("#")]
    more = [line.replace('engine="0"', f'engine="{number}"') for number in range(1, engines) for line in samples]
    return "\n".join([*lines, *more, ""])


def openmetrics_page(families: int) -> str:
    return "".join(f'# TYPE f{n} gauge\nf{n}{{a="x{n}",b="y"}} {n}.5\n' for n in range(families)) + "# EOF\n"


def measure(text: str, official: Callable[[], object]) -> dict[str, float]:
    """Milliseconds of CPU."""
    warm = ExpositionParser()
    warm.parse(text)
    contenders = {
        "known series": lambda: warm.parse(text),
        "first sight": lambda: ExpositionParser().parse(text),
        "prometheus_client": official,
    }
    return best_milliseconds(contenders, ROUNDS)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--json", metavar="FILE", help="write the figures to FILE as well")
    options = parser.parse_args()
    text, large, om = vllm_page(2), vllm_page(24), openmetrics_page(600)
    pages: dict[str, tuple[str, Callable[[], object]]] = {
        "vLLM, 2 engines": (text, lambda: list(text_string_to_metric_families(text))),
        "vLLM, 24 engines": (large, lambda: list(text_string_to_metric_families(large))),
        "OpenMetrics": (om, lambda: list(openmetrics(io.StringIO(om)))),
    }
    figures: dict[str, dict[str, float]] = {}
    print(
        f"{'page':<18}{'KiB':>6}{'samples':>9}{'known series':>14}{'first sight':>13}{'prometheus_client':>19}{'ratio':>8}"
    )
    for name, (page, official) in pages.items():
        found = measure(page, official)
        samples = sum(1 for line in page.split("\n") if line and not line.startswith("#"))
        size, ratio = len(page.encode()) / 1024, found["prometheus_client"] / found["known series"]
        figures[name] = {**found, "kib": size, "samples": samples, "ratio": ratio}
        times = (
            f"{found['known series']:>11.2f} ms{found['first sight']:>10.2f} ms{found['prometheus_client']:>16.2f} ms"
        )
        print(f"{name:<18}{size:>6.0f}{samples:>9}{times}{ratio:>7.1f}x")
    if options.json:
        Path(options.json).write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
