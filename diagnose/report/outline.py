"""What every renderer says, in the same words: headline, rows, groups. Only the form is theirs."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from math import inf

from diagnose.account import HOST_PARTS, PARTS, Account
from diagnose.case import Window
from diagnose.decision import DecisionKind, Finding, is_suspected
from diagnose.diagnosis import Diagnosis
from diagnose.hypotheses.base import only_traced
from diagnose.policy import overridden
from diagnose.signals import Signals
from diagnose.stats import Bounds
from diagnose.units import percent, printable, seconds
from diagnose.verdict import Evidence, Stance, Verdict

NOT_OBSERVED = "not observed"
NOT_CHECKED = "Not checked"
ALL_CHECKED = "every hypothesis was checked"
NOTHING_JUDGED = "nothing was measured that speaks for or against any of them; --verbose says what each one lacks:"
NO_ACCOUNT = (
    "no account: it needs step records with enough pure decode steps, or for an estimate histograms of inter-token latency and "
    "of step durations by kind"
)
_PART_NAMES = {
    "decode_floor": "decode (floor)",
    "prefill": "co-scheduled prefill",
    "recompute": "recompute",
    "collective": "late collectives",
    "off_cpu": "thread off its core",
    "preempted": "preempted",
    "deferred": "deferred",
    "waiting": "preempted or deferred",
}
_HOST = (*HOST_PARTS, "host")
_LATENCIES = (
    ("ITL", "inter_token_latency", (0.5, 0.95, 0.99)),
    ("TTFT", "time_to_first_token", (0.5, 0.95)),
    ("queue", "queue_time", (0.5,)),
)
_GROUPS = (
    ("Supported", (Verdict.CONFIRMED, Verdict.SUPPORTED)),
    ("Undetermined", (Verdict.UNDETERMINED,)),
    ("Refuted (checked)", (Verdict.REFUTED,)),
    ("Not applicable", (Verdict.NOT_APPLICABLE,)),
)


def headline(diagnosis: Diagnosis) -> str:
    """The answer in one line."""
    if diagnosis.idle:
        length = diagnosis.case.signals.length_seconds
        over = f" in {length:.0f} s" if length else ""
        return f"{diagnosis.case.target}: idle: no token was computed{over} and nothing waits; there is nothing to diagnose"
    findings = {finding.name: finding for finding in diagnosis.findings}
    named = findings.get(diagnosis.primary or "")
    if named is not None:
        share = named.judgement.share_of_excess
        # Without step records there is no excess to share: the rules then compare with the time of the steps.
        whole = "the excess of the slow gaps" if diagnosis.excess is not None else "the time of the steps"
        part = f": {percent(share)} of {whole}" if share and diagnosis.case.itl_moved() else ""
        benign = f" (benign){_suspicion(diagnosis)}" if named.benign else ""
        return f"{named.name} is {named.verdict.value}{benign}{part}"
    supported = [f.name for f in diagnosis.findings if f.is_supported]
    if supported and all(f.benign for f in diagnosis.findings if f.is_supported):
        benign = f"{', '.join(supported)} explains no latency"
        return f"undetermined: no cause is supported by what was measured; {benign}{_suspicion(diagnosis)}"
    if supported:
        return f"{', '.join(supported)}: supported, none of them primary"
    if diagnosis.decision.kind is DecisionKind.NONE:
        return "nothing wrong in this window"
    if only_an_unused_profile(diagnosis):
        return "undetermined: the profile is incomplete, and nothing else was given"
    return f"undetermined: no hypothesis is supported by what was measured{_suspicion(diagnosis)}"


def _suspicion(diagnosis: Diagnosis) -> str:
    """A hang that is not certain yet must not hide in the middle of a page."""
    hung = any(f.name == "engine_hung" and is_suspected(f) for f in diagnosis.findings)
    return "; engine_hung is suspected" if hung else ""


def about(diagnosis: Diagnosis) -> list[str]:
    """Target, dialect, version and model, as far as they are known."""
    signals = diagnosis.case.signals
    facts = [diagnosis.case.target, signals.dialect, signals.info.get("version", ""), signals.info.get("model", "")]
    return list(filter(None, facts))


def extent(window: Window) -> str:
    """What a window holds: `40.0 s, 5 scrapes, 70 step records`."""
    signals = window.signals
    length = "window length unknown" if signals.length_seconds is None else f"{signals.length_seconds:.1f} s"
    return f"{length}, {signals.num_scrapes} scrapes, {len(signals.steps)} step records"


def sources(window: Window) -> str:
    """What each source was recognised as: `5 metrics pages of vllm (0.32 or later); engine.log: a log of vllm ...`"""
    return "; ".join(window.signals.sources)


def warnings(diagnosis: Diagnosis) -> list[str]:
    """Warnings, and the thresholds that are not the documented ones."""
    changed = [f"{o.name} {o.value:g} (default {o.default:g})" for o in overridden(diagnosis.case.policy)]
    return [*diagnosis.warnings, *([f"thresholds overridden: {', '.join(changed)}"] if changed else [])]


@dataclass(frozen=True, slots=True)
class SymptomRow:
    label: str
    now: str
    before: str
    """Empty without a baseline."""


def symptom_rows(diagnosis: Diagnosis) -> list[SymptomRow]:
    """Latencies with their sample counts, and the share of time that stalls hold."""
    case, base = diagnosis.case, diagnosis.case.baseline
    rows = [
        SymptomRow(
            f"{label} p{q * 100:g}",
            latency_text(case.incident, metric, q),
            "" if base is None else latency_text(base, metric, q),
        )
        for label, metric, quantiles in _LATENCIES
        for q in quantiles
    ]
    share, factor = case.stall_share(), case.policy.slow_gap_factor
    if share is not None:
        now = f"{percent(share)} of time, {percent(case.analysis.stalled_tokens_share(factor))} of tokens"
        measured = base is not None and base.analysis.gaps
        before = f"{percent(base.analysis.stall_share(factor))} of time" if base is not None and measured else ""
        rows.append(SymptomRow("stalls", now, before))
    return rows


@dataclass(frozen=True, slots=True)
class ReplicaRow:
    name: str
    running: str
    waiting: str
    tokens: str
    """Generated per second."""
    gap: str
    """Mean inter-token latency."""


REPLICA_HEADER = ("replica", "running", "waiting", "tokens/s", "ITL mean")
_MOST_REPLICAS = 8


def replica_rows(diagnosis: Diagnosis) -> tuple[list[ReplicaRow], int]:
    """The busiest replicas and the idlest one, means over the window, and how many there are; none where there is one."""
    replicas = diagnosis.case.signals.replicas
    order = sorted(
        replicas, key=lambda name: (-_load(replicas[name], "waiting"), -_load(replicas[name], "running"), name)
    )
    shown = order if len(order) <= _MOST_REPLICAS else [*order[: _MOST_REPLICAS - 1], order[-1]]
    return [_replica_row(name, replicas[name]) for name in shown], len(order)


def replica_title(shown: int, total: int) -> str:
    return f"Replicas ({total})" if shown == total else f"Replicas (the {shown - 1} busiest and the idlest of {total})"


def _load(signals: Signals, name: str) -> float:
    gauge = signals.gauges.get(name)
    return 0.0 if gauge is None else gauge.mean


def _replica_row(name: str, signals: Signals) -> ReplicaRow:
    running, waiting = (
        f"{signals.gauges[gauge].mean:.1f}" if gauge in signals.gauges else "-" for gauge in ("running", "waiting")
    )
    rate, gaps = signals.rate("tokens_decode"), signals.histograms.get("inter_token_latency")
    gap = gaps.mean if gaps is not None else None
    tokens = "-" if rate is None else f"{rate:.1f}"
    return ReplicaRow(printable(name), running, waiting, tokens, "-" if gap is None else seconds(gap))


def latency_text(window: Window, metric: str, q: float) -> str:
    """A quantile and the number of samples that it rests on: neither is ever shown alone."""
    found = window.latency(metric, q)
    if found is None:
        return NOT_OBSERVED
    bounds, samples, _ = found
    return f"{bounds_text(bounds)}  (n={samples})"


def bounds_text(bounds: Bounds) -> str:
    """`41 ms` when exact, else the bucket: `(100 ms, 150 ms]`."""
    if bounds.exact:
        return seconds(bounds.low)
    high = "inf" if bounds.high == inf else seconds(bounds.high)
    return f"({seconds(bounds.low)}, {high}]"


def accounts(diagnosis: Diagnosis) -> list[tuple[str, Account]]:
    """Both or none."""
    p50, p99 = diagnosis.account_p50, diagnosis.account_p99
    return [] if p50 is None or p99 is None else [("p50", p50), ("p99", p99)]


def account_group(name: str, account: Account) -> str:
    """Which gaps the account is the mean of, and how it was come by."""
    edge = seconds(account.quantile_seconds)
    if account.total_bounds is None:
        group = f"around {edge}" if name == "p50" else f"from {edge} up"
        return f"mean of {account.num_gaps} gaps {group}; {account.basis}"
    group = f"in the bucket above {edge}" if name == "p50" else f"above {edge}"
    between = f"between {seconds(account.total_bounds.low)} and {seconds(account.total_bounds.high)}"
    return f"mean of {account.num_gaps} gaps {group}; {account.basis} from histograms: {between}"


@dataclass(frozen=True, slots=True)
class PartRow:
    label: str
    seconds: float
    share: float
    bounds: Bounds | None
    """Of an estimate."""


def part_rows(account: Account) -> list[PartRow]:
    """Parts for people: the host's parts in one line, zero parts left out unless they may be more; other always shown."""
    rows = [
        _part(account, (name,), label)
        for name, label in _PART_NAMES.items()
        if account.parts.get(name, 0.0) > 0 or account.bounds.get(name, _NOTHING).high > 0
    ]
    return [*rows, _part(account, _HOST, "host and lock"), _part(account, ("other",), "other")]


_NOTHING = Bounds(0.0, 0.0)


def _part(account: Account, names: tuple[str, ...], label: str) -> PartRow:
    value = sum(account.parts.get(name, 0.0) for name in names)
    known = [account.bounds[name] for name in names if name in account.bounds]
    bounds = Bounds(sum(b.low for b in known), sum(b.high for b in known)) if known else None
    return PartRow(label, value, value / account.total_seconds if account.total_seconds > 0 else 0.0, bounds)


def account_sentence(name: str, account: Account) -> str:
    """`p99 ITL 412 ms = 38 ms decode (floor) + 350 ms co-scheduled prefill + ...`"""
    terms = " + ".join(f"{seconds(row.seconds)} {row.label}" for row in part_rows(account) if row.seconds > 0)
    about = "about " if account.bounds else ""
    return f"{name} ITL {about}{seconds(account.total_seconds)} = {terms}"


def part_label(name: str) -> str:
    return "host and lock" if name in _HOST else _PART_NAMES.get(name, name)


def account_limits(account: Account) -> list[str]:
    """What an estimate cannot tell apart, and what would."""
    return [
        f"cannot be told apart: {part_label(pair.first)} and {part_label(pair.second)}; {pair.measurement} would"
        for pair in account.inseparable
    ]


def verdict_groups(diagnosis: Diagnosis) -> Iterator[tuple[str, list[Finding]]]:
    """Non-empty groups of findings; a rule that failed, or had nothing to go by, is in none of them."""
    for title, verdicts in _GROUPS:
        group = [
            f for f in diagnosis.findings if f.verdict in verdicts and f.error is None and not _nothing_measured(f)
        ]
        if group:
            yield title, group


def failed_rules(diagnosis: Diagnosis) -> list[str]:
    return [f"{f.name}: the rule failed: {f.error}" for f in diagnosis.findings if f.error is not None]


def unchecked(diagnosis: Diagnosis) -> list[Finding]:
    """Undetermined because nothing was measured that speaks for or against them: never to be read as all right."""
    return [finding for finding in diagnosis.findings if finding.error is None and _nothing_measured(finding)]


def only_an_unused_profile(diagnosis: Diagnosis) -> bool:
    """An incomplete profile is all that was given: every hypothesis lacks everything."""
    return only_traced(diagnosis.case) and not diagnosis.case.signals.profiles and not any(verdict_groups(diagnosis))


def _nothing_measured(finding: Finding) -> bool:
    spoke = any(item.stance is not Stance.CONTEXT for item in finding.judgement.evidence)
    return finding.verdict is Verdict.UNDETERMINED and not spoke


def evidence_origin(item: Evidence) -> str:
    """`/debug/steps, n=282, against 64 pure decode steps`, and what exactly the source counts where that is not obvious."""
    samples = "" if item.samples is None else f", n={item.samples}"
    compared = f", against {item.compared_with}" if item.compared_with else ""
    covers = f": {item.coverage}" if item.coverage else ""
    return f"{item.source or 'derived'}{samples}{compared}{covers}"


_QUANTILE = re.compile(r"\bp\d\d|\bmedian\b")


def count_of_quantile(item: Evidence) -> str:
    """` (n=64)` where a sentence states a quantile: it is never shown without its sample count."""
    return f" (n={item.samples})" if item.samples is not None and _QUANTILE.search(item.text) else ""


assert {*PARTS} <= {*_PART_NAMES, *_HOST, "other"}, "every part has a name for people"
