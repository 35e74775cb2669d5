"""A real Prometheus and a real VictoriaMetrics over backfilled pages."""

import shutil
import subprocess
import time
import urllib.request
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from socket import socket
from typing import NamedTuple

from diagnose.exposition import ExpositionParser

MISSING = [name for name in ("prometheus", "promtool") if shutil.which(name) is None]
REASON = f"needs {' and '.join(MISSING)} on the PATH (Debian: prometheus)"
VICTORIA = "victoria-metrics"
VICTORIA_REASON = f"needs {VICTORIA} on the PATH (Debian: {VICTORIA})"
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
    address = _free_address()
    arguments = [
        f"--config.file={config}",
        f"--storage.tsdb.path={data}",
        "--storage.tsdb.retention.time=100y",
        f"--web.listen-address={address}",
    ]
    with _running(["prometheus", *arguments], address, "/-/ready", directory / "server.log") as url:
        yield url


@contextmanager
def serve_victoria(directory: Path, lines: Iterable[str]) -> Iterator[str]:
    """The address of a VictoriaMetrics that has taken in the lines."""
    address = _free_address()
    arguments = [
        f"-storageDataPath={directory / 'data'}",
        f"-httpListenAddr={address}",
        "-retentionPeriod=100y",
        "-maxLabelsPerTimeseries=100",
    ]
    with _running([VICTORIA, *arguments], address, "/health", directory / "server.log") as url:
        stamped = (line.rpartition(" ") for line in lines if not line.startswith("#"))
        body = "".join(f"{sample} {round(float(unix) * 1000)}\n" for sample, _, unix in stamped).encode()
        urllib.request.urlopen(urllib.request.Request(f"{url}/api/v1/import/prometheus", body, method="POST")).close()
        urllib.request.urlopen(f"{url}/internal/force_flush").close()
        yield url


def _free_address() -> str:
    with socket() as free:
        free.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{free.getsockname()[1]}"


@contextmanager
def _running(command: list[str], address: str, ready: str, log: Path) -> Iterator[str]:
    url = f"http://{address}"
    with log.open("w") as output:
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)
    try:
        _wait_until_ready(url + ready, process, log)
        yield url
    finally:
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(10)


def _wait_until_ready(url: str, process: "subprocess.Popen[bytes]", log: Path) -> None:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        assert process.poll() is None, log.read_text()
        try:
            with urllib.request.urlopen(url, timeout=1) as answer:
                if answer.status == 200:
                    return
        except OSError:
            time.sleep(0.05)
    raise AssertionError(f"no answer within {START_SECONDS:g} s: {log.read_text()}")
