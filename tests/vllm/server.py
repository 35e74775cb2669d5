"""A real vLLM server with the probe, as a child process: started on a free port, always stopped by its own process group."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

import urllib3
from urllib3.exceptions import HTTPError

READY_SECONDS = 600.0
"""Three processes import vLLM one after the other; on a busy machine that alone takes minutes."""


ENVIRONMENT = {"VLLM_PLUGINS": "stallscope", "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"}
"""The plugin is named, so that vLLM adds the debug routes to its own port."""


def serve_command(model: Path, port: int | str, options: Sequence[str]) -> list[str]:
    """Of a server with random weights; to be run with ENVIRONMENT."""
    return [
        *(sys.executable, "-P", "-m", "vllm.entrypoints.openai.api_server"),
        *("--model", str(model), "--served-model-name", "model", "--host", "127.0.0.1", "--port", str(port)),
        *("--load-format", "dummy", "--dtype", "float32", "--enforce-eager"),
        *options,
    ]


class VllmServer:
    """With random weights. `with VllmServer(model, ["--max-model-len", "2048"], log) as server:` serves at `server.url`."""

    def __init__(self, model: Path, options: Sequence[str], log: Path) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        self.url = f"http://127.0.0.1:{port}"
        self.log = log
        self._command = serve_command(model, port, options)
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> "VllmServer":
        with self.log.open("wb") as log:
            self._process = subprocess.Popen(
                self._command,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=os.environ | ENVIRONMENT,
                start_new_session=True,
            )
        try:
            self._await_ready(self._process)
        except BaseException:
            self.stop()
            raise
        return self

    def _await_ready(self, process: "subprocess.Popen[bytes]") -> None:
        deadline = time.monotonic() + READY_SECONDS
        while time.monotonic() < deadline and process.poll() is None:
            with contextlib.suppress(HTTPError):
                if self.get("/health").status == 200:
                    return
            time.sleep(0.5)
        raise RuntimeError(f"vLLM did not get ready (exit code {process.poll()}):\n{self.log_text()[-3000:]}")

    def get(self, path: str) -> urllib3.BaseHTTPResponse:
        return urllib3.request("GET", self.url + path, retries=False, timeout=10)

    def log_text(self) -> str:
        return self.log.read_text(errors="replace")

    def stop(self) -> None:
        """SIGTERM to the server, and SIGKILL to what is left of its process group."""
        process = self._process
        if process is None:
            return
        process.send_signal(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=60)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait(timeout=60)
        self._process = None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
