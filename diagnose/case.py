"""What a rule sees: signals and step analysis of the incident and, if there is one, of the baseline."""

import re
from dataclasses import dataclass
from math import ceil, inf

from diagnose.account import (
    HOST_PARTS,
    StepAnalysis,
    analyse_steps,
    excess_parts,
    mixed_ratio,
    running_seconds,
    typical_floor,
)
from diagnose.observation import Event
from diagnose.policy import Policy
from diagnose.signals import Signals
from diagnose.slo import Objective, Reported
from diagnose.stats import Bounds, median, weighted_quantile

_PLAIN_URL = re.compile(r"https?://[\w.\[\]:/@%~+=,-]+", re.ASCII)


def is_plain_url(text: str) -> bool:
    """Whether a shell reads it as one word."""
    return _PLAIN_URL.fullmatch(text) is not None


@dataclass(frozen=True, slots=True)
class Window:
    """Signals of one window and what its step records say."""

    signals: Signals
    analysis: StepAnalysis

    def latency(self, metric: str, q: float) -> tuple[Bounds, int, str] | None:
        """Quantile, sample count and source. Inter-token gaps come exact from step records where there are any."""
        if metric == "inter_token_latency" and self.analysis.gaps:
            value = self.analysis.quantile(q)
            return Bounds(value, value), self.analysis.num_gaps, self.signals.steps_source
        histogram = self.signals.histograms.get(metric)
        bounds = histogram.quantile(q) if histogram is not None else None
        if histogram is None or bounds is None:
            return None
        return bounds, round(histogram.count), histogram.source

    def mean_gap(self) -> float | None:
        """Mean inter-token gap, seconds."""
        if (account := self.analysis.account_all()) is not None:
            return account.total_seconds
        histogram = self.signals.histograms.get("inter_token_latency")
        return histogram.mean if histogram is not None else None


@dataclass(frozen=True, slots=True)
class Breach:
    objective: Objective
    measured: Bounds
    samples: int
    source: str

    @property
    def certain(self) -> bool:
        """Beyond the limit whatever the resolution, on enough samples."""
        return self.beyond and self.samples >= self.samples_needed

    @property
    def beyond(self) -> bool:
        """Values of a bucket (low, high] are all above low."""
        low, limit = self.measured.low, self.objective.limit_seconds
        return low > limit or (low == limit and not self.measured.exact)

    @property
    def samples_needed(self) -> int:
        """With fewer than 1/(1 - q) samples the quantile is the slowest one alone."""
        return ceil(round(1 / (1 - self.objective.quantile), 6))

    @property
    def possible(self) -> bool:
        return self.measured.high > self.objective.limit_seconds


@dataclass(frozen=True, slots=True)
class Excess:
    """The symptom in seconds of a slow gap, by part, beyond an undisturbed decode step."""

    seconds: float
    parts: dict[str, float]
    basis: str

    def share(self, *names: str) -> float:
        return sum(self.parts[name] for name in names) / self.seconds if self.seconds > 0 else 0.0


@dataclass(frozen=True, slots=True)
class Lost:
    """What the mean request lost against the baseline, seconds."""

    waiting: float
    slower_tokens: float
    slowdown: float
    """Mean gap between tokens over the baseline's."""

    @property
    def waiting_share(self) -> float:
        """Of all that was lost; nought where requests wait no longer than before."""
        return self._share(self.waiting)

    @property
    def own_waiting_share(self) -> float:
        """The same of what the queue's own is: behind tokens that are n times slower every turn in it takes n times as long, so
        that all of a wait but 1/n is their loss too."""
        return self._share(self.waiting / max(1.0, self.slowdown))

    def _share(self, waiting: float) -> float:
        return waiting / (self.waiting + self.slower_tokens) if waiting > 0 else 0.0


@dataclass(frozen=True, slots=True)
class Case:
    target: str
    """How the target is named: its URL, or the files that stand for it."""
    is_live: bool
    incident: Window
    baseline: Window | None
    policy: Policy
    events: tuple[Event, ...]
    objectives: tuple[Objective, ...]
    reported: tuple[Reported, ...] = ()
    arguments: str | None = None
    """What names the target on the command line of `stallscope diagnose`; None: its address does."""

    @property
    def source(self) -> str:
        """What `stallscope diagnose` looks at to see this target again."""
        return self.address if self.arguments is None else self.arguments

    @property
    def address(self) -> str:
        """Where a command reaches the live server; files do not say, so that the reader fills it in.

        So is an address that a shell would read as more than one: recordings come from elsewhere, and commands are copied.
        """
        return self.target if is_plain_url(self.target) else "http://HOST:PORT"

    @property
    def signals(self) -> Signals:
        return self.incident.signals

    @property
    def analysis(self) -> StepAnalysis:
        return self.incident.analysis

    def breaches(self) -> list[Breach]:
        """Objectives that are breached or may be (the limit lies inside the bucket)."""
        found: list[Breach] = []
        for objective in self.objectives:
            latency = self.incident.latency(objective.metric, objective.quantile)
            if latency is not None:
                breach = Breach(objective, *latency)
                if breach.possible:
                    found.append(breach)
        return found

    def unmeasured_objectives(self) -> list[Objective]:
        return [o for o in self.objectives if self.incident.latency(o.metric, o.quantile) is None]

    def reference_floor(self) -> float | None:
        """Decode floor of an undisturbed step: the baseline's where there is one."""
        if self.baseline is not None and (floor := typical_floor(self.baseline.analysis)) is not None:
            return floor
        return typical_floor(self.analysis)

    def excess(self) -> Excess | None:
        """Where the excess lies: over the stalls, or without stalls over the median gap against the baseline."""
        floor = self.reference_floor()
        if floor is None:
            return None
        stalled = self.has_stalls()
        account = self.analysis.account_stalled(self.policy.slow_gap_factor) if stalled else self.analysis.account_p50()
        if account is None:
            return None
        parts = excess_parts(account, floor)
        return Excess(sum(parts.values()), parts, account.basis)

    def stall_share(self) -> float | None:
        """None without step records."""
        return self.analysis.stall_share(self.policy.slow_gap_factor) if self.analysis.gaps else None

    def has_stalls(self) -> bool:
        share = self.stall_share()
        return share is not None and share >= self.policy.material_stall_share

    def median_shift(self) -> float | None:
        """p50 ITL against the baseline's. From buckets: by how much at least; None when the buckets cannot tell them apart."""
        if self.baseline is None:
            return None
        now = self.incident.latency("inter_token_latency", 0.5)
        before = self.baseline.latency("inter_token_latency", 0.5)
        if now is None or before is None or not 0 < before[0].high < inf:
            return None
        if now[0].exact and before[0].exact:
            return now[0].high / before[0].high
        least, most = now[0].low / before[0].high, now[0].high / max(before[0].low, 1e-9)
        return least if least > 1 else most if most < 1 else None

    def mean_shift(self) -> float | None:
        """Mean ITL against the baseline's: exact from any histogram, where a median is known to a bucket only."""
        if self.baseline is None:
            return None
        now, before = self.incident.mean_gap(), self.baseline.mean_gap()
        return now / before if now is not None and before else None

    def lost_against_baseline(self) -> Lost | None:
        """In the queue, and by slower tokens. None without queue times or tokens of both windows."""
        slowdown, decoded = self.mean_shift(), self.signals.delta("tokens_decode")
        now = self.signals.histograms.get("queue_time")
        if self.baseline is None or slowdown is None or decoded is None or now is None or now.mean is None:
            return None
        before, usual = self.baseline.signals.histograms.get("queue_time"), self.baseline.mean_gap()
        if before is None or usual is None:
            return None
        slower = max(0.0, slowdown - 1) * usual * decoded / now.count
        return Lost(now.mean - (before.mean or 0.0), slower, slowdown)

    def itl_moved(self) -> bool | None:
        """Whether inter-token latency shows a symptom at all; None when nothing can say."""
        exact = bool(self.analysis.gaps)
        # Step records show the tail as stalls; without them a moved mean is all that buckets leave of a moved tail.
        shifts = [self.median_shift(), None if exact else self.mean_shift()]
        known = [shift for shift in shifts if shift is not None]
        if not exact and not known:
            return None
        return self.has_stalls() or any(shift >= self.policy.shift_ratio for shift in known)

    def context_share(self) -> float | None:
        """Of a pure decode step, the share that grows with context (median). None when no step says how long its contexts are,
        or when they differ too little for the fit to tell what they cost."""
        model = self.analysis.model
        contexts = sorted(step.decode_context_tokens or 0 for step in self.analysis.decode_steps)
        if model is None or contexts[-1] < self.policy.min_context_range * max(1, contexts[0]):
            return None
        shares = [model.context_share(record) for record in self.analysis.decode_steps]
        known = [share for share in shares if share is not None]
        return median(known) if known else None

    def mixed_ratio(self) -> float | None:
        return mixed_ratio(self.analysis)

    def host_share(self) -> float | None:
        """Host parts over all gaps, as a share of the streams' decode time."""
        account = self.analysis.account_all()
        if account is None or account.total_seconds <= 0:
            return None
        return sum(account.parts[name] for name in HOST_PARTS) / account.total_seconds


def make_window(signals: Signals, policy: Policy) -> Window:
    return Window(signals, analyse_steps(signals.steps, policy))


def decode_step_quantile(window: Window, q: float) -> float | None:
    """Forward and sampling seconds of the window's pure decode steps, without what other processes took."""
    steps = window.analysis.decode_steps
    if not steps:
        return None
    values = [running_seconds(record) for record in steps]
    return weighted_quantile(values, [1.0] * len(values), q)
