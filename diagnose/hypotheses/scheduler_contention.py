from diagnose.account import HOST_PARTS
from diagnose.case import Case
from diagnose.hypotheses.base import Hypothesis, command_live, command_records
from diagnose.units import percent, seconds
from diagnose.verdict import Argument, Judgement, Stance, Verdict


class SchedulerContention(Hypothesis):
    """The host is late: scheduling, the scheduler lock, batch preparation or hand-out keep the device waiting.

    Symptom: step time that does not depend on tokens; a device that idles between steps; one busy CPU core.
    Mechanism: between two forward passes the host schedules, builds the batch and hands out tokens, under a lock that request
    arrival, cache look-ups and exporters also take. Whatever of it is not overlapped adds to every gap.
    Refuted when: host parts and lock wait are a small share of the gaps.
    Supported when: they hold a large share of the gaps, or most of the excess of the slow ones.
    Proves nothing: a CPU core at 100 % (a spinning wait looks the same).
    Measure next: lock wait and hold by site; a sampling profile of the engine's process.
    Fix and its trade: fewer, larger steps; less work under the lock; schedule one step ahead (adds a step of lag).
    """

    name = "scheduler_contention"

    def judge(self, case: Case, argument: Argument) -> Judgement:
        policy = case.policy
        share = case.host_share()
        if share is None:
            return self._judge_histograms(case, argument)
        excess = case.excess()
        part = excess.share(*HOST_PARTS) if excess is not None else 0.0
        account = case.analysis.account_all()
        assert account is not None
        argument.say(
            Stance.FOR if share >= policy.host_share_high else Stance.AGAINST,
            f"host work holds {percent(share)} of the gaps: "
            + ", ".join(f"{name} {seconds(account.parts[name])}" for name in HOST_PARTS),
            value=share,
            unit="share",
            source=case.signals.steps_source,
            samples=case.analysis.num_gaps,
        )
        if not case.itl_moved():
            return self._unmoved(case, argument, share, part)
        argument.say(
            Stance.FOR if part >= policy.dominant_share else Stance.AGAINST,
            f"{percent(part)} of the excess of the slow gaps is host work",
            value=part,
            unit="share",
            source=case.signals.steps_source,
        )
        if part >= policy.dominant_share or share >= policy.host_share_high:
            return argument.conclude(Verdict.SUPPORTED, part)
        if part < policy.negligible_share and share < policy.negligible_share:
            return argument.conclude(Verdict.REFUTED, part)
        if part < policy.dominant_share and share < policy.host_share_high / 2:
            return argument.conclude(Verdict.REFUTED, part)
        argument.lacks(
            "lock wait and hold by site over a longer window",
            f"host work holds {percent(share)} of the gaps: neither small nor large",
            command_live(case),
        )
        return argument.conclude(Verdict.UNDETERMINED, part)

    def _unmoved(self, case: Case, argument: Argument, share: float, part: float) -> Judgement:
        """Without a symptom: a host that takes a large share of every gap is a cost all the same, unless it always did."""
        if share < case.policy.host_share_high:
            return argument.conclude(Verdict.REFUTED, part)
        if case.baseline is None:
            return argument.conclude(Verdict.SUPPORTED, part)
        argument.say(
            Stance.AGAINST,
            "inter-token latency is as in the baseline: the host is as late as it always was",
            compared_with="baseline",
        )
        return argument.conclude(Verdict.REFUTED, part)

    def _judge_histograms(self, case: Case, argument: Argument) -> Judgement:
        """Without step records: mean schedule time and lock wait against mean step time."""
        histograms = case.signals.histograms
        schedule, lock = histograms.get("schedule"), histograms.get("lock_wait")
        steps = [h for name in ("step_decode", "step_mixed", "step_prefill") if (h := histograms.get(name)) is not None]
        total = sum(h.sum for h in steps)
        if schedule is None or not total:
            argument.lacks(
                "host time per step and scheduler-lock wait",
                "a late host looks like a slow device from outside",
                command_records(case),
            )
            return argument.conclude(Verdict.UNDETERMINED)
        share = (schedule.sum + (lock.sum if lock is not None else 0.0)) / total
        argument.say(
            Stance.FOR if share >= case.policy.host_share_high else Stance.AGAINST,
            f"scheduling and lock wait take {percent(share)} of the step time",
            value=share,
            unit="share",
            source=schedule.source,
            samples=round(schedule.count),
        )
        if share >= case.policy.host_share_high:
            return argument.conclude(Verdict.SUPPORTED, share)
        if share < case.policy.negligible_share:
            return argument.conclude(Verdict.REFUTED, share)
        argument.lacks(
            "step records", "the histograms leave out batch preparation and device idle", command_records(case)
        )
        return argument.conclude(Verdict.UNDETERMINED, share)
