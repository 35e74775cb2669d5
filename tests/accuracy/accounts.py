"""The latency account held against the truth: the simulated server knows where every gap's time went."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from diagnose.account import Account
from diagnose.stats import weighted_quantile

PARTS: Mapping[str, tuple[str, ...]] = {
    "decode": ("decode_floor",),
    "prefill": ("prefill",),
    "recompute": ("recompute",),
    "host": ("host", "schedule", "prepare", "postprocess", "idle"),
    "lock": ("lock_wait",),
    "waiting": ("waiting", "preempted", "deferred"),
    "rest": ("other", "off_cpu", "collective"),
}
"""What a truth and both kinds of account can be compared by: names here, and an account's parts that make each up."""


class TrueGap(NamedTuple):
    """`tokens` equal gaps between tokens, one per token, and where their time went: seconds in the order of PARTS."""

    seconds: float
    tokens: int
    parts: tuple[float, ...]


class AccountCheck(NamedTuple):
    """One account against the truth of the same gaps."""

    quantile: str
    """p50 or p99."""
    part: str
    """Where the condition puts its time."""
    true_seconds: float
    """Of that part, in a mean gap of the group."""
    said_seconds: float
    true_total: float
    said_total: float
    misplaced: float
    """Share of the gap that the account puts into a wrong part."""
    within: bool | None
    """Whether the truth lies between the bounds of an estimate; None where the account is no estimate."""

    @property
    def error(self) -> float:
        """Of the part, as a share of the whole gap."""
        return abs(self.said_seconds - self.true_seconds) / self.true_total


def check_account(quantile: str, said: Account, gaps: Sequence[TrueGap], part: str) -> AccountCheck | None:
    """None where the server saw no gap."""
    truth = _true_mean(quantile, gaps)
    if truth is None:
        return None
    true_total = sum(truth.values())
    parts = {name: sum(said.parts.get(one, 0.0) for one in names) for name, names in PARTS.items()}
    said_total = said.total_seconds
    misplaced = sum(abs(parts[name] / said_total - truth[name] / true_total) for name in PARTS) / 2
    within: bool | None = None
    if said.bounds:
        low = sum(said.bounds[one].low for one in PARTS[part] if one in said.bounds)
        high = sum(said.bounds[one].high for one in PARTS[part] if one in said.bounds)
        within = low <= truth[part] <= high
    return AccountCheck(quantile, part, truth[part], parts[part], true_total, said_total, misplaced, within)


def _true_mean(quantile: str, gaps: Sequence[TrueGap]) -> dict[str, float] | None:
    """Of the group of gaps that an account of this quantile is of."""
    if not gaps:
        return None
    values, weights = [gap.seconds for gap in gaps], [gap.tokens for gap in gaps]
    low = weighted_quantile(values, weights, 0.45 if quantile == "p50" else 0.99)
    high = weighted_quantile(values, weights, 0.55) if quantile == "p50" else float("inf")
    group = [gap for gap in gaps if low <= gap.seconds <= high]
    count = sum(gap.tokens for gap in group)
    sums = [sum(gap.parts[i] * gap.tokens for gap in group) / count for i in range(len(PARTS))]
    return dict(zip(PARTS, sums, strict=True))
