from diagnose.case import Case
from diagnose.hypotheses.base import Hypothesis, command_census, command_gpu
from diagnose.hypotheses.pool import bucket_text, occupancy
from diagnose.units import binary_bytes, percent
from diagnose.verdict import Argument, Judgement, Stance, Verdict


class ExpectedReservation(Hypothesis):
    """High device memory that is only the configured pool. Benign.

    Symptom: device memory reads 80-100 % all day, whatever the load.
    Mechanism: the engine allocates its KV pool once at start. Device memory says how much is reserved; only the block buckets
    say how much is occupied. Eviction never returns memory to the device.
    Refuted when: active blocks really are near the total, or device memory is not high.
    Supported when: device memory is high while active blocks are few and reclaimable plus free is substantial.
    Proves nothing: device memory that is nearly all allocated.
    Measure next: the three disjoint buckets, and whether free already includes reclaimable.
    Fix and its trade: none is needed; a smaller pool frees memory for others and takes away cache and concurrency.
    """

    name = "expected_reservation"
    benign = True
    causes_latency = False

    def judge(self, case: Case, argument: Argument) -> Judgement:
        signals, policy = case.signals, case.policy
        total, reserved = signals.last("device_memory_total"), signals.last("device_memory_reserved")
        pool = occupancy(signals)
        if total and reserved is not None:
            high = reserved / total >= policy.memory_high
            argument.say(
                Stance.FOR if high else Stance.AGAINST,
                f"{percent(reserved / total)} of device memory is reserved ({binary_bytes(reserved)} of {binary_bytes(total)})",
                value=reserved / total,
                unit="share",
                source=signals.gauges["device_memory_reserved"].source,
            )
            if not high:
                return argument.conclude(Verdict.REFUTED)
        else:
            argument.lacks(
                "device memory, total and reserved",
                "this hypothesis explains high device memory; without the figure there is nothing to explain",
                command_gpu(case, "memory.used,memory.total"),
            )
        if pool is None:
            argument.lacks(
                "the block buckets: active, reclaimable, free, and whether free includes reclaimable",
                "only occupancy tells a reserved pool from a full one",
                command_census(case),
            )
            return argument.conclude(Verdict.UNDETERMINED)
        low = pool.active_peak / pool.total < policy.pool_low
        argument.say(
            Stance.FOR if low else Stance.AGAINST,
            f"the pool holds {bucket_text(pool)} (active peaked at {percent(pool.active_peak / pool.total)})",
            value=pool.active_peak / pool.total,
            unit="share",
            source=pool.source,
            samples=len(pool.series),
        )
        if pool.active_peak / pool.total >= policy.pool_exhausted:
            return argument.conclude(Verdict.REFUTED)
        if argument.missing or not low:
            return argument.conclude(Verdict.UNDETERMINED)
        return argument.conclude(Verdict.SUPPORTED)
