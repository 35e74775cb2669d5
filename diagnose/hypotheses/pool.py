"""What the pool's rules share: occupancy over the window, by disjoint bucket or as the share that live requests hold."""

from typing import NamedTuple

from diagnose.dialects.base import Usage
from diagnose.signals import Signals
from diagnose.units import percent


class Occupancy(NamedTuple):
    """`active_peak` is the highest sample of the window; the other figures belong to the last one."""

    active_peak: float
    active: float
    reclaimable: float | None
    """None, as `free` is, where the engine does not tell the two apart."""
    free: float | None
    """Without reclaimable blocks."""
    total: float
    unit: str
    """blocks, tokens, or `share`: then the pool's size is not known, and it is 1."""
    series: tuple[float, ...]
    """What was active at each sample."""
    source: str

    @property
    def is_split(self) -> bool:
        return self.reclaimable is not None


def occupancy(signals: Signals) -> Occupancy | None:
    """None when nothing tells what live requests hold: a bucket is missing, the pool is empty, the buckets contradict each
    other, or it is unknown whether free includes reclaimable (then they must not be added) and what usage counts."""
    return _from_buckets(signals) or _from_usage(signals)


def _from_buckets(signals: Signals) -> Occupancy | None:
    active, reclaimable, free = (signals.last(name) for name in ("blocks_active", "blocks_reclaimable", "blocks_free"))
    if active is None or reclaimable is None or free is None or signals.free_includes_reclaimable is None:
        return None
    if signals.free_includes_reclaimable:
        free -= reclaimable
    if free < 0 or active + reclaimable + free <= 0:
        return None
    gauge = signals.gauges["blocks_active"]
    peak = max([gauge.peak, *(record.census.active for record in signals.steps if record.census is not None)])
    total = active + reclaimable + free
    return Occupancy(peak, active, reclaimable, free, total, signals.pool_unit, gauge.values, gauge.source)


def _from_usage(signals: Signals) -> Occupancy | None:
    """From a usage figure, if it counts what live requests hold and nothing else."""
    gauge = signals.gauges.get("pool_usage")
    if gauge is None or signals.usage is not Usage.ACTIVE:
        return None
    size = signals.last(f"pool_{signals.pool_unit}")
    total, unit = (size, signals.pool_unit) if size else (1.0, "share")
    series = tuple(share * total for share in gauge.values)
    return Occupancy(gauge.peak * total, gauge.last * total, None, None, total, unit, series, gauge.source)


def bucket_text(pool: Occupancy) -> str:
    if pool.reclaimable is None or pool.free is None:
        of = f" of {pool.total:,.0f} {pool.unit}" if pool.unit != "share" else " of the pool"
        return f"{percent(pool.active / pool.total)}{of} active, the rest not split into reclaimable and free"
    return (
        f"{pool.active:,.0f} active, {pool.reclaimable:,.0f} reclaimable, {pool.free:,.0f} free of {pool.total:,.0f} "
        f"{pool.unit}"
    )


def amount_text(amount: float, pool: Occupancy) -> str:
    """`12 blocks`, or a share of a pool whose size is not known."""
    return f"{percent(amount)} of the pool" if pool.unit == "share" else f"{amount:,.0f} {pool.unit}"
