from diagnose.case import Case
from diagnose.hypotheses.base import Hypothesis, command_live
from diagnose.units import percent, seconds
from diagnose.verdict import Argument, Judgement, Stance, Verdict


class QueueOverload(Hypothesis):
    """More requests arrive than the server finishes: the wait is in the queue, before any token.

    Symptom: time to first token grows without bound while running streams keep their pace.
    Mechanism: arrivals exceed service; every request waits for those before it. Inter-token latency does not move.
    Refuted when: queue time is small, or a small share of the time to first token.
    Supported when: queue time dominates the time to first token, requests wait, and inter-token latency is unmoved.
    Proves nothing: a high number of running requests.
    Measure next: arrival rate against completion rate; queue time as a share of the time to first token.
    Fix and its trade: more replicas or admission control (some clients are told to come back), shorter requests.
    """

    name = "queue_overload"

    def judge(self, case: Case, argument: Argument) -> Judgement:
        policy, signals = case.policy, case.signals
        queue, ttft = signals.histograms.get("queue_time"), signals.histograms.get("time_to_first_token")
        waiting = signals.gauges.get("waiting")
        if queue is None or ttft is None or not queue.count or not ttft.count:
            if waiting is not None and waiting.peak == 0 and queue is not None:
                argument.say(
                    Stance.AGAINST, "no request waited at any scrape of the window", value=0, source=waiting.source
                )
                return argument.conclude(Verdict.REFUTED)
            argument.lacks(
                "queue time and time to first token of requests that started in the window",
                "the queue's share of the first token's delay decides",
                command_live(case),
            )
            return argument.conclude(Verdict.UNDETERMINED)
        mean_queue, mean_ttft = queue.mean or 0.0, ttft.mean or 0.0
        share = min(1.0, mean_queue / mean_ttft) if mean_ttft > 0 else 0.0
        dominates = share >= policy.queue_dominates and mean_queue >= policy.noticeable_queue_seconds
        argument.say(
            Stance.FOR if dominates else Stance.AGAINST,
            f"queue time is {seconds(mean_queue)} of {seconds(mean_ttft)} to the first token ({percent(share)}, means)",
            value=share,
            unit="share",
            source=queue.source,
            samples=round(queue.count),
        )
        if waiting is not None:
            argument.say(
                Stance.FOR if waiting.peak > 0 else Stance.AGAINST,
                f"{waiting.mean:.1f} requests waited on average, at most {waiting.peak:.0f}",
                value=waiting.mean,
                unit="requests",
                source=waiting.source,
                samples=len(waiting.values),
            )
        if mean_queue < policy.noticeable_queue_seconds or share < policy.queue_small:
            return argument.conclude(Verdict.REFUTED)
        moved = case.itl_moved()
        if not dominates or moved is None or moved:
            if moved:
                argument.say(Stance.AGAINST, "inter-token latency is disturbed as well: the service itself slowed down")
            argument.lacks(
                "arrival and completion rates over a longer window, with inter-token latency undisturbed",
                "a queue behind a slowed service is a consequence, not the cause",
                command_live(case, "--window 120s"),
            )
            return argument.conclude(Verdict.UNDETERMINED)
        return argument.conclude(Verdict.SUPPORTED)
