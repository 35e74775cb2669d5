"""What `stallscope experiment` was asked for, checked, and carried out."""

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from diagnose.assembly import assemble
from diagnose.case import Window, make_window
from diagnose.commands.output import check_writable, choose_format, write
from diagnose.conditions import build_mismatches, differing_settings
from diagnose.errors import DiagnoseError
from diagnose.observation import observe
from diagnose.policy import DEFAULT_POLICY, Policy
from diagnose.secret_files import read_token
from diagnose.slo import Objective
from diagnose.sources.http import Endpoint
from diagnose.sources.live import first_page
from diagnose.thresholds import read_policy
from diagnose.units import seconds
from probes.recording import Entry
from runbooks.errors import ExperimentError
from runbooks.experiments.analysis import Outcome, Question, analyse, paired_blocks
from runbooks.experiments.arms import NAMES, Arms, KnobArms, LaunchArms, UrlArms
from runbooks.experiments.metrics import METRICS
from runbooks.experiments.report import Report, apply_to_diagnosis, html, markdown, text_lines, to_json
from runbooks.experiments.run import Plan, Run, run_blocks
from runbooks.experiments.statistics import Looks
from runbooks.experiments.workload import Workload, parse_load, read_trace

EXIT_CODES = {
    Outcome.CONFIRMED: 1,
    Outcome.REFUTED: 0,
    Outcome.NOISE_FLOOR: 0,
    Outcome.NOT_SHOWN: 3,
    Outcome.NOT_COMPARABLE: 3,
    Outcome.INCOMPLETE: 3,
}
CRASHED, INTERRUPTED = 4, 130


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The command's options, by their names."""

    target: str | None
    knob: str | None
    admin_token_file: Path | None
    apply: bool
    arm_a: str | None
    arm_b: str | None
    launch_a: str | None
    launch_b: str | None
    keep_running: bool
    loads: tuple[str, ...]
    trace: Path | None
    block: float
    washout: float
    drain: float
    pairs: int
    max_pairs: int | None
    metric: str
    hypothesis: str | None
    matters: float
    noise: float | None
    objectives: tuple[Objective, ...]
    allow_confounded: bool
    model: str | None
    key_file: Path | None
    seed: int
    policy: Path | None
    diagnosis: Path | None
    form: str | None
    as_json: bool
    output: Path | None
    quiet: bool

    def run(self) -> int:
        """The exit code. Raises ExperimentError."""
        plan, workload, arms = self._plan(), self._workload(), self._arms()
        diagnosis = self._read_diagnosis()
        if isinstance(arms, KnobArms) and not self.apply:
            self._print_plan(plan, arms)
            return 0
        with arms:
            differences, same = self._differences(arms, plan.policy)
            question = Question(self.metric, self.matters, self.hypothesis, same_arms=same)
            with _progress(plan, quiet=self.quiet) as on_progress:
                run = run_blocks(plan, arms, workload, question, on_progress)
        result = analyse(run.blocks, question, level=plan.looks.level, noise=self.noise, policy=plan.policy)
        notes = notes_of(run, plan, differences)
        report = Report(
            dict(arms.labels), differences, self._load_lines(plan), question, result, tuple(run.blocks), notes
        )
        self._deliver(report)
        if diagnosis is not None and self.diagnosis is not None:
            _replace_file(self.diagnosis, json.dumps(apply_to_diagnosis(diagnosis, report), indent=2) + "\n")
        return INTERRUPTED if run.interrupted else CRASHED if run.crash else EXIT_CODES[result.outcome]

    # ---- from options to parts

    def _plan(self) -> Plan:
        if self.washout >= self.block:
            raise ExperimentError(f"--washout {seconds(self.washout)} leaves nothing of --block {seconds(self.block)}")
        choose_format(self.form, self.as_json, self.output)
        check_writable(self.output)
        if self.metric == "goodput" and not self.objectives:
            raise ExperimentError("--metric goodput needs --slo")
        try:
            looks = Looks.plan(self.pairs, self.max_pairs)
        except ValueError as error:
            raise ExperimentError(str(error)) from None
        policy = DEFAULT_POLICY if self.policy is None else read_policy(self.policy)
        key = None
        if self.key_file is not None:
            key = f"Bearer {read_token(self.key_file)}"
        return Plan(looks, self.block, self.washout, self.drain, self.seed, self.objectives, policy, self.model, key)

    def _workload(self) -> Workload:
        if self.trace is not None and self.loads:
            raise ExperimentError("--trace and --load both say what arrives; give one of them")
        if self.trace is not None:
            return Workload((), read_trace(self.trace), self.seed)
        return Workload([parse_load(text) for text in self.loads or ("rate=1",)], seed=self.seed)

    def _arms(self) -> Arms:
        kinds = {
            "TARGET with --knob": (self.target, self.knob),
            "--arm-a with --arm-b": (self.arm_a, self.arm_b),
            "--launch-a with --launch-b": (self.launch_a, self.launch_b),
        }
        given = [name for name, parts in kinds.items() if any(parts)]
        whole = [name for name, parts in kinds.items() if all(parts)]
        if len(given) != 1 or given != whole:
            raise ExperimentError(f"give one of: {'; '.join(kinds)} (found: {'; '.join(given) or 'none'})")
        if self.target is not None and self.knob is not None:
            return self._knob_arms(self.target, self.knob)
        if self.arm_a is not None and self.arm_b is not None:
            return UrlArms(_url(self.arm_a), _url(self.arm_b))
        assert self.launch_a is not None
        assert self.launch_b is not None
        return LaunchArms(self.launch_a, self.launch_b, keep_running=self.keep_running)

    def _knob_arms(self, target: str, knob: str) -> KnobArms:
        name, equals, values = knob.partition("=")
        parts = values.split(",")
        if not equals or len(parts) != 2:
            raise ExperimentError(f"--knob {knob!r}: write NAME=VALUE_A,VALUE_B")
        token = "" if self.admin_token_file is None else read_token(self.admin_token_file)
        if self.apply and not token:
            raise ExperimentError("--knob with --apply needs --admin-token-file: the file that the server was given")
        return KnobArms(_url(target), name, (parts[0], parts[1]), token)

    def _read_diagnosis(self) -> dict[str, Any] | None:
        if self.diagnosis is None:
            return None
        if self.hypothesis is None:
            raise ExperimentError("--diagnosis needs --hypothesis: which of its verdicts the comparison is about")
        try:
            found = json.loads(self.diagnosis.read_text(encoding="utf-8"))
            found["verdicts"][self.hypothesis]
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ExperimentError(
                f"--diagnosis {self.diagnosis}: not a diagnosis with a verdict on {self.hypothesis} ({error!r})"
            ) from None
        return dict(found)

    # ---- what differs

    def _differences(self, arms: Arms, policy: Policy) -> tuple[tuple[str, ...], bool]:
        """What can be read of both arms' configuration, and whether the arms are the same. Raises ExperimentError."""
        windows = [_configuration(arms.enter(arm)) for arm in NAMES]
        same = arms.labels["A"] == arms.labels["B"]
        if windows[0] is None or windows[1] is None:
            return ("their configuration is not readable over HTTP",), same
        found = [
            *(f"{m.name} {m.first} -> {m.second}" for m in build_mismatches(windows[0], windows[1])),
            *differing_settings(windows[0], windows[1], policy),
        ]
        if len(found) > 1 and not self.allow_confounded:
            raise ExperimentError(
                f"the arms differ in {len(found)} things ({'; '.join(found)}), so that no cause would be shown; make them alike "
                "but for one, or give --allow-confounded"
            )
        return tuple(found), same

    # ---- output

    def _load_lines(self, plan: Plan) -> tuple[str, ...]:
        what = [f"trace {self.trace}"] if self.trace is not None else list(self.loads or ("rate=1",))
        length = f"blocks of {seconds(plan.block_seconds)}, the first {seconds(plan.washout_seconds)} not measured"
        return (*what, f"{length}; seed {plan.seed}")

    def _print_plan(self, plan: Plan, arms: Arms) -> None:
        labels = " against ".join(arms.labels[name] for name in NAMES)
        click.echo(f"Plan (nothing was changed; --apply runs it): {labels} at {self.target}")
        for line in self._load_lines(plan):
            click.echo(f"  {line}")
        click.echo(
            f"  {plan.pairs} pairs in random order, at least {seconds(plan.seconds)}; the old value is put back at the end"
        )
        click.echo("  compared: p50, p95 and p99 of ITL and TTFT, and throughput, each with its interval")
        click.echo(
            "  only if matched: arrival rate, prompt and output length, prefix hit rate, traffic of others, failed requests, "
            "precision and build"
        )
        looks = " and ".join(map(str, plan.looks.at))
        click.echo(f"  stops after {looks} pairs: {METRICS[self.metric].text} at p <= {plan.looks.level:g} decides")

    def _deliver(self, report: Report) -> None:
        form = choose_format(self.form, self.as_json, self.output)
        text = {
            "json": lambda: json.dumps(to_json(report), indent=2),
            "markdown": lambda: markdown(report),
            "html": lambda: html(report),
            "text": lambda: "\n".join(text_lines(report)),
        }[form]().rstrip("\n")
        write(text, self.output)
        if self.output is not None:
            click.echo(report.result.reading[0])


def notes_of(run: Run, plan: Plan, differences: tuple[str, ...]) -> tuple[str, ...]:
    """What the reader of a result must know of how it came about."""
    notes = []
    done = len(paired_blocks(run.blocks)[0])
    if len(differences) > 1:
        notes.append("Confounded: the arms differ in more than one thing; the effect is that of all of them together.")
    if run.crash:
        notes.append(f"{run.crash}; {done} of {plan.pairs} pairs were completed.")
    if run.interrupted:
        notes.append(f"Interrupted: {done} of {plan.pairs} pairs were completed; what was changed has been put back.")
    if run.stopped_early:
        notes.append(
            f"Stopped after {done} of {plan.pairs} pairs: the first look decided at p <= {plan.looks.level:g}."
        )
    return tuple(notes)


def _url(text: str) -> str:
    try:
        return Endpoint(text).url
    except DiagnoseError as error:
        raise ExperimentError(str(error)) from None


def _configuration(url: str) -> Window | None:
    """What the server says of itself on its metrics page; None when it has no page that is understood."""
    try:
        body, _ = first_page(Endpoint(url))
    except DiagnoseError:
        return None
    # The same page twice: a configuration has no window.
    observation = observe(url, [Entry(float(at), "exposition", body) for at in range(2)])
    return make_window(assemble(observation, DEFAULT_POLICY).signals, DEFAULT_POLICY)


def _replace_file(path: Path, text: str) -> None:
    """Whole or not at all: a diagnosis must not be lost to a full disk."""
    new = path.with_name(path.name + ".new")
    try:
        new.write_text(text, encoding="utf-8")
        new.replace(path)
    except OSError as error:
        raise ExperimentError(f"{path}: cannot be updated: {error.strerror or error}") from None


@contextmanager
def _progress(plan: Plan, *, quiet: bool) -> Iterator[Callable[[int, str, float], None]]:
    """A bar with the time left on a terminal, one line per block elsewhere."""
    if quiet:
        yield lambda *_: None
        return
    told: set[int] = set()
    total = round(plan.seconds)
    if not sys.stderr.isatty():

        def line(number: int, arm: str, _: float) -> None:
            if number not in told:
                told.add(number)
                left = plan.seconds - number * plan.block_seconds
                click.echo(
                    f"block {number + 1} of {2 * plan.pairs}: arm {arm}, at least {seconds(left)} left", err=True
                )

        yield line
        return
    with click.progressbar(length=total, label="comparing", file=sys.stderr, width=24, show_eta=True) as bar:

        def move(number: int, arm: str, at: float) -> None:
            bar.label = f"pair {number // 2 + 1} of {plan.pairs}, arm {arm}"
            bar.update(round(number * plan.block_seconds + min(at, plan.block_seconds)) - bar.pos)

        yield move
