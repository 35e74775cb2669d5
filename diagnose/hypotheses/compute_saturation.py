from diagnose.account import running_seconds
from diagnose.case import Case
from diagnose.hypotheses.base import Hypothesis, command_live, command_records
from diagnose.roofline import DeviceCeilings, ModelShape, StepShape, statement
from diagnose.stats import median
from diagnose.units import percent
from diagnose.verdict import Argument, Judgement, Stance, Verdict
from probes.records import StepRecord


class ComputeSaturation(Hypothesis):
    """The arithmetic units are the limit: prompts, or very large decode batches, keep them busy.

    Symptom: time to first token grows with prompt length; throughput in tokens per second is flat whatever the batch.
    Mechanism: a step cannot take less than its FLOPs over what the units deliver at this precision; long prompts are nearly all
    matrix work.
    Refuted when: steps deliver far fewer FLOP/s than the measured ceiling, or no prompt token was computed.
    Supported when: the steps that compute prompts come near the measured ceiling and requests wait for them.
    Proves nothing: utilisation.gpu; a large batch; FLOPs over the datasheet's peak.
    Measure next: FLOP/s of prefill steps against a matrix product measured on the same device.
    Fix and its trade: prefix reuse (no work at all), lower precision (quality to be validated), more devices.
    """

    name = "compute_saturation"

    def judge(self, case: Case, argument: Argument) -> Judgement:
        policy, steps = case.policy, case.analysis.steps
        prefills = [record for record in steps if record.prompt_tokens != 0]
        if steps and not prefills:
            argument.say(
                Stance.AGAINST, "no step of the window computed a prompt token", source=case.signals.steps_source
            )
            return argument.conclude(Verdict.REFUTED)
        if len(prefills) < policy.min_mixed_steps:
            argument.lacks(
                f"at least {policy.min_mixed_steps} steps that compute prompts (found {len(prefills)})",
                "matrix work is mostly prompts",
                command_live(case) if steps else command_records(case),
            )
            return argument.conclude(Verdict.UNDETERMINED)
        usages = _usages(case, prefills)
        if not usages:
            argument.lacks(
                "the device's matrix throughput and the model's geometry",
                "only FLOP/s against a measured ceiling tell busy units from waiting ones",
                f"stallscope diagnose {case.source} --device 'GPU NAME' --model-config config.json",
            )
            return argument.conclude(Verdict.UNDETERMINED)
        usage, ceiling = median(usages), case.signals.gauges["flops_ceiling"]
        argument.say(
            Stance.FOR if usage >= policy.compute_near_ceiling else Stance.AGAINST,
            f"steps that compute prompts reach {percent(usage)} of the matrix throughput",
            value=usage,
            unit="share",
            compared_with=f"{ceiling.last / 1e9:.0f} GFLOP/s ({ceiling.source})",
            source=case.signals.steps_source,
            samples=len(usages),
        )
        waited = case.signals.histograms.get("queue_time")
        queued = waited.mean if waited is not None else None
        waits = queued is not None and queued >= policy.noticeable_queue_seconds
        argument.say(
            Stance.FOR if waits else Stance.AGAINST,
            "requests queue for a noticeable time" if waits else "requests do not queue for a noticeable time",
            value=queued,
            unit="s",
        )
        if usage < policy.compute_far_ceiling or not waits:
            return argument.conclude(Verdict.REFUTED)
        if usage >= policy.compute_near_ceiling:
            return argument.conclude(Verdict.SUPPORTED)
        argument.lacks(
            "FLOP/s of prefill steps at two prompt lengths",
            f"{percent(usage)} is neither near nor far",
            command_live(case),
        )
        return argument.conclude(Verdict.UNDETERMINED)


def _usages(case: Case, prefills: list[StepRecord]) -> list[float]:
    """Shares of the matrix throughput that these steps reach, of those whose shape is known."""
    model, ceiling = ModelShape.from_labels(case.signals.info), case.signals.last("flops_ceiling")
    ceilings = DeviceCeilings(flops_per_second=ceiling)
    shapes = [(record, StepShape.from_record(record)) for record in prefills]
    found = [
        statement(shape, model, ceilings).compute_utilisation(running_seconds(record))
        for record, shape in shapes
        if shape is not None
    ]
    return [usage for usage in found if usage is not None]
