"""What `stallscope doctor` looks at: the tool's own environment, and whether named targets can be diagnosed from here."""

import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from diagnose.errors import DiagnoseError
from diagnose.units import printable
from probes.extras import PURPOSES, Extra, extras, install_command, own_version

RUNBOOKS_FILE = "runbooks.toml"
_ENGINE_CHECK_SECONDS = 120.0
_PROBE_SECONDS = 2.0
"""Half of it is left to each of the two ways of sampling, and py-spy takes some tenths to begin."""
_OWN_VARIABLES = "STALLSCOPE_"


class State(StrEnum):
    OK = "ok"
    MISSING = "missing"
    """Optional, and not here."""
    BROKEN = "broken"
    """Here or asked for, and it does not work."""


@dataclass(frozen=True, slots=True)
class Check:
    section: str
    subject: str
    state: State
    text: str
    command: str | None = None
    """What would bring or settle it."""


def environment() -> list[Check]:
    """Interpreter, machine, and where the code is."""
    version = own_version()
    home = Path(__file__).resolve().parent.parent
    return [
        Check("environment", "python", State.OK, f"{platform.python_version()} at {sys.executable}"),
        Check("environment", "platform", State.OK, platform.platform()),
        Check("environment", "stallscope", State.OK, f"{version} in {home}")
        if version is not None
        else Check("environment", "stallscope", State.MISSING, f"run from {home}, not installed", "pip install ."),
    ]


def optional_parts() -> list[Check]:
    return [_extra(extra) for extra in extras()]


def _extra(extra: Extra) -> Check:
    purpose = PURPOSES[extra.name]
    if extra.is_complete:
        return Check("extras", extra.name, State.OK, purpose)
    lacks = ", ".join(extra.lacks)
    return Check("extras", extra.name, State.MISSING, f"{purpose}; lacks {lacks}", install_command(extra.name))


def engine_parts() -> list[Check]:
    """Asks the engine in a process of its own, since the toolkit never imports it. Empty without the extra."""
    if not any(extra.name == "engine" and extra.is_complete for extra in extras()):
        return []
    command = [sys.executable, "-P", "-m", "engine.check"]
    try:
        done = subprocess.run(  # noqa: S603 - our own interpreter and module
            command, capture_output=True, text=True, timeout=_ENGINE_CHECK_SECONDS, check=False
        )
        facts: dict[str, dict[str, Any]] = json.loads(done.stdout)
    except (OSError, subprocess.TimeoutExpired) as error:
        return [Check("engine", "start", State.BROKEN, f"it does not start: {error}")]
    except ValueError:
        last = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
        return [Check("engine", "start", State.BROKEN, f"it does not start: {printable(last)}")]
    return [
        Check("engine", subject, State.OK if fact["works"] else State.MISSING, fact["text"])
        for subject, fact in facts.items()
    ]


def machine() -> list[Check]:
    """Whether the GPU and the threads of other processes can be looked at."""
    return [_gpu(), _host_probe()]


def _gpu() -> Check:
    from probes.nvml import NvmlProbe

    probe = NvmlProbe()
    try:
        if probe.reason is not None:
            return Check("machine", "gpu", State.MISSING, probe.reason)
        names = [gpu.name for gpu in probe.sample().gpus]
    finally:
        probe.close()
    return Check("machine", "gpu", State.OK, printable(", ".join(names)))


def _host_probe() -> Check:
    """By looking at this very process, as at a server's: py-spy is a process of its own in both cases."""
    from probes.host import HostProbe, HostProbeError, find_py_spy

    if find_py_spy() is None:
        return Check("machine", "threads", State.MISSING, "py-spy is not installed", install_command("host"))
    try:
        probe = HostProbe(os.getpid(), _PROBE_SECONDS)
    except HostProbeError as error:
        return Check("machine", "threads", State.MISSING, str(error))
    probe.start()
    time.sleep(_PROBE_SECONDS)
    profile = probe.finish()
    if any(thread.activities for thread in profile.threads):
        return Check("machine", "threads", State.OK, "the stacks of this user's processes can be sampled: --pid")
    return Check(
        "machine",
        "threads",
        State.MISSING,
        "; ".join(profile.limits) or f"py-spy gave no sample in {_PROBE_SECONDS:g} s",
    )


def configuration() -> list[Check]:
    """Files that commands read by default, and our variables; never what a variable holds."""
    path = Path(RUNBOOKS_FILE)
    found = []
    if path.is_file():
        found.append(
            Check("files", RUNBOOKS_FILE, State.OK, "is here", f"stallscope runbook check --config {RUNBOOKS_FILE}")
        )
    found += [
        Check("files", name, State.OK, "is set") for name in sorted(os.environ) if name.startswith(_OWN_VARIABLES)
    ]
    return found


def targets(urls: Sequence[str]) -> list[Check]:
    return [_target(url) for url in urls]


def _target(url: str) -> Check:
    from diagnose.sources.http import Endpoint
    from diagnose.sources.live import first_page

    try:
        endpoint = Endpoint(url)
        _, dialects = first_page(endpoint)
    except DiagnoseError as error:
        return Check("targets", url, State.BROKEN, printable(str(error)))
    names = " and ".join(dialect.name for dialect in dialects)
    return Check(
        "targets", endpoint.url, State.OK, f"answers with metrics of {names}", f"stallscope diagnose {endpoint.url}"
    )
