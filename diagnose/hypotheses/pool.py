"""What the pool's rules share: occupancy by disjoint bucket over the window."""

from typing import NamedTuple

from diagnose.signals import Signals


class Occupancy(NamedTuple):
    """Blocks. `active_peak` is the highest sample of the window; the others belong to the last one."""

    active_peak: float
    active: float
    reclaimable: float
    free: float
    """Without reclaimable blocks."""

    @property
    def total(self) -> float:
        return self.active + self.reclaimable + self.free


def occupancy(signals: Signals) -> Occupancy | None:
    """None when a bucket is missing, the pool is empty or the buckets contradict each other, or when it is unknown whether free
    includes reclaimable (then they must not be added)."""
    active, reclaimable, free = (signals.last(name) for name in ("blocks_active", "blocks_reclaimable", "blocks_free"))
    if active is None or reclaimable is None or free is None or signals.free_includes_reclaimable is None:
        return None
    if signals.free_includes_reclaimable:
        free -= reclaimable
    if free < 0 or active + reclaimable + free <= 0:
        return None
    peak = signals.peak("blocks_active") or active
    peak = max([peak, *(record.census.active for record in signals.steps if record.census is not None)])
    return Occupancy(peak, active, reclaimable, free)


def bucket_text(pool: Occupancy) -> str:
    return f"{pool.active:,.0f} active, {pool.reclaimable:,.0f} reclaimable, {pool.free:,.0f} free of {pool.total:,.0f} blocks"
