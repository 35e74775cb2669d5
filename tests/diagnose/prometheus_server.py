"""A real Prometheus over backfilled pages, and a Prometheus API that answers as a test wants."""

import shutil
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from socket import socket
from typing import NamedTuple

from diagnose.exposition import ExpositionParser

NEEDED = ("prometheus", "promtool")
MISSING = [name for name in NEEDED if shutil.which(name) is None]
REASON = f"needs {' and '.join(MISSING)} on the PATH (Debian: prometheus)"
START_SECONDS = 60.0


class Scraped(NamedTuple):
    """One page as one target's scrape; no page: it did not answer."""

    unix: float
    labels: Mapping[str, str]
    page: str


def openmetrics(scrapes: Iterable[Scraped]) -> Iterator[str]:
    """Lines that promtool reads: every sample with its target's labels and its time."""
    parser = ExpositionParser()
    for scrape in scrapes:
        for name, series in parser.parse(scrape.page).samples.items():
            for labels, value in series.items():
                known = {**dict(labels), **scrape.labels}
                inner = ",".join(f'{label}="{text}"' for label, text in known.items())
                yield f"{name}{{{inner}}} {value!r} {scrape.unix:.3f}\n"
        up = ",".join(f'{label}="{text}"' for label, text in scrape.labels.items())
        yield f"up{{{up}}} {int(bool(scrape.page))} {scrape.unix:.3f}\n"
    yield "# EOF\n"


def backfill(directory: Path, lines: Iterable[str]) -> Path:
    """Makes the blocks of a Prometheus; its data directory."""
    text, data = directory / "samples.om", directory / "data"
    with text.open("w") as file:
        file.writelines(lines)
    command = ["promtool", "tsdb", "create-blocks-from", "openmetrics", str(text), str(data)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    text.unlink()
    return data


@contextmanager
def serve(directory: Path, data: Path) -> Iterator[str]:
    """The address of a Prometheus over the blocks."""
    config = directory / "prometheus.yml"
    config.write_text("global: {}\n")
    with socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    url = f"http://127.0.0.1:{port}"
    log = (directory / "prometheus.log").open("w")
    arguments = [
        f"--config.file={config}",
        f"--storage.tsdb.path={data}",
        "--storage.tsdb.retention.time=100y",
        f"--web.listen-address=127.0.0.1:{port}",
    ]
    process = subprocess.Popen(["prometheus", *arguments], stdout=log, stderr=subprocess.STDOUT)
    try:
        _wait_until_ready(url, process, directory)
        yield url
    finally:
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(10)
        log.close()


def _wait_until_ready(url: str, process: "subprocess.Popen[bytes]", directory: Path) -> None:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        assert process.poll() is None, (directory / "prometheus.log").read_text()
        try:
            with urllib.request.urlopen(f"{url}/-/ready", timeout=1) as answer:
                if answer.status == 200:
                    return
        except OSError:
            time.sleep(0.05)
    raise AssertionError(f"no Prometheus within {START_SECONDS:g} s: {(directory / 'prometheus.log').read_text()}")
