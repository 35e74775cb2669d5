"""The hypotheses this version checks, in the order in which a report lists equals."""

from diagnose.hypotheses.admission_stall import AdmissionStall
from diagnose.hypotheses.bandwidth_saturation import BandwidthSaturation
from diagnose.hypotheses.base import Hypothesis
from diagnose.hypotheses.cache_prefix_broken import CachePrefixBroken
from diagnose.hypotheses.cache_thrashing import CacheThrashing
from diagnose.hypotheses.client_artifact import ClientArtifact
from diagnose.hypotheses.collective_stall import CollectiveStall
from diagnose.hypotheses.compute_saturation import ComputeSaturation
from diagnose.hypotheses.device_degraded import DeviceDegraded
from diagnose.hypotheses.engine_hung import EngineHung
from diagnose.hypotheses.expected_reservation import ExpectedReservation
from diagnose.hypotheses.frontend_bottleneck import FrontendBottleneck
from diagnose.hypotheses.hard_failure import HardFailure
from diagnose.hypotheses.kv_exhaustion import KvExhaustion
from diagnose.hypotheses.kv_leak import KvLeak
from diagnose.hypotheses.preemption_storm import PreemptionStorm
from diagnose.hypotheses.prefill_interference import PrefillInterference
from diagnose.hypotheses.queue_overload import QueueOverload
from diagnose.hypotheses.replica_imbalance import ReplicaImbalance
from diagnose.hypotheses.scheduler_contention import SchedulerContention
from diagnose.hypotheses.sequence_cap import SequenceCap
from diagnose.hypotheses.speculation_loss import SpeculationLoss
from diagnose.hypotheses.transfer_stall import TransferStall

HYPOTHESES: tuple[Hypothesis, ...] = (
    PrefillInterference(),
    BandwidthSaturation(),
    SchedulerContention(),
    ExpectedReservation(),
    KvExhaustion(),
    CacheThrashing(),
    QueueOverload(),
    HardFailure(),
    EngineHung(),
    SequenceCap(),
    AdmissionStall(),
    PreemptionStorm(),
    KvLeak(),
    ComputeSaturation(),
    CachePrefixBroken(),
    ReplicaImbalance(),
    TransferStall(),
    SpeculationLoss(),
    ClientArtifact(),
    CollectiveStall(),
    FrontendBottleneck(),
    DeviceDegraded(),
)
