from diagnose.account import HOST_PARTS
from diagnose.case import Case
from diagnose.hypotheses.base import Hypothesis, command_live, command_records
from diagnose.hypotheses.stacks import say_stacks
from diagnose.kernel_profile import late_launch_share
from diagnose.units import percent, seconds
from diagnose.verdict import Argument, Judgement, Stance, Verdict
from probes.stack_patterns import Activity, Role

_HOST_WORK = (Activity.SCHEDULING, Activity.SERIALISING, Activity.TOKENISING, Activity.DETOKENISING)


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
        say_stacks(case, argument)
        looked = self._look_at_threads(case, argument)
        share = case.host_share()
        if share is None:
            return self._judge_histograms(case, argument, looked)
        excess = case.excess()
        part = excess.share(*HOST_PARTS) if excess is not None else 0.0
        account = case.analysis.account_all()
        assert account is not None
        argument.say(
            Stance.FOR if share >= policy.host_share_high else Stance.AGAINST,
            f"host work holds {percent(share)} of the gaps: "
            + ", ".join(f"{name} {seconds(account.parts[name])}" for name in _measured(case)),
            value=share,
            unit="share",
            source=case.signals.steps_source,
            samples=case.analysis.num_gaps,
        )
        self._late_launches(case, argument)
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
        if share < policy.host_share_high / 2:
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

    def _late_launches(self, case: Case, argument: Argument) -> None:
        """Of a trace: whether the device ran dry before the host launched, or waited for work that was launched already."""
        share = late_launch_share(case.signals.profiles[0]) if case.signals.profiles else None
        if share is None:
            return
        argument.say(
            Stance.FOR if share >= case.policy.dominant_share else Stance.CONTEXT,
            f"for {percent(share)} of the device's idle time between steps the next step had not been launched yet",
            value=share,
            unit="share",
            source=case.signals.profiles[0].name,
            samples=len(case.signals.profiles[0].steps),
        )

    def _look_at_threads(self, case: Case, argument: Argument) -> float | None:
        """What the host probe shows. Share of the loop's time in host work, by its stacks; None when they were not sampled."""
        policy, host = case.policy, case.signals.host
        if host is None:
            return None
        source = f"host probe of process {host.pid}"
        delay, held = host.delay_share, host.gil_held_share
        if delay is not None:
            argument.say(
                Stance.FOR if delay >= policy.host_delay_high else Stance.CONTEXT,
                f"{'the engine loop' if host.of(Role.ENGINE) else 'a thread of the server'} was ready and had no core "
                f"{percent(delay)} of the time",
                value=delay,
                unit="share",
                source=source,
            )
        if held is not None:
            holders = sorted(host.threads, key=lambda thread: -(thread.gil_share or 0.0))[:3]
            named = [f"{t.name or t.tid} {percent(t.gil_share)}" for t in holders if t.gil_share]
            argument.say(
                Stance.CONTEXT,
                f"the interpreter lock was held {percent(held)} of the time"
                + (f": {', '.join(named)}" if named else ""),
                value=held,
                unit="share",
                source=source,
            )
        loops = [thread for thread in host.of(Role.ENGINE) if thread.activities]
        if not loops:
            return None
        share = max(thread.doing(*_HOST_WORK) for thread in loops)
        argument.say(
            Stance.FOR if share >= policy.host_share_high else Stance.AGAINST,
            f"the engine's loop spends {percent(share)} of the time on host work: "
            + ", ".join(f"{name} {percent(max(t.doing(name) for t in loops))}" for name in _HOST_WORK),
            value=share,
            unit="share",
            source=source,
        )
        return share

    def _beyond_forward(self, case: Case, argument: Argument) -> float | None:
        """Where the engine times a step and its forward pass: the share of the steps that is not the pass; None elsewhere."""
        histograms = case.signals.histograms
        pairs = {
            kind: (step, forward)
            for kind in ("decode", "mixed")
            if (step := histograms.get(f"step_{kind}")) is not None
            and (forward := histograms.get(f"forward_{kind}")) is not None
            and step.count
        }
        total = sum(step.sum for step, _ in pairs.values())
        if not total:
            return None
        share = max(0.0, 1 - sum(forward.sum for _, forward in pairs.values()) / total)
        by_kind = ", ".join(
            f"{kind} {seconds((step.sum - forward.sum) / step.count)} each" for kind, (step, forward) in pairs.items()
        )
        argument.say(
            Stance.FOR if share >= case.policy.host_share_high else Stance.AGAINST,
            f"{percent(share)} of the steps' time is not their forward pass ({by_kind})",
            value=share,
            unit="share",
            source=next(forward.source for _, forward in pairs.values()),
            samples=round(sum(step.count for step, _ in pairs.values())),
        )
        return share

    def _judge_histograms(self, case: Case, argument: Argument, looked: float | None) -> Judgement:
        """Without step records: the engine's counters of host work against its step time, or what the stacks show."""
        histograms = case.signals.histograms
        schedule, lock = histograms.get("schedule"), histograms.get("lock_wait")
        steps = [h for name in ("step_decode", "step_mixed", "step_prefill") if (h := histograms.get(name)) is not None]
        total = sum(h.sum for h in steps)
        if schedule is None or not total:
            beyond = self._beyond_forward(case, argument)
            if beyond is not None and beyond >= case.policy.host_share_high:
                return argument.conclude(Verdict.SUPPORTED, beyond)
            if beyond is not None and beyond < case.policy.negligible_share:
                return argument.conclude(Verdict.REFUTED, beyond)
            if looked is not None and looked >= case.policy.host_share_high:
                return argument.conclude(Verdict.SUPPORTED)
            if looked is not None and looked < case.policy.negligible_share:
                return argument.conclude(Verdict.REFUTED)
            argument.lacks(
                "host time per step and scheduler-lock wait",
                "a late host looks like a slow device from outside",
                command_records(case),
            )
            return argument.conclude(Verdict.UNDETERMINED)
        stalled, waited = (case.signals.delta(f"stall_{cause}_seconds") for cause in ("host", "lock"))
        if stalled is not None and waited is not None:
            # The engine's own sum over steps that decode, batch preparation, hand-out and idle device included.
            share, source = min(1.0, (stalled + waited) / total), case.signals.counters["stall_host_seconds"].source
            text = f"the engine books {percent(share)} of the step time as host work and lock wait"
        else:
            share, source = (schedule.sum + (lock.sum if lock is not None else 0.0)) / total, schedule.source
            text = f"scheduling and lock wait take {percent(share)} of the step time"
        argument.say(
            Stance.FOR if share >= case.policy.host_share_high else Stance.AGAINST,
            text,
            value=share,
            unit="share",
            source=source,
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


def _measured(case: Case) -> list[str]:
    """The host's parts that the steps show; what they do not lies in `idle`, the time between two steps."""
    steps = case.analysis.steps
    return [name for name in HOST_PARTS if name == "idle" or any(getattr(r, f"{name}_ns") is not None for r in steps)]
