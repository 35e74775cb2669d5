"""A real Prometheus and a real Alertmanager, on free ports, stopped by their own pids."""

import json
import shutil
import socket
import subprocess
import time
from contextlib import ExitStack, contextmanager
from pathlib import Path

import urllib3
from urllib3.exceptions import HTTPError

from runbooks.alerts.rules import Burn, Objectives, Pace, rules, to_yaml

PROMETHEUS = shutil.which("prometheus")
ALERTMANAGER = shutil.which("prometheus-alertmanager") or shutil.which("alertmanager")
INSTALLED = PROMETHEUS is not None and ALERTMANAGER is not None
IMPATIENT = Pace(burns=(Burn("page", 10.0, "10s", "20s"),), rate_window="10s", hold="2s", down_after="2s")
"""With 99.9 % wanted, 1 % slow tokens fire: a machine that other work interrupts has fewer, interference has more."""


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


@contextmanager
def running(log: Path, *command: str):
    with log.open("wb") as file:
        process = subprocess.Popen(command, stdout=file, stderr=file)
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def await_answer(url: str, seconds: float = 30.0) -> None:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        try:
            if urllib3.request("GET", url, timeout=2, retries=False).status == 200:
                return
        except HTTPError:
            pass
        time.sleep(0.1)
    raise AssertionError(f"{url} did not answer within {seconds} s")


@contextmanager
def watching(folder: Path, target_url: str, webhook_url: str, token: str, *, limit: float):
    """Prometheus scrapes the target every second; Alertmanager posts to the webhook."""
    assert PROMETHEUS is not None and ALERTMANAGER is not None
    manager_port, port = free_port(), free_port()
    target = target_url.removeprefix("http://")
    (folder / "llm.rules.yml").write_text(
        to_yaml("stallscope", rules("stallscope", Objectives(inter_token=limit, share=0.999), IMPATIENT))
    )
    manager = {
        "route": {"receiver": "stallscope", "group_by": ["alertname"], "group_wait": "1s", "group_interval": "1s"},
        "receivers": [
            {
                "name": "stallscope",
                "webhook_configs": [
                    {
                        "url": webhook_url,
                        "http_config": {"authorization": {"credentials": token}},
                        "send_resolved": True,
                    }
                ],
            }
        ],
    }
    prometheus = {
        "global": {"scrape_interval": "1s", "evaluation_interval": "1s", "scrape_timeout": "1s"},
        "rule_files": ["llm.rules.yml"],
        "alerting": {"alertmanagers": [{"static_configs": [{"targets": [f"127.0.0.1:{manager_port}"]}]}]},
        "scrape_configs": [{"job_name": "stallscope", "static_configs": [{"targets": [target]}]}],
    }
    # JSON is YAML.
    (folder / "alertmanager.yml").write_text(json.dumps(manager))
    (folder / "prometheus.yml").write_text(json.dumps(prometheus))
    with ExitStack() as stack:
        stack.enter_context(
            running(
                folder / "alertmanager.log",
                ALERTMANAGER,
                f"--config.file={folder}/alertmanager.yml",
                f"--storage.path={folder}/alertmanager",
                f"--web.listen-address=127.0.0.1:{manager_port}",
                "--cluster.listen-address=",
            )
        )
        stack.enter_context(
            running(
                folder / "prometheus.log",
                PROMETHEUS,
                f"--config.file={folder}/prometheus.yml",
                f"--storage.tsdb.path={folder}/tsdb",
                f"--web.listen-address=127.0.0.1:{port}",
            )
        )
        await_answer(f"http://127.0.0.1:{manager_port}/-/ready")
        await_answer(f"http://127.0.0.1:{port}/-/ready")
        yield f"http://127.0.0.1:{port}"
