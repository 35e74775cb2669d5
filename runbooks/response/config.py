"""runbooks.toml: which alert is answered by which runbook, on which target, with which acts. Checked whole before use."""

import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

import msgspec
from msgspec import Struct

from diagnose.errors import DiagnoseError, SourceError
from diagnose.hypotheses.registry import HYPOTHESES
from diagnose.secret_files import read_token
from diagnose.slo import Objective, parse_slo
from diagnose.units import parse_duration, printable
from runbooks.errors import ConfigError
from runbooks.response.acts import Act
from runbooks.response.admin_acts import NEED_ADMIN
from runbooks.response.other_acts import RunCommand
from runbooks.response.symptom import Symptom, parse_symptom

_LOOPBACK = ("127.0.0.1", "::1", "localhost")


class Receiver(Struct, frozen=True, forbid_unknown_fields=True):
    token_file: str
    """Holds the bearer token that Alertmanager sends."""
    journal: str = "runbooks.db"
    recordings: str = "recordings"
    """Folder of the evidence, one recording per look."""
    host: str = "127.0.0.1"
    port: int = 9096
    max_acts_per_hour: int = 6
    """Over all targets and runbooks; undoing is never limited."""
    prometheus: str = ""
    """URL; gives the window before the alert as baseline where a target has no recording of a good time."""
    otlp_endpoint: str = ""
    """Base URL of an OTLP/HTTP receiver; gets a span per incident, with its steps as children."""


class Notifier(Struct, frozen=True, forbid_unknown_fields=True):
    kind: Literal["stdout", "webhook", "apprise"]
    url: str = ""


class Target(Struct, frozen=True, forbid_unknown_fields=True):
    name: str
    url: str
    match: dict[str, str]
    """Labels of an alert that is about this target; a value matches whole, as a regular expression."""
    admin_token_file: str = ""
    slo: str = ""
    baseline: list[str] = []
    selector: str = ""
    """Of the target's series in Prometheus, for the baseline: instance="10.0.0.1:8000"."""

    def is_meant_by(self, labels: Mapping[str, str]) -> bool:
        return _matches(self.match, labels)


class Runbook(Struct, frozen=True, forbid_unknown_fields=True):
    name: str
    alerts: list[str]
    """Names of the alerts that start it."""
    match: dict[str, str] = {}
    """Further labels they must have."""
    symptom: str = "itl_p99"
    """What must fall for an act to count as help: itl_p99, ttft_p95, ..., or a rate: preemptions, ghost_hits, failures."""
    window: str = "20s"
    settle: str = "10s"
    """Between an act and the second look."""
    look_again: str = "1m"
    """After a look that decides nothing, while the alert fires; three looks at most."""
    min_improvement: float = 0.1
    """Share by which the symptom must fall."""
    acts: list[Act] = []

    def answers(self, labels: Mapping[str, str]) -> bool:
        return labels.get("alertname") in self.alerts and _matches(self.match, labels)

    @property
    def window_seconds(self) -> float:
        return parse_duration(self.window)

    @property
    def settle_seconds(self) -> float:
        return parse_duration(self.settle)

    @property
    def look_again_seconds(self) -> float:
        return parse_duration(self.look_again)

    @property
    def the_symptom(self) -> Symptom:
        return parse_symptom(self.symptom)


class Config(Struct, frozen=True, forbid_unknown_fields=True):
    receiver: Receiver
    targets: list[Target]
    runbooks: list[Runbook]
    commands: dict[str, list[str]] = {}
    """The only local commands that an act may run, by name, with all of their arguments."""
    notify: list[Notifier] = []
    folder: str = ""
    """Of the file: relative paths start here."""

    def path(self, name: str) -> Path:
        return Path(self.folder) / name

    def target(self, name: str) -> Target | None:
        return next((target for target in self.targets if target.name == name), None)

    def runbook(self, name: str) -> Runbook | None:
        return next((runbook for runbook in self.runbooks if runbook.name == name), None)

    def route(self, labels: Mapping[str, str]) -> tuple[Runbook, Target] | None:
        """The first runbook and the first target that an alert's labels name."""
        runbook = next((runbook for runbook in self.runbooks if runbook.answers(labels)), None)
        target = next((target for target in self.targets if target.is_meant_by(labels)), None)
        return None if runbook is None or target is None else (runbook, target)

    def why_unanswered(self, labels: Mapping[str, str]) -> str:
        """Of an alert without a route: which half of it is lacking, and what the alert said."""
        if not any(runbook.answers(labels) for runbook in self.runbooks):
            named = any(labels.get("alertname") in runbook.alerts for runbook in self.runbooks)
            return "no runbook's match fits its labels" if named else "no runbook has it in its alerts"
        wanted = sorted({name for target in self.targets for name in target.match})
        said = ", ".join(f"{name}={labels[name]!r}" if name in labels else f"no {name}" for name in wanted)
        return f"no target's match fits {said}"

    def objectives(self, target: Target) -> tuple[Objective, ...]:
        return parse_slo(target.slo) if target.slo else ()

    def secret(self, name: str) -> str:
        """Raises ConfigError that never shows what the file holds."""
        try:
            return read_token(self.path(name))
        except SourceError as error:
            raise ConfigError(str(error)) from None


def _matches(wanted: Mapping[str, str], labels: Mapping[str, str]) -> bool:
    return all(re.fullmatch(pattern, labels.get(name, "")) is not None for name, pattern in wanted.items())


def read_config(path: Path) -> Config:
    """Raises ConfigError that names the place and what is accepted."""
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror or error}") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{path}: is not text") from None
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise ConfigError(f"{path}: is not TOML: {printable(str(error))}") from None
    document.pop("folder", None)
    try:
        config = msgspec.convert({**document, "folder": str(path.absolute().parent)}, Config)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{path}: {printable(str(error))}") from None
    for problem in _problems(config):
        raise ConfigError(f"{path}: {problem}")
    return config


def _problems(config: Config) -> "list[str]":
    """What types alone cannot say; the first is what the reader is told."""
    found = [
        *_duplicates("target", [target.name for target in config.targets]),
        *_duplicates("runbook", [runbook.name for runbook in config.runbooks]),
    ]
    receiver = config.receiver
    if receiver.max_acts_per_hour < 1:
        found.append("receiver.max_acts_per_hour must be at least 1; an act that must never run has policy 'never'")
    if not 0 <= receiver.port <= 65535:
        found.append(f"receiver.port = {receiver.port} is not a port")
    if receiver.host not in _LOOPBACK and any(act.policy == "approve" for run in config.runbooks for act in run.acts):
        found.append("acts that wait for approval need a receiver on loopback: its links must not leave this machine")
    for name, url in (("prometheus", receiver.prometheus), ("otlp_endpoint", receiver.otlp_endpoint)):
        if url and not url.startswith(("http://", "https://")):
            found.append(f"receiver.{name} = {url!r} is not http://HOST:PORT")
    for target in config.targets:
        found += _target_problems(config, target)
    for runbook in config.runbooks:
        found += _runbook_problems(config, runbook)
    for notifier in config.notify:
        if (notifier.kind == "stdout") != (not notifier.url):
            found.append(f"notify: kind {notifier.kind!r} {'takes no' if notifier.url else 'needs a'} url")
    found += [f"commands.{name} is empty" for name, words in config.commands.items() if not words]
    return found


def _duplicates(kind: str, names: list[str]) -> list[str]:
    return [f"two {kind}s are called {name!r}" for name in sorted(set(names)) if names.count(name) > 1]


def _target_problems(config: Config, target: Target) -> list[str]:
    found = _patterns(f"target {target.name}", target.match)
    if target.selector and not config.receiver.prometheus:
        found.append(f"target {target.name}: selector is for receiver.prometheus, which is not given")
    if not target.match:
        found.append(f"target {target.name}: match is empty and would take every alert")
    if not target.url.startswith(("http://", "https://")):
        found.append(f"target {target.name}: url {target.url!r} is not http://HOST:PORT")
    try:
        config.objectives(target)
    except DiagnoseError as error:
        found.append(f"target {target.name}: slo: {error}")
    found += [
        f"target {target.name}: baseline {name}: there is no such file"
        for name in target.baseline
        if not config.path(name).is_file()
    ]
    return found


def _patterns(where: str, match: Mapping[str, str]) -> list[str]:
    found = []
    for name, pattern in match.items():
        try:
            re.compile(pattern)
        except re.error as error:
            found.append(f"{where}: match.{name} = {pattern!r} is not a regular expression: {error}")
    return found


def _runbook_problems(config: Config, runbook: Runbook) -> list[str]:
    where = f"runbook {runbook.name}"
    found = _patterns(where, runbook.match)
    if not runbook.alerts:
        found.append(f"{where}: alerts is empty: nothing would start it")
    if not 0 < runbook.min_improvement < 1:
        found.append(f"{where}: min_improvement = {runbook.min_improvement:g} must be a share between 0 and 1")
    try:
        parse_symptom(runbook.symptom)
        durations = [runbook.window_seconds, max(runbook.settle_seconds, runbook.look_again_seconds)]
    except (ConfigError, ValueError) as error:
        return [*found, f"{where}: {error}"]
    if not 1 <= durations[0] <= 600 or durations[1] > 600:
        found.append(f"{where}: window must be 1s to 10m, settle and look_again at most 10m")
    known = [hypothesis.name for hypothesis in HYPOTHESES]
    for act in runbook.acts:
        where_act = f"{where}: act {act.label}"
        found += [
            f"{where_act}: causes: {name!r} is no hypothesis; `stallscope runbook list` names them"
            for name in act.causes
            if name not in known
        ]
        if not act.causes:
            found.append(f"{where_act}: causes is empty: nothing would ever choose it")
        found += [f"{where_act}: {problem}" for problem in act.problems()]
        if isinstance(act, RunCommand):
            names = [name for name in (act.command, act.undo_command, act.look_command) if name]
            found += [f"{where_act}: {name!r} is not in [commands]" for name in names if name not in config.commands]
        if isinstance(act, NEED_ADMIN) and not all(target.admin_token_file for target in config.targets):
            found.append(f"{where_act}: needs the admin surface; give every target an admin_token_file")
    return found
