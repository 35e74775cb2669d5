"""The hypotheses this version checks, in the order in which a report lists equals."""

from diagnose.hypotheses.bandwidth_saturation import BandwidthSaturation
from diagnose.hypotheses.base import Hypothesis
from diagnose.hypotheses.cache_thrashing import CacheThrashing
from diagnose.hypotheses.expected_reservation import ExpectedReservation
from diagnose.hypotheses.hard_failure import HardFailure
from diagnose.hypotheses.kv_exhaustion import KvExhaustion
from diagnose.hypotheses.prefill_interference import PrefillInterference
from diagnose.hypotheses.queue_overload import QueueOverload
from diagnose.hypotheses.scheduler_contention import SchedulerContention

HYPOTHESES: tuple[Hypothesis, ...] = (
    PrefillInterference(),
    BandwidthSaturation(),
    SchedulerContention(),
    ExpectedReservation(),
    KvExhaustion(),
    CacheThrashing(),
    QueueOverload(),
    HardFailure(),
)

NOT_CHECKED: tuple[str, ...] = (
    "engine_hung",
    "sequence_cap",
    "admission_stall",
    "preemption_storm",
    "kv_leak",
    "compute_saturation",
    "frontend_bottleneck",
    "collective_stall",
    "replica_imbalance",
    "transfer_stall",
    "speculation_loss",
    "device_degraded",
    "cache_prefix_broken",
    "client_artifact",
)
"""Hypotheses of the method that this version has no rule for: a report says so, since silence would read as 'ok'."""
