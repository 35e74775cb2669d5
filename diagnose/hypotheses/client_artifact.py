from math import inf

from diagnose.case import Case
from diagnose.hypotheses.base import Hypothesis
from diagnose.slo import Reported
from diagnose.units import seconds
from diagnose.verdict import Argument, Judgement, Stance, Verdict


class ClientArtifact(Hypothesis):
    """The engine hands tokens out in time; what is late is the reading, or the measuring, of them.

    Symptom: a client or a benchmark reports latencies that the engine's own clock does not show.
    Mechanism: a slow reader, a proxy that gathers chunks, one event loop for hundreds of streams, or a load generator that
    books its own late sends as the server's. The engine's stamp is taken before all of them.
    Refuted when: the engine's own quantile is about as late as the reported one.
    Supported when: the reported quantile is a multiple of the engine's own, what the server's front end adds to it included,
    in the same window.
    Proves nothing: a benchmark's mean; latencies from another time.
    Measure next: the same request from beside the server (`curl -N`), and its time to first byte through each proxy.
    Fix and its trade: measure per stream with the client's own delay taken out; unbuffered proxies (more packets).
    """

    name = "client_artifact"

    def judge(self, case: Case, argument: Argument) -> Judgement:
        if not case.reported:
            argument.lacks(
                "what the clients saw in this window",
                "only the difference between their clock and the engine's shows what lies outside of it",
                f"stallscope diagnose {case.source} --reported itl_p99=VALUE,ttft_p95=VALUE",
            )
            return argument.conclude(Verdict.UNDETERMINED)
        verdicts = [self._compare(case, reported, argument) for reported in case.reported]
        if Verdict.SUPPORTED in verdicts:
            return argument.conclude(Verdict.SUPPORTED)
        if all(verdict is Verdict.REFUTED for verdict in verdicts):
            return argument.conclude(Verdict.REFUTED)
        argument.lacks(
            "the engine's own quantile of the reported latency, on enough samples",
            "the two clocks neither agree nor clearly differ",
            f"stallscope diagnose {case.source} --window 120s --reported {','.join(r.text for r in case.reported)}",
        )
        return argument.conclude(Verdict.UNDETERMINED)

    def _compare(self, case: Case, reported: Reported, argument: Argument) -> Verdict:
        own = case.incident.latency(reported.metric, reported.quantile)
        if own is None:
            return Verdict.UNDETERMINED
        bounds, samples, source = own
        factor = case.policy.client_factor
        late = self._front_end(case, reported.quantile)
        latest = bounds.high + late
        least = reported.seconds / latest if 0 < latest < inf else 0.0
        most = reported.seconds / bounds.low if bounds.low > 0 else inf
        outside, inside = least >= factor, most < factor
        stance = Stance.FOR if outside else Stance.AGAINST if inside else Stance.CONTEXT
        text = seconds(bounds.high) if bounds.exact else f"{seconds(bounds.low)} to {seconds(bounds.high)}"
        own_delay = (
            f", and its front end may add {seconds(late)}" if late >= case.policy.frontend_unfelt_seconds else ""
        )
        argument.say(
            stance,
            f"clients report {reported.text}; by the engine's clock it is {text}{own_delay}",
            value=least if outside else most,
            unit="ratio",
            source=source,
            samples=samples,
        )
        if samples < case.policy.min_reported_samples or not (outside or inside):
            return Verdict.UNDETERMINED
        return Verdict.SUPPORTED if outside else Verdict.REFUTED

    def _front_end(self, case: Case, quantile: float) -> float:
        """By how much the server's own front end may delay tokens after the engine's stamp: no client's doing. Seconds."""
        delay = case.signals.histograms.get("frontend_delay")
        bounds = None if delay is None else delay.quantile(quantile)
        return 0.0 if bounds is None else bounds.high
