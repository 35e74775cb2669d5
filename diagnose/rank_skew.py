"""What ranks of one group wait for each other, from a trace of each.

A collective ends for all ranks at once, but begins on each when that one gets there: its time on a rank is the transfer
and the wait for the slowest. The slowest rank waits for nobody, so that the shortest collective of a step is the transfer.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from diagnose.kernel_profile import KernelProfile, ProfiledStep
from diagnose.stats import median

_MAX_OFFSET = 16
"""Profilers of a group start and stop within a few steps of each other."""
_SAME_SHARE = 0.9


@dataclass(frozen=True, slots=True)
class RankSkew:
    wait_share: float
    """Mean over ranks of the time spent waiting for the slowest one, as a share of the steps."""
    slowest: str
    """The rank that waits least; its trace where the file names no rank."""
    comm_share: dict[str, float]
    """Share of the steps that collectives take, by rank."""
    steps: int


def rank_skew(profiles: Sequence[KernelProfile]) -> RankSkew | None:
    """None when the ranks did not run the same steps (data parallelism), or fewer than two ran collectives."""
    rows = _same_steps([profile for profile in profiles if any(step.comm_ns for step in profile.steps)])
    if not rows:
        return None
    names = [_name(profile) for profile in profiles if any(step.comm_ns for step in profile.steps)]
    length = sum(max(step.end_ns - step.start_ns for step in row) for row in rows)
    comm = [sum(row[rank].comm_ns for row in rows) for rank in range(len(names))]
    waits = sum(sum(step.comm_ns for step in row) / len(row) - min(step.comm_ns for step in row) for row in rows)
    shares = {name: ns / length for name, ns in zip(names, comm, strict=True)}
    return RankSkew(waits / length, min(shares, key=shares.__getitem__), shares, len(rows))


def _name(profile: KernelProfile) -> str:
    return profile.name if profile.rank is None else f"rank {profile.rank}"


def _same_steps(profiles: Sequence[KernelProfile]) -> list[tuple[ProfiledStep, ...]]:
    """Steps that all ranks ran together, by their annotations; empty when these do not agree."""
    if len(profiles) < 2:
        return []
    first = profiles[0].steps
    columns: list[dict[int, ProfiledStep]] = [dict(enumerate(first))]
    for other in profiles[1:]:
        offset = _offset(profiles[0], other)
        if offset is None:
            return []
        columns.append({index + offset: step for index, step in enumerate(other.steps)})
    rows = [tuple(column[index] for column in columns) for index in columns[0] if all(index in c for c in columns)]
    return [row for row in rows if all(step.num_kernels for step in row)]


def _offset(first: KernelProfile, other: KernelProfile) -> int | None:
    """By how many steps `other` began later, so that annotations agree; None when they do not.

    Steps of a steady batch are all annotated alike. Among offsets that agree, the right one is that at which steps end at
    the same time, as those of a group do.
    """
    pairs = {by: _pairs(first, other, by) for by in range(-_MAX_OFFSET, _MAX_OFFSET + 1)}
    agreeing = [
        by for by, row in pairs.items() if row and sum(a.span == b.span for a, b in row) >= _SAME_SHARE * len(row)
    ]
    if not agreeing:
        return None
    if first.base_ns is None or other.base_ns is None:
        return max(agreeing, key=lambda by: len(pairs[by]))
    ahead = first.base_ns - other.base_ns
    return min(agreeing, key=lambda by: median([float(abs(a.end_ns - b.end_ns + ahead)) for a, b in pairs[by]]))


def _pairs(first: KernelProfile, other: KernelProfile, offset: int) -> list[tuple[ProfiledStep, ProfiledStep]]:
    begin = max(0, -offset)
    return list(zip(first.steps[begin + offset :], other.steps[begin:], strict=False))
