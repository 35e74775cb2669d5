"""A labelled case: the two windows of a simulated server, what is true of them, and what a diagnosis may see."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from random import Random

from diagnose.commands.diagnose import judge
from diagnose.diagnosis import Diagnosis
from diagnose.observation import Observation, observe
from diagnose.slo import Reported, parse_reported
from probes.catalog import PREFIX
from probes.recording import Entry
from probes.wire import StepsHeader, encode_steps
from runbooks.drills.service_levels import Levels, quantile
from runbooks.experiments.workload import Arrival, Load
from tests.accuracy.conditions import CONDITIONS, PAIRS, Condition, Mask, Scenario, quiet_scenario
from tests.accuracy.server import Faults, SimulatedServer
from tests.accuracy.shapes import SHAPES
from tests.builders import START_UNIX

WARM_UP_SECONDS = 6.0
WINDOW_SECONDS = 14.0
_INTERVAL_SECONDS = 3.5
TARGET = "http://127.0.0.1:8000"


class View(StrEnum):
    """What a diagnosis may see."""

    RECORDS = "scrape + records"
    SCRAPE = "scrape only"
    NO_BASELINE = "records, no baseline"
    MASKED = "deciding signal masked"


@dataclass(frozen=True, slots=True)
class Truth:
    """What the case knows: the right primary causes (none: nothing is wrong), what must and what may be supported."""

    primary: frozenset[str]
    required: frozenset[str]
    allowed: frozenset[str]
    hidden: str = ""
    """Of a masked twin: the hypothesis that must be undetermined, and name what is missing."""


@dataclass(frozen=True, slots=True)
class Window:
    pages: tuple[Entry, ...]
    steps: tuple[Entry, ...]
    events: tuple[Entry, ...]
    clients: Levels

    def observation(self, *, records: bool, without: Sequence[str] = ()) -> Observation:
        pages = [replace(page, body=_without(page.body, without)) for page in self.pages] if without else self.pages
        steps = self.steps if records else ()
        return observe(TARGET, sorted((*pages, *steps, *self.events), key=lambda entry: entry.unix))


@dataclass(frozen=True, slots=True)
class Case:
    conditions: tuple[Condition, ...]
    shape: str
    seed: int
    quiet: Window
    incident: Window
    reported: tuple[Reported, ...]
    moved: bool
    """Whether the symptom of the condition really shows in what clients saw."""

    @property
    def name(self) -> str:
        return "+".join(condition.name for condition in self.conditions)

    @property
    def held_out(self) -> bool:
        """Kept away from every tuning: one shape, and a third of the seeds."""
        return is_held_out(self.shape, self.seed)

    @property
    def views(self) -> tuple[View, ...]:
        plain = (View.RECORDS, View.SCRAPE, View.NO_BASELINE)
        return (*plain, View.MASKED) if self._mask() is not None and self.moved else plain

    def _mask(self) -> Mask | None:
        return self.conditions[0].mask if len(self.conditions) == 1 else None

    def truth(self, view: View) -> Truth:
        names = frozenset(name for condition in self.conditions for name in condition.primary)
        also = frozenset(name for condition in self.conditions for name in condition.also)
        if not self.moved:
            # What was induced is there all the same, so that it may be supported; it is no cause of a symptom that is not.
            return Truth(frozenset(), frozenset(), names | also)
        if view is View.MASKED:
            return Truth(frozenset(), frozenset(), names | also, self.conditions[0].hidden)
        required = self.conditions[0].required if len(self.conditions) == 1 else ()
        return Truth(names, frozenset(required), names | also | frozenset(required))

    def observations(self, view: View) -> tuple[Observation, Observation | None]:
        """Incident and baseline."""
        mask = self._mask() if view is View.MASKED else None
        families = mask.families if mask is not None else ()
        records = view is not View.SCRAPE and not (mask is not None and mask.records)
        incident = self.incident.observation(records=records, without=families)
        if view is View.NO_BASELINE or (mask is not None and mask.baseline):
            return incident, None
        return incident, self.quiet.observation(records=records, without=families)

    def diagnose(self, view: View) -> Diagnosis:
        mask = self._mask() if view is View.MASKED else None
        reported = () if mask is not None and mask.reported else self.reported
        incident, baseline = self.observations(view)
        return judge(incident, baseline, (), reported=reported, is_live=True, target=TARGET)


def is_held_out(shape: str, seed: int) -> bool:
    return shape == "wide" or seed % 3 == 2


def plan(num_seeds: int) -> list[tuple[tuple[str, ...], str, int]]:
    """Conditions, shape and seed of every case; pairs are about a tenth of them."""
    singles = [((name,), shape, seed) for name in CONDITIONS for shape in SHAPES for seed in range(num_seeds)]
    wanted = round(len(singles) / 9)
    pairs = [(PAIRS[i % len(PAIRS)], list(SHAPES)[i // len(PAIRS) % 3], i // (3 * len(PAIRS))) for i in range(wanted)]
    return [*singles, *pairs]


def make_case(names: Sequence[str], shape: str, seed: int) -> Case:
    """Deterministic: the same arguments give the same case, byte for byte."""
    key = f"{'+'.join(names)}/{shape}/{seed}"
    random = Random(key)
    scenario = quiet_scenario(SHAPES[shape], random)
    conditions = tuple(CONDITIONS[name] for name in names)
    for condition in conditions:
        scenario = condition.induce(scenario, random)
    quiet = _simulate(
        replace(
            scenario,
            loads=scenario.quiet,
            burst=None,
            faults=Faults(),
            window_seconds=WINDOW_SECONDS,
            settle_seconds=0.0,
            ends_with_warm_up=False,
            dies=False,
        ),
        f"{key}/quiet",
    )
    incident = _simulate(scenario, f"{key}/incident")
    moved = any(incident.clients.worse_than(quiet.clients, condition.symptom) for condition in conditions)
    return Case(conditions, shape, seed, quiet, incident, _reported(scenario, incident.clients), moved)


def _reported(scenario: Scenario, clients: Levels) -> tuple[Reported, ...]:
    if scenario.client_factor is None:
        return ()
    return parse_reported(f"itl_p99={quantile(clients.gaps, 0.99) * scenario.client_factor * 1e3:.0f}ms")


def _simulate(scenario: Scenario, key: str) -> Window:
    server = SimulatedServer(scenario.shape, scenario.faults, key)
    length = scenario.settle_seconds + scenario.window_seconds
    arriving = WARM_UP_SECONDS + (0.0 if scenario.ends_with_warm_up else length)
    random = Random(f"{key}/arrivals")
    arrivals = [arrival for one in scenario.loads for arrival in _draw(one, arriving, random)]
    if scenario.burst is not None:
        burst = scenario.burst
        arrivals += [Arrival(0.0, burst.prompt, burst.output, 0, 0)] * burst.count
    server.offer(sorted(arrivals), salt="shared")
    server.run(WARM_UP_SECONDS)
    server.begin_window()
    server.run(scenario.settle_seconds)
    return _watch(server, scenario)


def _draw(one: Load, seconds: float, random: Random) -> list[Arrival]:
    return list(one.draw(seconds, random))


def _watch(server: SimulatedServer, scenario: Scenario) -> Window:
    """A page at each interval, and the step records between."""
    seconds = scenario.window_seconds * (2 / 3 if scenario.dies else 1)
    count = round(seconds / _INTERVAL_SECONDS)
    pages, steps = [Entry(START_UNIX, "exposition", server.page())], []
    next_id = server.recorder.next_id
    for turn in range(1, count + 1):
        server.run(seconds / count)
        at = START_UNIX + seconds * turn / count
        pages.append(Entry(at, "exposition", server.page()))
        found = server.recorder.steps_since(next_id)
        next_id = found.next_id
        header = StepsHeader("simulated", found.next_id, found.lost, server.now_ns, 0)
        steps.append(Entry(at, "steps", "".join(encode_steps(header, found.records))))
    events = []
    if scenario.dies:
        text = "the target answered at the start of the window and is gone now: connection refused"
        events.append(Entry(START_UNIX + seconds + 3, "event", text, "gone"))
    return Window(tuple(pages), tuple(steps), tuple(events), server.end_window())


def _without(page: str, families: Sequence[str]) -> str:
    """The page of an engine that does not export these families."""
    names = "|".join(map(re.escape, families))
    wanted = re.compile(
        rf"^(# (HELP|TYPE) )?{PREFIX}({names})(_bucket|_sum|_count|_total|_seconds\w*|_errors\w*)?[ {{]"
    )
    return "".join(line for line in page.splitlines(keepends=True) if not wanted.match(line))
