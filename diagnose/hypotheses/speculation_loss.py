from diagnose.case import Case
from diagnose.hypotheses.base import Hypothesis
from diagnose.signals import Signals
from diagnose.units import percent
from diagnose.verdict import Argument, Judgement, Stance, Verdict


class SpeculationLoss(Hypothesis):
    """Drafted tokens are mostly thrown away: speculation costs more steps than it saves.

    Symptom: inter-token latency rises under load while the draft model or the lookup runs as before.
    Mechanism: every step computes the draft and verifies its tokens; only accepted ones come out. When few are accepted, or
    when the batch has filled the device, a step with drafts takes longer than the tokens it adds are worth.
    Refuted when: the share of accepted draft tokens is as in the baseline, or high.
    Supported when: that share fell to a fraction of the baseline's and inter-token latency moved with it.
    Proves nothing: a low acceptance by itself; it depends on the text, and may still pay at a small batch.
    Measure next: the same load with speculation off, ITL and throughput side by side.
    Fix and its trade: fewer draft tokens, or speculation off above a batch size (slower streams while the batch is small).
    """

    name = "speculation_loss"

    def judge(self, case: Case, argument: Argument) -> Judgement:
        policy, signals = case.policy, case.signals
        if "speculation" in signals.features_absent:
            argument.say(Stance.CONTEXT, "this engine does not speculate")
            return argument.conclude(Verdict.NOT_APPLICABLE)
        drafted = signals.delta("spec_draft_tokens")
        if drafted is None and (length := signals.gauges.get("accept_length")) is not None:
            argument.say(
                Stance.CONTEXT,
                f"a step that verifies drafts yields {length.mean:.2f} tokens on average ({min(length.values):.2f} to "
                f"{length.peak:.2f})",
                value=length.mean,
                unit="tokens",
                source=length.source,
                samples=len(length.values),
            )
            argument.lacks(
                "the same load with speculation off, or what a step takes with drafts and without",
                "tokens per step say nothing of its price: few may pay at a small batch, many may not at a large one",
                f"stallscope record {case.address} --for 60s -o baseline.rec   # with speculation off",
            )
            return argument.conclude(Verdict.UNDETERMINED)
        if drafted is None:
            argument.lacks(
                "draft tokens and accepted draft tokens of the window",
                "without their ratio speculation cannot be told from a slow device",
                f"curl -s {case.address}/metrics | grep -i spec   # absent where speculation is off",
            )
            return argument.conclude(Verdict.UNDETERMINED)
        if drafted == 0:
            argument.say(Stance.CONTEXT, "no token was drafted in the window", value=0, unit="tokens")
            return argument.conclude(Verdict.NOT_APPLICABLE)
        accepted = acceptance(signals)
        if accepted is None or drafted < policy.min_draft_tokens:
            argument.lacks(
                f"at least {policy.min_draft_tokens:g} draft tokens with their acceptance (found {drafted:,.0f})",
                "a few drafts say nothing of a rate",
                f"stallscope diagnose {case.source} --window 60s",
            )
            return argument.conclude(Verdict.UNDETERMINED)
        argument.say(
            Stance.AGAINST if accepted >= policy.acceptance_high else Stance.CONTEXT,
            f"{percent(accepted)} of {drafted:,.0f} draft tokens were accepted",
            value=accepted,
            unit="share",
            source=signals.counters["spec_accepted_tokens"].source,
            samples=round(drafted),
        )
        if accepted >= policy.acceptance_high:
            return argument.conclude(Verdict.REFUTED)
        before = acceptance(case.baseline.signals) if case.baseline is not None else None
        if before is None or before <= 0:
            argument.lacks(
                "the same load with speculation off, or the acceptance of a good time",
                "a low acceptance may still pay; only a comparison shows whether it does",
                f"stallscope record {case.address} --for 60s -o baseline.rec   # in a good hour, or with speculation off",
            )
            return argument.conclude(Verdict.UNDETERMINED)
        return self._against_baseline(case, argument, accepted / before)

    def _against_baseline(self, case: Case, argument: Argument, kept: float) -> Judgement:
        fell = kept <= case.policy.acceptance_fell
        argument.say(
            Stance.FOR if fell else Stance.AGAINST,
            f"acceptance is {kept:.2f}x the baseline's",
            value=kept,
            unit="ratio",
            compared_with="baseline",
        )
        moved = case.itl_moved()
        if not fell or moved is False:
            return argument.conclude(Verdict.REFUTED)
        if moved:
            return argument.conclude(Verdict.SUPPORTED)
        argument.lacks(
            "inter-token latency in both windows",
            "fewer accepted tokens matter when the streams slowed down",
            f"stallscope diagnose {case.address} --window 60s --baseline baseline.rec",
        )
        return argument.conclude(Verdict.UNDETERMINED)


def acceptance(signals: Signals) -> float | None:
    """Accepted over drafted tokens; None when either is unknown or nothing was drafted."""
    drafted, accepted = signals.delta("spec_draft_tokens"), signals.delta("spec_accepted_tokens")
    return None if not drafted or accepted is None else min(1.0, accepted / drafted)
