"""Where the host's part of a step went."""

from probes.records import StepRecord


def host_ns(record: StepRecord) -> int:
    """Scheduling, preparation and hand-out, as far as they are measured."""
    return (record.schedule_ns or 0) + (record.prepare_ns or 0) + (record.postprocess_ns or 0)
