from diagnose.case import Case
from diagnose.hypotheses.base import Hypothesis, command_trace
from diagnose.kernel_profile import KernelTotals
from diagnose.rank_skew import RankSkew, rank_skew
from diagnose.units import percent, seconds
from diagnose.verdict import Argument, Judgement, Stance, Verdict
from probes.kernel_patterns import KernelClass


class CollectiveStall(Hypothesis):
    """Collectives between the devices of a group hold the step: a slow link, or one rank that comes late.

    Symptom: every stream of a tensor- or expert-parallel group slows down together; devices look busy.
    Mechanism: an all-reduce ends when the last rank has joined. Its kernel spins from the moment its own rank arrives, so that
    its time is the transfer and the wait for the slowest rank; device utilisation counts the wait as work.
    Refuted when: collectives take a small share of the device's time, and none of the excess of the slow gaps.
    Supported when: they take most of a rank's device time or most of the excess of the slow gaps, whichever of the two it is;
    a large share on every rank (the link), or a long time on some ranks and a short one on another (that one is late).
    Proves nothing: utilisation.gpu; collectives of a fair share on a single rank (waiting and moving look the same there).
    Measure next: a trace of every rank over the same steps.
    Fix and its trade: find what delays the slow rank (host jitter, clocks, expert imbalance); a smaller group (more memory per
    device); other collectives for small messages.
    """

    name = "collective_stall"

    def judge(self, case: Case, argument: Argument) -> Judgement:
        policy = case.policy
        timed = [(record, record.device_ns) for record in case.analysis.steps if record.device_ns is not None]
        total = sum(sum(device) for _, device in timed)
        if not total and case.signals.kernels is not None:
            return self._judge_table(case, argument, case.signals.kernels)
        if not total:
            argument.lacks(
                "device time of collectives by step",
                "a late rank looks like a slow device on all the others",
                command_trace(case),
            )
            return argument.conclude(Verdict.UNDETERMINED)
        share = sum(device.comm for _, device in timed) / total
        if share == 0:
            argument.say(
                Stance.AGAINST,
                f"no collective ran in {len(timed)} timed steps",
                value=0,
                unit="share",
                source=case.signals.steps_source,
                samples=len(timed),
            )
            return argument.conclude(Verdict.NOT_APPLICABLE)
        argument.say(
            Stance.FOR if share >= policy.comm_share_high else Stance.AGAINST,
            f"collectives take {percent(share)} of the device's time",
            value=share,
            unit="share",
            source=case.signals.steps_source,
            samples=len(timed),
        )
        part = self._share_of_excess(case, argument)
        skew = rank_skew(case.signals.profiles)
        if skew is not None:
            return self._judge_ranks(case, argument, skew, part)
        if share < policy.negligible_share and (part is None or part < policy.dominant_share):
            return argument.conclude(Verdict.REFUTED, part)
        return self._one_rank(case, argument, max(share, part or 0.0), part)

    def _judge_table(self, case: Case, argument: Argument, kernels: KernelTotals) -> Judgement:
        """Shares of the device's time alone: which step they belong to is not known."""
        policy, share = case.policy, kernels.share(KernelClass.COMM)
        unlisted = 1 - kernels.listed_share
        extremes = kernels.comm_range_ns
        between = (
            "" if extremes is None else f", from {seconds(extremes[0] / 1e9)} to {seconds(extremes[1] / 1e9)} each"
        )
        argument.say(
            Stance.FOR if share >= policy.comm_share_high else Stance.AGAINST,
            f"collectives take {percent(share)} of the device's time{between}",
            value=share,
            unit="share",
            source=kernels.form,
            samples=kernels.num_kernels,
        )
        if not share and unlisted < policy.negligible_share:
            return argument.conclude(Verdict.NOT_APPLICABLE)
        if share + unlisted < policy.negligible_share:
            return argument.conclude(Verdict.REFUTED)
        return self._one_rank(case, argument, share, None)

    def _one_rank(self, case: Case, argument: Argument, share: float, part: float | None) -> Judgement:
        """Of one rank: collectives that hold most of it are the cause, whichever of the two they are."""
        alike = "on one rank the transfer and the wait for a late rank look the same"
        if share >= case.policy.dominant_share:
            argument.say(
                Stance.CONTEXT,
                f"whether the link is slow or another rank late is open: {alike}, traces of all ranks tell",
            )
            return argument.conclude(Verdict.SUPPORTED, part)
        argument.lacks("a trace of every rank over the same steps", alike, command_trace(case))
        return argument.conclude(Verdict.UNDETERMINED, part)

    def _judge_ranks(self, case: Case, argument: Argument, skew: RankSkew, part: float | None) -> Judgement:
        policy = case.policy
        waits = skew.wait_share >= policy.rank_skew_share
        by_rank = ", ".join(f"{name} {percent(share)}" for name, share in skew.comm_share.items())
        argument.say(
            Stance.FOR if waits else Stance.CONTEXT,
            f"ranks wait {percent(skew.wait_share)} of their steps for the slowest"
            + (f", {skew.slowest}, whose collectives are the shortest" if waits else "")
            + f": {by_rank}",
            value=skew.wait_share,
            unit="share",
            source="traces of the ranks",
            samples=skew.steps,
        )
        link = min(skew.comm_share.values()) >= policy.comm_share_high
        if link and not waits:
            argument.say(Stance.FOR, "all ranks take about as long: what holds them is the transfer, not one of them")
        return argument.conclude(Verdict.SUPPORTED if waits or link else Verdict.REFUTED, part)

    def _share_of_excess(self, case: Case, argument: Argument) -> float | None:
        """Share of the slow gaps' excess that collectives took beyond what is usual in such steps."""
        excess = case.excess()
        if excess is None or not case.itl_moved():
            return None
        part = excess.share("collective")
        argument.say(
            Stance.FOR if part >= case.policy.dominant_share else Stance.AGAINST,
            f"{percent(part)} of the excess of the slow gaps is time in collectives beyond the usual",
            value=part,
            unit="share",
            source=case.signals.steps_source,
            samples=case.analysis.num_gaps,
        )
        return part
