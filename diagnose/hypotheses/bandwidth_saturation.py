from typing import NamedTuple

from diagnose.account import running_seconds
from diagnose.case import Case, Window, decode_step_quantile
from diagnose.hypotheses.base import Hypothesis, command_live, command_records
from diagnose.load import pace
from diagnose.roofline import TRAFFIC_MODEL, DeviceCeilings, ModelShape, StepShape, read_bytes, statement
from diagnose.stats import median
from diagnose.units import percent, seconds
from diagnose.verdict import Argument, Judgement, Stance, Verdict
from probes.kernel_patterns import ATTENTION, KernelClass


class BandwidthSaturation(Hypothesis):
    """Reading weights and KV cache for the decode batch takes all of the memory bandwidth.

    Symptom: the whole inter-token distribution rises, p50 with it; throughput stops growing with the batch.
    Mechanism: a decode step reads all weights once and every sequence's KV cache; its time cannot fall below those bytes
    over the memory bandwidth, and it grows with the context tokens held by the batch.
    Refuted when: pure decode steps are flat and fast, or the bytes they must read take far less than their time.
    Supported when: the pure decode step grew against the baseline, and its bytes per second come near the measured ceiling; or,
    where they are neither near nor far, it reads as much more as it takes longer, with the units hardly busy.
    Proves nothing: utilisation.gpu, memory allocated, a high batch size.
    Measure next: achieved bytes per second of pure decode steps against the device's measured bandwidth.
    Fix and its trade: a smaller decode batch or shorter contexts (less throughput per device), KV or weight quantisation
    (quality to be validated), more devices.
    """

    name = "bandwidth_saturation"

    def judge(self, case: Case, argument: Argument) -> Judgement:
        policy, analysis = case.policy, case.analysis
        if analysis.model is None:
            self._pace(case, argument)
            if self._reading_is_little(case, argument):
                return argument.conclude(Verdict.REFUTED)
            found = len(analysis.decode_steps)
            argument.lacks(
                f"at least {policy.min_decode_steps} pure decode steps (found {found})",
                "bandwidth shows in steps that do nothing but decode",
                command_live(case) if analysis.steps else command_records(case),
            )
            return argument.conclude(Verdict.UNDETERMINED)
        excess = case.excess()
        part = excess.share("decode_floor") if excess is not None else 0.0
        shifted = self._shift(case, argument)
        flat = self._flat(case, argument, decides=shifted is None)
        context = self._context_share(case, argument, decides=shifted is None)
        usage = self._bandwidth_usage(case, argument)
        if excess is not None and case.itl_moved() and part < policy.negligible_share:
            argument.say(
                Stance.AGAINST,
                f"the decode floor accounts for {percent(part)} of the excess of the slow gaps",
                value=part,
                unit="share",
                source=case.signals.steps_source,
            )
            return argument.conclude(Verdict.REFUTED, part)
        far = usage is not None and usage < policy.bandwidth_far_ceiling
        if (
            shifted is False
            or far
            or (shifted is None and flat and context is not None and context < policy.context_share_high)
        ):
            return argument.conclude(Verdict.REFUTED, part)
        if (
            shifted
            and usage is not None
            and (usage >= policy.bandwidth_near_ceiling or self._follows_the_bytes(case, argument))
        ):
            return argument.conclude(Verdict.SUPPORTED, part)
        self._lacks(case, argument, shifted, usage)
        return argument.conclude(Verdict.UNDETERMINED, part)

    def _reading_is_little(self, case: Case, argument: Argument) -> bool:
        """Of a table of kernels: whether what reads weights and cache takes so little that it cannot be what holds the device."""
        kernels = case.signals.kernels
        if kernels is None:
            return False
        share = kernels.share(KernelClass.GEMM, KernelClass.MOE_GEMM, *ATTENTION)
        most = share + (1 - kernels.listed_share)
        little = most < case.policy.reading_share_low
        argument.say(
            Stance.AGAINST if little else Stance.CONTEXT,
            f"kernels that read weights and cache take {percent(share)} of the device's time",
            value=share,
            unit="share",
            source=kernels.form,
            samples=kernels.num_kernels,
        )
        return little

    def _pace(self, case: Case, argument: Argument) -> None:
        """Without steps: whether the streams of a log slowed down while their contexts grew. A reason to look, no more."""
        found, pool = pace(case.signals.load), case.signals.gauges.get("pool_usage")
        if found is None or pool is None or pool.values[-1] <= pool.values[0]:
            return
        slower = found.slowdown >= case.policy.shift_ratio
        argument.say(
            Stance.FOR if slower else Stance.AGAINST,
            f"a running request got {found.first:,.1f} tokens/s in the first half of the window and {found.last:,.1f} in the "
            f"last, while the pool's usage went from {percent(pool.values[0])} to {percent(pool.values[-1])}"
            + ("" if slower else ": no more than ordinary variation"),
            value=found.slowdown,
            unit="ratio",
            source=pool.source,
            samples=found.samples,
        )

    def _lacks(self, case: Case, argument: Argument, shifted: bool | None, usage: float | None) -> None:
        if shifted is None:
            argument.lacks(
                "a baseline of the same server under its usual load",
                "saturation slows the median step; without a baseline a well used memory bus looks the same",
                f"stallscope record {case.address} --for 60s -o baseline.rec   # in a good hour",
            )
        elif usage is None:
            argument.lacks(
                "the device's read bandwidth and the model's bytes per step",
                "only bytes per second against the ceiling tell saturation from a slower kernel",
                f"stallscope diagnose {case.source} --device 'NVIDIA H100 80GB HBM3' --model-config config.json",
            )
        else:
            argument.lacks(
                "pure decode step times at two clearly different context lengths",
                f"{percent(usage)} of the ceiling is neither near nor far from it",
                command_live(case),
            )

    def _flat(self, case: Case, argument: Argument, *, decides: bool) -> bool:
        """Whether all pure decode steps take about as long. Beside a baseline that decides nothing."""
        p50, p95 = decode_step_quantile(case.incident, 0.5) or 0.0, decode_step_quantile(case.incident, 0.95) or 0.0
        flat = p95 <= case.policy.flat_decode_ratio * p50
        argument.say(
            Stance.AGAINST if flat and decides else Stance.CONTEXT,
            f"pure decode steps: p50 {seconds(p50)}, p95 {seconds(p95)}" + (": flat" if flat else ""),
            value=p50,
            unit="s",
            source=case.signals.steps_source,
            samples=len(case.analysis.decode_steps),
        )
        return flat

    def _context_share(self, case: Case, argument: Argument, *, decides: bool) -> float | None:
        """Share of a pure decode step that grows with context; None when no step says how long its contexts are."""
        context = case.context_share()
        if context is None:
            return None
        argument.say(
            Stance.FOR if context >= case.policy.context_share_high else Stance.AGAINST if decides else Stance.CONTEXT,
            f"{percent(context)} of a pure decode step grows with context",
            value=context,
            unit="share",
            source=case.signals.steps_source,
            samples=len(case.analysis.decode_steps),
        )
        return context

    def _shift(self, case: Case, argument: Argument) -> bool | None:
        """Whether the pure decode step grew against the baseline; None without one."""
        before = decode_step_quantile(case.baseline, 0.5) if case.baseline is not None else None
        now = decode_step_quantile(case.incident, 0.5)
        if not before or now is None or case.baseline is None:
            return None
        ratio = now / before
        shifted = ratio >= case.policy.shift_ratio
        argument.say(
            Stance.FOR if shifted else Stance.AGAINST,
            f"the median pure decode step is {ratio:.2f}x the baseline's",
            value=ratio,
            unit="ratio",
            compared_with=f"baseline, {len(case.baseline.analysis.decode_steps)} steps",
            source=case.signals.steps_source,
            samples=len(case.analysis.decode_steps),
        )
        return shifted

    def _bandwidth_usage(self, case: Case, argument: Argument) -> float | None:
        """Bytes a pure decode step must read over its time, as a share of the ceiling (nominal traffic model)."""
        ceiling, now = case.signals.last("bandwidth_ceiling"), _reading(case.incident)
        if not ceiling or now is None:
            return None
        usage, policy = now.rate / ceiling, case.policy
        argument.say(
            Stance.FOR
            if usage >= policy.bandwidth_near_ceiling
            else Stance.AGAINST
            if usage < policy.bandwidth_far_ceiling
            else Stance.CONTEXT,
            f"a pure decode step reads weights and KV at {now.rate / 1e9:.1f} GB/s, {percent(usage)} of the ceiling",
            value=usage,
            unit="share",
            compared_with=f"{ceiling / 1e9:.1f} GB/s ({case.signals.gauges['bandwidth_ceiling'].source})",
            source=TRAFFIC_MODEL,
            samples=now.samples,
        )
        return usage

    def _follows_the_bytes(self, case: Case, argument: Argument) -> bool:
        """Whether the step takes longer by what it reads more, at the baseline's rate, and computes little all the while."""
        now, busy, policy = _reading(case.incident), _busy(case.incident), case.policy
        before = None if case.baseline is None else _reading(case.baseline)
        if now is None or before is None or busy is None:
            return False
        more, kept = now.num_bytes / before.num_bytes, now.rate / before.rate
        follows = more >= policy.shift_ratio and kept >= policy.reading_rate_kept and busy < policy.compute_far_ceiling
        argument.say(
            Stance.FOR if follows else Stance.CONTEXT,
            f"it reads {more:.1f}x the baseline's bytes at {percent(kept)} of the baseline's rate, with {percent(busy)} of the "
            "matrix throughput",
            value=kept,
            unit="ratio",
            compared_with=f"baseline, {before.samples} steps",
            source=TRAFFIC_MODEL,
            samples=now.samples,
        )
        return follows


class _Reading(NamedTuple):
    """Of a window's pure decode steps, medians."""

    num_bytes: float
    """Weights and KV (nominal traffic model)."""
    rate: float
    """Bytes per second."""
    samples: int


def _reading(window: Window) -> _Reading | None:
    """None where bytes or times are not known."""
    model = ModelShape.from_labels(window.signals.info)
    if model.weight_bytes is None or model.kv_bytes_per_token is None:
        return None
    known = [
        (read, running)
        for record in window.analysis.decode_steps
        if (running := running_seconds(record)) > 0
        and (shape := StepShape.from_record(record)) is not None
        and (read := read_bytes(shape, model)) is not None
    ]
    if not known:
        return None
    return _Reading(
        median([read for read, _ in known]), median([read / running for read, running in known]), len(known)
    )


def _busy(window: Window) -> float | None:
    """Share of the matrix throughput that the median pure decode step takes; None where that is not known."""
    model, ceilings = ModelShape.from_labels(window.signals.info), DeviceCeilings.from_signals(window.signals)
    shares = [
        statement(shape, model, ceilings).compute_utilisation(running)
        for record in window.analysis.decode_steps
        if (running := running_seconds(record)) > 0 and (shape := StepShape.from_record(record)) is not None
    ]
    known = [share for share in shares if share is not None]
    return median(known) if known else None
