from typing import NamedTuple

from diagnose.case import Case
from diagnose.hypotheses.base import Hypothesis, command_live, command_records
from diagnose.hypotheses.prefill_work import say_prefill_work
from diagnose.load import interference
from diagnose.signals import HistogramWindow
from diagnose.stats import median, spearman
from diagnose.units import percent, seconds
from diagnose.verdict import Argument, Judgement, Stance, Verdict
from probes.records import StepKind, StepRecord


class PrefillInterference(Hypothesis):
    """Prompt chunks share steps with running streams and make them wait.

    Symptom: p95/p99 inter-token latency rises while p50 stays; streams stutter when prompts arrive.
    Mechanism: a step ends for all of its sequences at once. A chunk of prompt tokens beside the decodes lengthens the step
    by its own compute, and every stream in it waits. The token budget bounds the chunk's tokens, not its time: later chunks
    read a longer history.
    Refuted when: no prompt token was computed in the window, or mixed steps are no slower than pure decode steps of like
    batch and context, or stalls hold too little of the decode time to matter.
    Supported when: mixed steps are much slower than like pure decode steps and most of the excess of the slow gaps is
    co-scheduled prefill; in a log that gives prefills and decodes lines of their own, streams are much slower whenever a
    prefill came between two lines, and lose a good part of their time to it.
    Proves nothing: prompts got longer; the budget is large; the GPU is busy; the hit rate changed.
    Measure next: the same load at a smaller token budget, p95/p99 ITL and TTFT side by side, in paired blocks.
    Fix and its trade: a smaller token budget shortens the stalls and lengthens the time to first token; prefix reuse removes
    the work; a separate prefill instance moves it elsewhere, and its KV then crosses a link (`stallscope disaggregation`).
    """

    name = "prefill_interference"

    def judge(self, case: Case, argument: Argument) -> Judgement:
        prefilled = _prefill_tokens(case)
        if prefilled is None:
            return self._judge_uncounted(case, argument)
        if prefilled == 0 and self._may_be_late(case):
            argument.say(
                Stance.CONTEXT, "no prompt was booked in the window", value=0, unit="tokens", source=_source(case)
            )
            self._pool_fills(case, argument)
            argument.lacks(
                "prompt tokens in the step that computes them",
                "this engine books a prompt when its prefill has ended: one may have run all through the window",
                command_records(case),
            )
            return argument.conclude(Verdict.UNDETERMINED)
        if prefilled == 0:
            argument.say(Stance.AGAINST, "no prompt token was computed in the window", value=0, unit="tokens")
            return argument.conclude(Verdict.REFUTED)
        argument.say(
            Stance.CONTEXT,
            f"{_count_text(case)}{prefilled:,.0f} prompt tokens were computed in the window",
            value=prefilled,
            unit="tokens",
            source=_source(case),
        )
        say_prefill_work(case, argument)
        if case.analysis.model is None:
            return self._judge_histograms(case, argument)
        found = _slow_ratio(case)
        if found is None:
            return self._judge_few_mixed(case, argument)
        return self._judge_steps(case, argument, found)

    def _judge_uncounted(self, case: Case, argument: Argument) -> Judgement:
        """Nothing counts prompt tokens: that steps computed prompts alone may be known all the same."""
        length, steps = case.signals.gauges.get("prefill_run_seconds"), case.signals.peak("prefill_run_steps")
        if length is None or steps is None:
            argument.lacks(
                "prompt tokens computed in the window", "without prefill there is no interference", command_live(case)
            )
            return argument.conclude(Verdict.UNDETERMINED)
        argument.say(
            Stance.FOR,
            f"between two decode steps {steps:.0f} prefill steps in a row took {seconds(length.peak)}: a stream that was "
            "running got no token for so long",
            value=length.peak,
            unit="s",
            source=length.source,
            samples=round(steps),
        )
        argument.lacks(
            "how many streams were running while only prompts were computed",
            "with none, nobody waited: the decode steps before and after may be of different requests",
            command_live(case),
        )
        return argument.conclude(Verdict.UNDETERMINED)

    def _judge_steps(self, case: Case, argument: Argument, found: "_SlowRatio") -> Judgement:
        """The discriminator: mixed steps against like pure decode steps, and what of the slow gaps they explain."""
        policy, ratio = case.policy, found.ratio
        excess = case.excess()
        part = excess.share("prefill") if excess is not None else 0.0
        argument.say(
            Stance.FOR if ratio >= policy.mixed_slow_ratio else Stance.AGAINST,
            found.text,
            value=ratio,
            unit="ratio",
            compared_with=f"{len(case.analysis.decode_steps)} pure decode steps",
            source=case.signals.steps_source,
            samples=found.samples,
        )
        self._dose(case, argument)
        if ratio <= policy.mixed_alike_ratio:
            return argument.conclude(Verdict.REFUTED, part)
        self._stalls(case, argument)
        if not case.itl_moved():
            return argument.conclude(Verdict.REFUTED, part)
        argument.say(
            Stance.FOR if part >= policy.dominant_share else Stance.AGAINST,
            f"{percent(part)} of the excess of the slow gaps is co-scheduled prefill",
            value=part,
            unit="share",
            source=case.signals.steps_source,
            samples=case.analysis.num_gaps,
        )
        self._median(case, argument)
        # Many small chunks hide the few long ones from the median; stalls that are mostly prefill show them all the same.
        if part >= policy.dominant_share and (ratio >= policy.mixed_slow_ratio or case.has_stalls()):
            return argument.conclude(Verdict.SUPPORTED, part)
        if part < policy.negligible_share:
            return argument.conclude(Verdict.REFUTED, part)
        argument.lacks(
            "the same load at a smaller token budget",
            "prefill explains a part of the slow gaps, but not most of it",
            command_live(case),
        )
        return argument.conclude(Verdict.UNDETERMINED, part)

    def _may_be_late(self, case: Case) -> bool:
        """Whether a prefill may have run that the counter does not know yet."""
        counter = case.signals.counters.get("tokens_prefill")
        return counter is not None and counter.late and case.signals.peak("running") != 0

    def _pool_fills(self, case: Case, argument: Argument) -> None:
        """Blocks that no generated token accounts for are those of a prompt that is being computed."""
        usage, tokens, generated = (
            case.signals.gauges.get("pool_usage"),
            case.signals.last("pool_tokens"),
            case.signals.delta("tokens_decode"),
        )
        if usage is None or tokens is None or generated is None:
            return
        grown = (usage.last - usage.values[0]) * tokens
        if grown >= case.policy.min_prefix_tokens and grown * case.policy.dominant_share > generated:
            argument.say(
                Stance.FOR,
                f"the pool took in {grown:,.0f} tokens while {generated:,.0f} were generated: a prompt was computed meanwhile",
                value=grown,
                unit="tokens",
                source=usage.source,
                samples=len(usage.values),
            )

    def _stalls(self, case: Case, argument: Argument) -> None:
        share, factor = case.stall_share() or 0.0, case.policy.slow_gap_factor
        argument.say(
            Stance.FOR if share >= case.policy.material_stall_share else Stance.AGAINST,
            f"stalls (gaps of at least {factor:g}x their decode floor) hold {percent(share)} of the decode time "
            f"and {percent(case.analysis.stalled_tokens_share(factor))} of the tokens",
            value=share,
            unit="share",
            source=case.signals.steps_source,
            samples=case.analysis.num_gaps,
        )

    def _dose(self, case: Case, argument: Argument) -> None:
        """Dose response: step time beyond the decode floor against the step's prompt tokens."""
        model, mixed = case.analysis.model, case.analysis.mixed_steps
        assert model is not None  # without one nothing is judged by steps
        known = [(record, float(tokens)) for record in mixed if (tokens := record.prompt_tokens) is not None]
        doses = [dose for _, dose in known]
        if not doses or max(doses) < case.policy.min_dose_range * min(doses):
            return  # chunks of one size say nothing of a dose
        excesses = [model.compute_seconds(record) - model.floor(record) for record, _ in known]
        correlation = spearman(doses, excesses)
        if correlation is None:
            return
        argument.say(
            Stance.FOR if correlation >= case.policy.dose_correlation else Stance.CONTEXT,
            f"dose response: time beyond the decode floor follows the step's prompt tokens (rank correlation {correlation:.2f})",
            value=correlation,
            unit="rank correlation",
            source=case.signals.steps_source,
            samples=len(known),
        )

    def _median(self, case: Case, argument: Argument) -> None:
        shift = case.median_shift()
        if shift is None:
            return
        near = shift < case.policy.shift_ratio
        argument.say(
            Stance.FOR if near else Stance.CONTEXT,
            f"p50 ITL is {shift:.2f}x the baseline's" + (": the tail moved, the middle did not" if near else ""),
            value=shift,
            unit="ratio",
            compared_with="baseline",
            samples=case.analysis.num_gaps,
        )

    def _judge_few_mixed(self, case: Case, argument: Argument) -> Judgement:
        mixed = len(case.analysis.mixed_steps)
        if not case.itl_moved():
            argument.say(
                Stance.AGAINST,
                f"only {mixed} steps mixed prefill with decode, and the streams show no material stall",
                value=mixed,
                unit="steps",
                source=case.signals.steps_source,
            )
            return argument.conclude(Verdict.REFUTED)
        argument.lacks(
            f"at least {case.policy.min_mixed_steps} mixed steps (found {mixed})",
            "a few mixed steps are anecdotes",
            command_live(case),
        )
        return argument.conclude(Verdict.UNDETERMINED)

    def _judge_histograms(self, case: Case, argument: Argument) -> Judgement:
        """Without step records: mean step durations by kind, and the engine's own stall counter."""
        signals, policy = case.signals, case.policy
        mixed, decode = signals.histograms.get("step_mixed"), signals.histograms.get("step_decode")
        if mixed is None or decode is None or mixed.count < policy.min_mixed_steps:
            return self._judge_lines(case, argument) or self._ask_durations(case, argument, mixed, decode)
        if decode.count < policy.min_decode_steps or not decode.sum:
            return self._ask_durations(case, argument, mixed, decode)
        mean = mixed.sum / mixed.count
        ratio = mean / (decode.sum / decode.count)
        argument.say(
            Stance.FOR if ratio >= policy.mixed_slow_ratio else Stance.AGAINST,
            f"mixed steps take {seconds(mean)} on average, {ratio:.1f}x pure decode steps",
            value=ratio,
            unit="ratio",
            source=mixed.source,
            samples=round(mixed.count),
        )
        stalled = signals.delta("stall_prefill_seconds")
        share = stalled / (mixed.sum + decode.sum) if stalled is not None else None
        if share is not None:
            argument.say(
                Stance.FOR if share >= policy.material_stall_share else Stance.AGAINST,
                f"the engine books {percent(share)} of the time of steps with decodes as stalled by prefill",
                value=share,
                unit="share",
                source=signals.counters["stall_prefill_seconds"].source,
            )
        if ratio <= policy.mixed_alike_ratio or (share is not None and share < policy.material_stall_share):
            return argument.conclude(Verdict.REFUTED, share)
        if share is not None and ratio >= policy.mixed_slow_ratio:
            return argument.conclude(Verdict.SUPPORTED, share)
        argument.lacks(
            "step records, or the stall counter",
            "mean step times do not say how much of the streams' time the mixed steps hold",
            command_records(case),
        )
        return argument.conclude(Verdict.UNDETERMINED)

    def _ask_durations(
        self, case: Case, argument: Argument, mixed: HistogramWindow | None, decode: HistogramWindow | None
    ) -> Judgement:
        found = "none"
        if mixed is not None and decode is not None:
            found = f"{mixed.count:.0f} mixed and {decode.count:.0f} decode steps"
        argument.lacks(
            f"step durations split into mixed and pure decode steps (found: {found}), ideally as step records",
            "the discriminator: mixed steps against like pure decode steps",
            command_records(case),
        )
        return argument.conclude(Verdict.UNDETERMINED)

    def _judge_lines(self, case: Case, argument: Argument) -> Judgement | None:
        """From a log with lines of prefills and of decodes: the streams' pace with prefill in between and without. None: open."""
        found, policy = interference(case.signals.load), case.policy
        if found is None or min(len(found.without), found.prefills) < policy.min_mixed_steps:
            return None
        ratio, share = found.slowdown, found.lost_share
        argument.say(
            Stance.FOR if ratio >= policy.mixed_slow_ratio else Stance.AGAINST,
            f"a stream gets {median(found.mixed):,.1f} tokens/s between lines with a prefill and {median(found.without):,.1f} "
            f"between lines without: prefill takes {percent(share)} of the streams' time",
            value=ratio,
            unit="ratio",
            compared_with=f"{len(found.without)} lines without prefill",
            source=case.signals.counters["tokens_prefill"].source,
            samples=found.prefills,
        )
        if ratio >= policy.mixed_slow_ratio and share >= policy.material_stall_share:
            return argument.conclude(Verdict.SUPPORTED, share)
        return argument.conclude(Verdict.REFUTED, share) if ratio <= policy.mixed_alike_ratio else None


def _count_text(case: Case) -> str:
    """`at least ` where some steps do not say how many."""
    counted = "tokens_prefill" in case.signals.counters
    return "" if counted or all(r.prefill_tokens is not None for r in case.analysis.steps) else "at least "


class _SlowRatio(NamedTuple):
    ratio: float
    text: str
    samples: int


def _slow_ratio(case: Case) -> _SlowRatio | None:
    """How much slower prefill makes the streams' steps; None with too few steps that show it.

    Engines that schedule prefill first have no mixed steps: there a stream waits for whole prefill steps between two of its
    own.
    """
    mixed, least = case.analysis.mixed_steps, case.policy.min_mixed_steps
    ratio = case.mixed_ratio()
    if ratio is not None and len(mixed) >= least:
        text = f"mixed steps take {ratio:.1f}x a pure decode step of the same batch and context"
        return _SlowRatio(ratio, text, len(mixed))
    # One of each step: its streams waited together.
    blocked = {gap.step.step_id: gap.seconds / gap.floor for gap in case.analysis.blocked_gaps() if gap.floor > 0}
    if len(blocked) >= least:
        ratio = median(list(blocked.values()))
        text = f"streams that wait for a prefill step take {ratio:.1f}x a pure decode step of the same batch"
        return _SlowRatio(ratio, text, len(blocked))
    return None


def _prefill_tokens(case: Case) -> float | None:
    """Exact from counters. From step records that do not all count them, what is known, and at least one for each."""
    counted = case.signals.delta("tokens_prefill")
    if counted is not None:
        return counted
    if case.analysis.steps:
        return float(sum(_at_least(record) for record in case.analysis.steps))
    return None


def _at_least(record: StepRecord) -> int:
    return int(record.kind is not StepKind.DECODE) if record.prefill_tokens is None else record.prefill_tokens


def _source(case: Case) -> str:
    counter = case.signals.counters.get("tokens_prefill")
    return counter.source if counter is not None else case.signals.steps_source
