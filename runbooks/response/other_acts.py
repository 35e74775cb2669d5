"""Acts beside the admin surface: a recording, a webhook, an allow-listed local command."""

import os
import signal
import subprocess
from pathlib import Path
from typing import ClassVar

import urllib3
from urllib3.exceptions import HTTPError

from diagnose.errors import DiagnoseError
from diagnose.sources.http import Endpoint
from diagnose.sources.live import Watch, any_page
from diagnose.units import parse_duration, printable
from probes.recording import RecordingWriter
from runbooks.errors import AdminError, Refused
from runbooks.response.act_base import BaseAct, Effect, Intent, Site

_KEPT_OUTPUT = 500


class Capture(BaseAct, frozen=True, kw_only=True, tag="capture"):
    """A recording for the people who come later."""

    length: str = "30s"
    changes_target: ClassVar[bool] = False
    reversible: ClassVar[bool] = False

    def problems(self) -> list[str]:
        try:
            fits = 1 <= parse_duration(self.length) <= 600
        except ValueError as error:
            return [str(error)]
        return super().problems() + ([] if fits else ["length must be 1s to 10m"])

    def prepare(self, site: Site) -> Intent:
        return {"text": f"record {self.length} of {site.url}", "file": str(site.recordings / f"{site.key}-capture.rec")}

    def look(self, site: Site, intent: Intent) -> Effect:
        return Effect.TOOK if Path(intent["file"]).exists() else Effect.DID_NOT

    def apply(self, site: Site, intent: Intent) -> str:
        path = Path(intent["file"])
        part = path.with_suffix(".part")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            endpoint = Endpoint(site.url)
            with RecordingWriter(part, endpoint.url, site.clock.unix(), existing="replace") as writer:
                watch = Watch(endpoint, site.clock, writer.write, first=any_page, keeps=False)
                watch.run(parse_duration(self.length), 1.0)
            part.rename(path)
        except (OSError, DiagnoseError) as error:
            raise Refused(f"nothing was recorded: {error}") from None
        return f"recorded to {path}"


class CallWebhook(BaseAct, frozen=True, kw_only=True, tag="webhook"):
    url: str
    undo_url: str = ""

    @property
    def can_be_undone(self) -> bool:
        return bool(self.undo_url)

    def problems(self) -> list[str]:
        urls = [url for url in (self.url, self.undo_url) if url and not url.startswith(("http://", "https://"))]
        return super().problems() + [f"{url!r} is not an http(s) URL" for url in urls]

    def prepare(self, site: Site) -> Intent:
        return {"text": f"POST to {self.url}", "key": site.key}

    def look(self, site: Site, intent: Intent) -> Effect:
        return Effect.UNKNOWN

    def apply(self, site: Site, intent: Intent) -> str:
        return self._post(self.url, site, intent, "act")

    def undo(self, site: Site, intent: Intent) -> str:
        return self._post(self.undo_url, site, intent, "undo")

    def _post(self, url: str, site: Site, intent: Intent, verb: str) -> str:
        key = f"{intent['key']}-{verb}"
        body = {"act": verb, "key": key, "target": site.target, "url": site.url}
        try:
            answer = urllib3.request(
                "POST", url, json=body, headers={"Idempotency-Key": key}, timeout=10.0, retries=False
            )
        except HTTPError as error:
            raise AdminError(f"{url}: {type(error).__name__}; whether it was heard is not known") from None
        if 400 <= answer.status < 500:
            raise Refused(f"{url}: answered HTTP {answer.status}")
        if not 200 <= answer.status < 300:
            raise AdminError(f"{url}: answered HTTP {answer.status}; what it did is not known")
        return f"{url} answered HTTP {answer.status}"


class RunCommand(BaseAct, frozen=True, kw_only=True, tag="command"):
    """A command of [commands], with the arguments that stand there and no others."""

    command: str
    undo_command: str = ""
    look_command: str = ""
    """Exits 0 when the command has taken effect; without it a command that a crash cut off is not repeated."""
    timeout: str = "30s"

    @property
    def can_be_undone(self) -> bool:
        return bool(self.undo_command)

    def problems(self) -> list[str]:
        try:
            fits = 1 <= parse_duration(self.timeout) <= 300
        except ValueError as error:
            return [str(error)]
        return super().problems() + ([] if fits else ["timeout must be 1s to 5m"])

    def prepare(self, site: Site) -> Intent:
        return {"text": f"run {' '.join(site.commands[self.command])}", "key": site.key}

    def look(self, site: Site, intent: Intent) -> Effect:
        if not self.look_command:
            return Effect.UNKNOWN
        code, _ = self._run(self.look_command, site, intent)
        return Effect.TOOK if code == 0 else Effect.DID_NOT

    def apply(self, site: Site, intent: Intent) -> str:
        return self._done(self.command, site, intent)

    def undo(self, site: Site, intent: Intent) -> str:
        return self._done(self.undo_command, site, intent)

    def _done(self, name: str, site: Site, intent: Intent) -> str:
        code, output = self._run(name, site, intent)
        if code is None:
            raise AdminError(
                f"command {name} did not end within {self.timeout} and was killed; what it did is not known"
            )
        if code:
            raise AdminError(f"command {name} ended with {code}, what it did is not known: {output}")
        return f"command {name} ended with 0{': ' + output if output else ''}"

    def _run(self, name: str, site: Site, intent: Intent) -> tuple[int | None, str]:
        """Exit code, None when it had to be killed, and the last of its output."""
        environment = {
            "PATH": os.environ.get("PATH", os.defpath),
            "STALLSCOPE_KEY": intent["key"],
            "STALLSCOPE_TARGET": site.target,
            "STALLSCOPE_URL": site.url,
        }
        try:
            process = subprocess.Popen(  # noqa: S603 - allow-listed by the configuration, fixed arguments, no shell
                site.commands[name],
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        except OSError as error:
            raise Refused(f"command {name} cannot be started: {error.strerror or error}") from None
        try:
            output = process.communicate(timeout=parse_duration(self.timeout))[0]
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
            return None, ""
        return process.returncode, printable(" ".join(output.decode(errors="replace").split())[-_KEPT_OUTPUT:])
