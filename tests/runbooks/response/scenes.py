"""What tests of the response share: a configuration, looks that say what a test wants, alerts, and a conductor of it all."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from runbooks.response.alertmanager import Alert
from runbooks.response.conductor import Conductor
from runbooks.response.config import Config, read_config
from runbooks.response.journal import Incident, Journal, Routed
from runbooks.response.look import Look
from runbooks.response.symptom import Reading

ACT = """
[[runbooks.acts]]
do = "lower_budget"
causes = ["prefill_interference"]
policy = "auto"
ttl = "15m"
cooldown = "1h"
"""


def write_config(
    folder: Path,
    url: str,
    acts: str = ACT,
    runbook: str = "",
    window: str = "1s",
    target: str = 'slo = "itl_p99=200ms"',
    **receiver: Any,
) -> Config:
    (folder / "webhook-token").write_text("hook\n")
    (folder / "admin-token").write_text("secret\n")
    extra = "".join(f"{name} = {value!r}\n" for name, value in receiver.items())
    path = folder / "runbooks.toml"
    path.write_text(
        f"""
[receiver]
token_file = "webhook-token"
port = 0
{extra}
[commands]
note = ["/bin/true"]
seen = ["/bin/true"]

[[targets]]
name = "chat"
match = {{ instance = "chat:8000" }}
url = "{url}"
admin_token_file = "admin-token"
{target}

[[runbooks]]
name = "slow"
alerts = ["InterTokenLatencySlow"]
window = "{window}"
settle = "10s"
{runbook}
{acts}
"""
    )
    return read_config(path)


def alert(status: str = "firing", starts_at: str = "2026-11-30T10:00:00Z", **labels: str) -> Alert:
    labels = {"alertname": "InterTokenLatencySlow", "instance": "chat:8000", **labels}
    return Alert(status, labels, f"fp-{sorted(labels.items())}", starts_at)


def slow(ms: float = 400, **fields: Any) -> Look:
    """Prefill interference that breaches an objective."""
    reading = Reading("itl_p99", ms / 1e3, ms / 1e3, 1000)
    given = {"causes": ["prefill_interference", "hard_failure"], "reading": reading, "decision": "contain", **fields}
    return Look("diagnosed", "slow", summary="an objective is breached", **given)


def better(ms: float = 50, **fields: Any) -> Look:
    return slow(ms, **{"causes": [], "decision": "none", **fields})


@dataclass(slots=True)
class Clock:
    now: float = 1_800_000_000.0

    def monotonic(self) -> float:
        return self.now

    def unix(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@dataclass(slots=True)
class Scene:
    config: Config
    journal: Journal
    looks: list[Look]
    """In order; the last one is seen for ever after."""
    clock: Clock = field(default_factory=Clock)
    told: list[str] = field(default_factory=list)
    num_looks: int = 0
    on_send: Callable[[str, str], None] | None = None

    def look(self, *_: object) -> Look:
        found = self.looks[min(self.num_looks, len(self.looks) - 1)]
        self.num_looks += 1
        return found

    def conductor(self, on_closed: Callable[[int], None] = lambda _: None) -> Conductor:
        def send(title: str, text: str) -> None:
            self.told.append(text)
            if self.on_send is not None:
                self.on_send(title, text)

        return Conductor(self.config, self.journal, self.look, self.clock, [("list", send)], on_closed=on_closed)

    def receive(self, *alerts: Alert, plan_only: bool = False) -> list[int]:
        routed = []
        for one in alerts:
            route = self.config.route(one.labels)
            names = ("", "") if route is None else (route[0].name, route[1].name)
            routed.append(Routed(one, *names, plan_only=plan_only))
        return self.journal.receive(routed, self.clock.unix()).opened

    def carry(self, number: int) -> Incident:
        """As far as it goes now."""
        conductor = self.conductor()
        while conductor.advance(number):
            pass
        return self.journal.incident(number)

    def carry_to_end(self, number: int, seconds: float = 7200, step: float = 5.0) -> Incident:
        end = self.clock.now + seconds
        while self.carry(number).closed is None and self.clock.now < end:
            self.clock.sleep(step)
        return self.journal.incident(number)


def make_scene(folder: Path, url: str, looks: list[Look], **config: Any) -> Scene:
    made = write_config(folder, url, **config)
    return Scene(made, Journal(folder / "runbooks.db"), looks)


def kinds(incident: Incident) -> list[str]:
    return [step.kind for step in incident.steps]
