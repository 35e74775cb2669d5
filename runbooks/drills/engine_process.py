"""Our engine as a child process: started, found by its ready line, always stopped by its own pid."""

import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType

from runbooks.errors import DrillError

_READY = re.compile(r"ready on (http://\S+)")


class EngineProcess:
    """`with EngineProcess(["--model", "smollm2"]) as engine:` gives a served engine at `engine.url`.

    Raises DrillError with the last lines of its log when it does not get ready.
    """

    def __init__(
        self,
        options: Sequence[str],
        *,
        ready_timeout_seconds: float = 180.0,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """`environment`: variables that the engine gets besides our own."""
        self._options = list(options)
        self._environment = dict(environment or {})
        self._timeout = ready_timeout_seconds
        self._process: subprocess.Popen[str] | None = None
        self._directory = tempfile.TemporaryDirectory(prefix="stallscope-")
        self.log_path = Path(self._directory.name) / "engine.log"
        self.token_path = Path(self._directory.name) / "admin-token"
        self.url = ""

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def admin_token(self) -> str:
        return self.token_path.read_text().strip()

    def __enter__(self) -> "EngineProcess":
        self.token_path.touch(mode=0o600)
        self.token_path.write_text(os.urandom(16).hex() + "\n")
        command = [
            *(sys.executable, "-P", "-m", "diagnose.cli", "serve", "--port", "0"),
            *("--admin-token-file", str(self.token_path)),
            *self._options,
        ]
        environment = {"OMP_WAIT_POLICY": "PASSIVE", **os.environ, **self._environment}
        with self.log_path.open("w") as log:
            self._process = subprocess.Popen(  # noqa: S603 - our own command, no shell
                command, stdout=subprocess.PIPE, stderr=log, text=True, env=environment
            )
        try:
            self._await_ready(self._process)
        except BaseException:
            self.stop()
            raise
        return self

    def _await_ready(self, process: subprocess.Popen[str]) -> None:
        expired = threading.Event()

        def give_up() -> None:
            expired.set()
            process.kill()

        killer = threading.Timer(self._timeout, give_up)
        killer.start()
        try:
            assert process.stdout is not None
            for line in process.stdout:
                if match := _READY.search(line):
                    self.url = match[1]
                    return
        finally:
            killer.cancel()
        code = process.wait()
        why = f"within {self._timeout:g} s: a busy machine?" if expired.is_set() else f"(exit code {code})"
        raise DrillError(f"the engine did not get ready {why} {self.log_tail()}")

    def log_tail(self, lines: int = 3) -> str:
        return " | ".join(self.log_path.read_text().strip().splitlines()[-lines:]) or "its log is empty"

    def stop(self) -> int | None:
        """SIGTERM, and SIGKILL if it has not drained in time. Returns its exit code."""
        process = self._process
        if process is None:
            return None
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(timeout=15)
            except subprocess.TimeoutExpired:
                process.kill()
        if process.stdout is not None:
            process.stdout.close()
        code = process.wait()
        self._directory.cleanup()
        self._process = None
        return code

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
