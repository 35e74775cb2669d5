"""A labelled case: the two windows of a simulated server, what is true of them, and what a diagnosis may see."""

import re
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from random import Random
from typing import NamedTuple

from diagnose.commands.diagnose import judge
from diagnose.diagnosis import Diagnosis
from diagnose.observation import Observation, observe
from diagnose.slo import Reported, parse_reported
from diagnose.sources.engine_log import read_log
from diagnose.sources.log_signals import LogEvidence
from probes.catalog import PREFIX
from probes.recording import Entry, RecordingWriter, read_recording
from probes.wire import StepsHeader, encode_steps
from runbooks.drills.service_levels import Levels, quantile
from runbooks.experiments.workload import Arrival, Load
from tests.accuracy.accounts import AccountCheck, TrueGap, check_account
from tests.accuracy.conditions import CONDITIONS, PAIRS, quiet_scenario
from tests.accuracy.scenario import Condition, Faults, Mask, Scenario
from tests.accuracy.server import SimulatedServer
from tests.accuracy.shapes import SHAPES
from tests.accuracy.vllm import LogLine, written
from tests.builders import START_UNIX

WARM_UP_SECONDS = 6.0
WINDOW_SECONDS = 14.0
_INTERVAL_SECONDS = 3.5
TARGET = "http://127.0.0.1:8000"


class View(StrEnum):
    """What a diagnosis may see. All but `RECORDING` and the logs are of a live target."""

    RECORDS = "scrape + records"
    SCRAPE = "scrape only"
    RECORDING = "recording"
    NO_BASELINE = "records, no baseline"
    VLLM = "vLLM's page"
    LOG_STEPS = "vLLM's log, a line per step"
    LOG = "vLLM's log only"
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
    vllm_events: tuple[Entry, ...] = ()
    """Of a server that is gone where ours still answers."""
    vllm_pages: tuple[Entry, ...] = ()
    log: tuple[LogLine, ...] = ()
    gaps: tuple[TrueGap, ...] = ()
    onset_seconds: float = 0.0
    """After the start, when what is wrong begins."""

    def entries(self, *, records: bool, without: Sequence[str] = (), looks: int | None = None) -> list[Entry]:
        """In time order. `looks`: only so many intervals between scrapes, from the start."""
        pages = (
            [replace(page, body=hide_families(page.body, without)) for page in self.pages] if without else self.pages
        )
        steps = self.steps if records else ()
        if looks is None:
            return sorted((*pages, *steps, *self.events), key=lambda entry: entry.unix)
        return sorted((*pages[: looks + 1], *steps[:looks]), key=lambda entry: entry.unix)

    def through_vllm(self) -> list[Entry]:
        return sorted((*self.vllm_pages, *self.events, *self.vllm_events), key=lambda entry: entry.unix)

    def logged(self, *, steps: bool) -> Observation:
        """What its log alone says."""
        lines = [line for line in self.log if steps or "Iteration(" not in line.text]
        observation = Observation("vllm.log")
        observation.add_source(LogEvidence(read_log("vllm.log", written(lines), START_UNIX + 600)))
        return observation


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
    part: str = ""
    """Where the time goes between tokens; see `Scenario.part`."""

    @property
    def name(self) -> str:
        return "+".join(condition.name for condition in self.conditions)

    @property
    def held_out(self) -> bool:
        """Kept away from every tuning: one shape, and a third of the seeds."""
        return is_held_out(self.shape, self.seed)

    @property
    def views(self) -> tuple[View, ...]:
        plain = tuple(view for view in View if view is not View.MASKED)
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
        if view in (View.LOG, View.LOG_STEPS):
            steps = view is View.LOG_STEPS
            return self.incident.logged(steps=steps), self.quiet.logged(steps=steps)
        if view is View.VLLM:
            return observe(TARGET, self.incident.through_vllm()), observe(TARGET, self.quiet.through_vllm())
        mask = self._mask() if view is View.MASKED else None
        families = mask.families if mask is not None else ()
        records = view is not View.SCRAPE and not (mask is not None and mask.records)
        read = _recorded if view is View.RECORDING else _live
        incident = read(self.incident.entries(records=records, without=families))
        if view is View.NO_BASELINE or (mask is not None and mask.baseline):
            return incident, None
        return incident, read(self.quiet.entries(records=records, without=families))

    def diagnose(self, view: View) -> Diagnosis:
        return self._judge(view, *self.observations(view))

    def _judge(self, view: View, incident: Observation, baseline: Observation | None) -> Diagnosis:
        mask = self._mask() if view is View.MASKED else None
        reported = () if mask is not None and mask.reported else self.reported
        is_live = view not in (View.RECORDING, View.LOG, View.LOG_STEPS)
        return judge(incident, baseline, (), reported=reported, is_live=is_live, target=TARGET)

    def seconds_to(self, view: View, is_right: Callable[[Diagnosis], bool]) -> float:
        """From the onset, how long to watch until the answer is right and stays so. For a case whose last answer is right."""
        seen = self.incident.entries(records=view is not View.SCRAPE)[-1].unix
        baseline = self.observations(view)[1]
        for looks in range(len(self.incident.pages) - (2 if not self.incident.events else 1), 0, -1):
            entries = self.incident.entries(records=view is not View.SCRAPE, looks=looks)
            if not is_right(self._judge(view, observe(TARGET, entries), baseline)):
                break
            seen = entries[-1].unix
        return seen - START_UNIX - self.incident.onset_seconds

    def account_checks(self, diagnosis: Diagnosis) -> tuple[AccountCheck, ...]:
        """Of the part in which the condition puts its time; none where there are two, or none that shows."""
        said = {"p50": diagnosis.account_p50, "p99": diagnosis.account_p99}
        if not self.part or not self.moved or len(self.conditions) > 1:
            return ()
        checks = [check_account(q, account, self.incident.gaps, self.part) for q, account in said.items() if account]
        return tuple(check for check in checks if check is not None)


def _live(entries: Sequence[Entry]) -> Observation:
    return observe(TARGET, entries)


def _recorded(entries: Sequence[Entry]) -> Observation:
    """Written to a file and read again."""
    with tempfile.TemporaryDirectory(prefix="stallscope-") as directory:
        path = Path(directory) / "case.rec"
        with RecordingWriter(path, TARGET, START_UNIX) as writer:
            for entry in entries:
                writer.write(entry)
        recording = read_recording(path.read_bytes())
    return observe(recording.target, recording.entries)


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
            lacks_memory=False,
        ),
        f"{key}/quiet",
    )
    incident = _simulate(scenario, f"{key}/incident")
    moved = any(incident.clients.worse_than(quiet.clients, condition.symptom) for condition in conditions)
    reported = _reported(scenario, incident.clients)
    return Case(conditions, shape, seed, quiet, incident, reported, moved, scenario.part)


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
    last_good = round(count * 2 / 3) if scenario.lacks_memory else count
    server.begin_watch()
    looks, steps = [(START_UNIX, *server.look())], []
    next_id = server.recorder.next_id
    for turn in range(1, count + 1):
        server.run(seconds / count)
        if turn == last_good and scenario.lacks_memory:
            server.run_out_of_memory()
        at = START_UNIX + seconds * turn / count
        looks.append((at, *server.look()))
        server.vllm.say_load(server.scheduler, server.num_waiting, at)
        found = server.recorder.steps_since(next_id)
        next_id = found.next_id
        header = StepsHeader("simulated", found.next_id, found.lost, server.now_ns, 0)
        steps.append(Entry(at, "steps", "".join(encode_steps(header, found.records))))
    end = _end(scenario, START_UNIX + seconds * last_good / count)
    return Window(
        pages=tuple(Entry(at, "exposition", page) for at, page, _ in looks),
        steps=tuple(steps),
        events=end.events,
        clients=server.end_window(),
        vllm_pages=tuple(
            Entry(at, "exposition", page) for at, _, page in looks if end.vllm_until is None or at < end.vllm_until
        ),
        vllm_events=end.vllm_events,
        log=(*(line for line in server.vllm.log if not end.log or line.unix < end.log[0].unix), *end.log),
        gaps=tuple(server.gaps),
        onset_seconds=seconds * last_good / count if scenario.dies or scenario.lacks_memory else 0.0,
    )


class _End(NamedTuple):
    """What is seen of a server that breaks in the window; of another one nothing."""

    events: tuple[Entry, ...] = ()
    vllm_events: tuple[Entry, ...] = ()
    log: tuple[LogLine, ...] = ()
    vllm_until: float | None = None


def _end(scenario: Scenario, unix: float) -> _End:
    """`unix`: when it breaks."""
    text = "the target answered at the start of the window and is gone now: connection refused"
    gone = (Entry(unix + 3, "event", text, "gone"),)
    last_words = "Engine core proc EngineCore_0 died unexpectedly, shutting down client."
    if scenario.dies:
        return _End(gone, log=(LogLine(unix + 3, last_words),))
    if scenario.lacks_memory:
        # vLLM's server goes down with its engine; ours goes on and says that it has none.
        why = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."
        return _End((), gone, (LogLine(unix, why), LogLine(unix + 1, last_words)), unix)
    return _End()


def hide_families(page: str, families: Sequence[str]) -> str:
    """The page of an engine that does not export these families."""
    names = "|".join(map(re.escape, families))
    wanted = re.compile(
        rf"^(# (HELP|TYPE) )?{PREFIX}({names})(_bucket|_sum|_count|_total|_seconds\w*|_errors\w*)?[ {{]"
    )
    return "".join(line for line in page.splitlines(keepends=True) if not wanted.match(line))
