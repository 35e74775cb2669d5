from diagnose.case import Case, Window, decode_step_quantile
from diagnose.hypotheses.base import Hypothesis, command_gpu
from diagnose.policy import Policy
from diagnose.units import percent
from diagnose.verdict import Argument, Judgement, Stance, Verdict

HARMFUL = {
    "gpu_throttle_hw_slowdown": "a hardware slowdown",
    "gpu_throttle_hw_thermal": "heat (by hardware)",
    "gpu_throttle_sw_thermal": "heat (by the driver)",
    "gpu_throttle_power_brake": "the power brake",
}
"""Reasons that no sound GPU in a sound rack has. Idle and application clocks are somebody's choice."""

PROGRAM_XIDS = frozenset({13, 31, 43, 45})
"""XID codes that the driver also gives for faults of a program: an illegal access, an abort, its clean-up."""


class DeviceDegraded(Hypothesis):
    """The GPU is slower or less sound than it was: heat or power hold its clocks down, or its hardware reports errors.

    Symptom: every kind of step slows alike under the same load; one replica of many is slow, or one GPU of a group, which
    all others then wait for.
    Mechanism: a hot or underpowered GPU lowers its clocks by itself; matrix work slows in proportion, and memory reads as soon
    as the memory clock falls or too few reads are in flight. Errors in memory or on the bus are retried or end in a reset.
    Refuted when: the driver stated no harmful reason for lower clocks, they are near the baseline's, and no error was
    counted; or clocks are lower and like decode steps are as fast as in the baseline.
    Supported when: heat, a hardware slowdown or the power brake held clocks down in a share of the window, or clocks under
    like load fell far below the baseline's while decode steps slowed; or the GPU was lost, or uncorrected memory errors or
    hardware XIDs were counted in the window.
    Proves nothing: low clocks of an idle GPU, application clocks, the software power cap under full load, a high temperature
    alone, corrected memory errors, an XID from before the window, utilisation.gpu.
    Measure next: throttle reasons, clocks and error counts over the window; the same load on another GPU of the kind.
    Fix and its trade: move the load to another device and service this one (capacity meanwhile); cooling or power (the rack);
    a reset clears an error state, not its cause.
    """

    name = "device_degraded"

    def judge(self, case: Case, argument: Argument) -> Judgement:
        if case.signals.info.get("device", "").startswith("cpu"):
            argument.say(Stance.CONTEXT, "the engine computes on the CPU, which has none of these figures")
            return argument.conclude(Verdict.NOT_APPLICABLE)
        throttled = self._throttled(case, argument)
        slower = self._slower(case, argument)
        dropped = self._clock_dropped(case, argument, slower)
        failing = self._errors(case, argument, otherwise=Stance.CONTEXT if throttled or dropped else Stance.AGAINST)
        excess = case.excess()
        part = excess.share("decode_floor") if excess is not None and (throttled or dropped) else None
        if failing or ((throttled or dropped) and slower is not False):
            return argument.conclude(Verdict.SUPPORTED, part)
        if throttled:  # and steps are as fast as ever
            argument.lacks(
                "decode steps at the clocks that the GPU has without throttling",
                "clocks are held down, and steps are no slower than the baseline's, which may have been throttled too",
                f"stallscope record {case.address} --for 60s -o baseline.rec   # on a cool GPU",
            )
            return argument.conclude(Verdict.UNDETERMINED, part)
        if failing is False and (throttled is False or dropped is False):
            return argument.conclude(Verdict.REFUTED)
        self._ask(case, argument, errors_known=failing is not None, clocks_known=(throttled, dropped) != (None, None))
        return argument.conclude(Verdict.UNDETERMINED)

    def _errors(self, case: Case, argument: Argument, *, otherwise: Stance) -> bool | None:
        """Whether the hardware failed in the window; None: not counted. That it did not says nothing of clocks."""
        signals, failed = case.signals, False
        if signals.peak("gpu_lost"):
            argument.say(
                Stance.FOR, "the driver lost the GPU in the window", value=1, source=signals.gauges["gpu_lost"].source
            )
            failed = True
        ecc, xids = signals.delta("gpu_ecc_uncorrected"), signals.delta("gpu_xid_errors")
        if ecc:
            argument.say(
                Stance.FOR,
                f"{ecc:.0f} uncorrected memory errors in the window",
                value=ecc,
                unit="errors",
                source=signals.counters["gpu_ecc_uncorrected"].source,
            )
            failed = True
        if xids:
            code = round(signals.last("gpu_last_xid") or 0)
            program = code in PROGRAM_XIDS
            argument.say(
                Stance.CONTEXT if program else Stance.FOR,
                f"{xids:.0f} XID errors in the window, the last one {code}"
                + (": one that a program's own fault gives, too" if program else ""),
                value=xids,
                unit="errors",
                source=signals.counters["gpu_xid_errors"].source,
            )
            failed = failed or not program
        if failed:
            return True
        if ecc is None and xids is None:
            return None
        if not xids:
            known = [name for name in ("gpu_ecc_uncorrected", "gpu_xid_errors") if name in signals.counters]
            argument.say(
                otherwise,
                "no uncorrected memory error and no XID was counted in the window"
                if len(known) == 2
                else f"{signals.counters[known[0]].source} did not grow in the window",
                value=0,
                unit="errors",
                source=", ".join(signals.counters[name].source for name in known),
            )
        return False

    def _throttled(self, case: Case, argument: Argument) -> bool | None:
        """Whether a harmful reason held clocks down in a share of the window that can be felt; None: not measured."""
        signals = case.signals
        found = [
            (gauge.mean, text, gauge.source, len(gauge.values))
            for name, text in HARMFUL.items()
            if (gauge := signals.gauges.get(name)) is not None
        ]
        heat = signals.counters.get("gpu_throttled_thermal_seconds")
        if heat is not None and signals.length_seconds:
            found.append(
                (min(1.0, heat.delta / signals.length_seconds), "heat (by the driver's count)", heat.source, 0)
            )
        if not found:
            return None
        share, reason, source, samples = max(found)
        throttled = share >= case.policy.throttled_share
        argument.say(
            Stance.FOR if throttled else Stance.AGAINST,
            f"clocks were held down by {reason} for {percent(share)} of the window"
            if share > 0
            else "clocks were held down neither by heat, nor by a hardware slowdown, nor by the power brake",
            value=share,
            unit="share",
            source=source,
            samples=samples or None,
        )
        cap = signals.gauges.get("gpu_throttle_power_cap")
        if cap is not None and cap.mean > 0:
            argument.say(
                Stance.CONTEXT,
                f"the power limit was reached in {percent(cap.mean)} of the samples: ordinary under full load",
                value=cap.mean,
                unit="share",
                source=cap.source,
            )
        return throttled

    def _slower(self, case: Case, argument: Argument) -> bool | None:
        """Whether decode steps slowed against the baseline; None when either window cannot say."""
        now = decode_step_quantile(case.incident, 0.5)
        before = None if case.baseline is None else decode_step_quantile(case.baseline, 0.5)
        gap = case.incident.latency("inter_token_latency", 0.5)
        if now is not None and before:
            ratio, what, source = now / before, "decode step", case.signals.steps_source
            samples = len(case.analysis.decode_steps)
        elif (shift := case.median_shift()) is not None and gap is not None:
            ratio, what, (_, samples, source) = shift, "inter-token gap", gap
        else:
            return None
        slower = ratio >= case.policy.shift_ratio
        argument.say(
            Stance.FOR if slower else Stance.AGAINST,
            f"the median {what} is {ratio:.2f}x the baseline's",
            value=ratio,
            unit="ratio",
            compared_with="baseline",
            source=source,
            samples=samples,
        )
        return slower

    def _clock_dropped(self, case: Case, argument: Argument, slower: bool | None) -> bool | None:
        """Whether the processors' clock fell far below the baseline's under like load; None when that cannot be told."""
        if case.baseline is None:
            return None
        now, before = case.signals.gauges.get("gpu_sm_clock"), case.baseline.signals.gauges.get("gpu_sm_clock")
        if now is None or before is None or not before.mean:
            return None
        if not all(self._busy(window, case.policy) for window in (case.incident, case.baseline)):
            return None
        ratio = now.mean / before.mean
        dropped = ratio <= 1 - case.policy.clock_drop_share
        argument.say(
            (Stance.FOR if slower is not False else Stance.CONTEXT) if dropped else Stance.AGAINST,
            f"the processors' clock is {now.mean / 1e6:.0f} MHz, {percent(ratio)} of the baseline's {before.mean / 1e6:.0f} MHz",
            value=ratio,
            unit="ratio",
            compared_with="baseline",
            source=now.source,
            samples=len(now.values),
        )
        return dropped and slower is not False

    def _busy(self, window: Window, policy: Policy) -> bool:
        """An idle GPU lowers its clocks by itself: only clocks of two busy windows compare."""
        busy = window.signals.gauges.get("gpu_busy")
        return window.signals.worked is not False and (busy is None or busy.mean >= policy.gpu_busy_share)

    def _ask(self, case: Case, argument: Argument, *, errors_known: bool, clocks_known: bool) -> None:
        if not clocks_known:
            argument.lacks(
                "the reasons for which the driver lowers clocks (DCGM: DCGM_FI_DEV_CLOCK_THROTTLE_REASONS, not collected by "
                "default), or clocks beside a baseline's",
                "a GPU that is too hot or short of power slows every step and shows in no engine metric",
                command_gpu(case, "clocks_throttle_reasons.active,clocks.sm,temperature.gpu,power.draw", " -l 1"),
            )
        if not errors_known:
            argument.lacks(
                "uncorrected memory errors and XIDs over the window",
                "hardware that fails is slow, or gone, before any metric of the engine says why",
                command_gpu(case, "ecc.errors.uncorrected.volatile.total,pcie.link.gen.current"),
            )
