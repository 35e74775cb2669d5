"""The optional parts of the distribution: what each is for, what of it is installed, and the command that brings the rest.

What an extra consists of stands in pyproject.toml alone; the installed metadata tells it here.
"""

import re
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, requires, version

DISTRIBUTION = "stallscope"
PURPOSES = {
    "engine": "serve a model, the demo, drills",
    "lab": "the load of experiments and drills",
    "host": "stacks of a local server's threads: --pid",
    "gpu": "figures from the NVIDIA driver",
    "web": "the dashboard in a browser: --web",
    "notify": "notifications of runbooks through apprise",
    "otel": "metrics and spans over OTLP",
    "embed": "the probes in an engine of your own",
    "disagg": "KV between a prefill and a decode instance over NIXL",
}
"""Extras that a user may want; those for working on the code are left out."""
_REQUIREMENT = re.compile(r"^([\w.-]+).*?;.*?extra == ['\"]([\w-]+)['\"]")


@dataclass(frozen=True, slots=True)
class Extra:
    name: str
    installed: tuple[str, ...]
    """Distributions with their versions."""
    lacks: tuple[str, ...]
    """Distributions that are not here."""

    @property
    def is_complete(self) -> bool:
        return not self.lacks


def own_version() -> str | None:
    """None when the code runs without having been installed."""
    try:
        return version(DISTRIBUTION)
    except PackageNotFoundError:
        return None


def extras() -> list[Extra]:
    """In the order of `PURPOSES`; empty when the code runs without having been installed."""
    if own_version() is None:
        return []
    members: dict[str, list[str]] = {name: [] for name in PURPOSES}
    for line in requires(DISTRIBUTION) or ():
        found = _REQUIREMENT.match(line)
        if found is not None and found[2] in members:
            members[found[2]].append(found[1])
    return [_extra(name, names) for name, names in members.items()]


def install_command(extra: str) -> str:
    """For a shell: what brings the extra."""
    assert extra in PURPOSES, extra
    return f"pip install '{DISTRIBUTION}[{extra}]'"


def not_installed(what: str, extra: str) -> str:
    """The one sentence about a package that an extra would have brought."""
    return f"{what} is not installed: {install_command(extra)}"


def _extra(name: str, distributions: list[str]) -> Extra:
    installed, lacks = [], []
    for distribution in distributions:
        try:
            installed.append(f"{distribution} {version(distribution)}")
        except PackageNotFoundError:
            lacks.append(distribution)
    return Extra(name, tuple(installed), tuple(lacks))
