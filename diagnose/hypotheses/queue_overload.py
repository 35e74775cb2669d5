from diagnose.case import Case
from diagnose.hypotheses.base import Hypothesis, command_for, command_live
from diagnose.hypotheses.pool import occupancy
from diagnose.load import admitted, flat_top, pace
from diagnose.units import percent, seconds
from diagnose.verdict import Argument, Judgement, Missing, Stance, Verdict


class QueueOverload(Hypothesis):
    """More requests arrive than the server finishes: the wait is in the queue, before any token.

    Symptom: time to first token grows without bound while running streams keep their pace.
    Mechanism: arrivals exceed service; every request waits for those before it. Inter-token latency does not move.
    Refuted when: queue time is small, or a small share of the time to first token; or nothing waits throughout.
    Supported when: queue time dominates the time to first token, requests wait, and inter-token latency is unmoved, or moved
    while more tokens a second are computed than in the baseline, no request waits for a slot or for blocks, and the wait is
    most of what requests lost, after what slower tokens lengthened it by; not where a cap that is not told would look the
    same, nor without a baseline beside long contexts. Without queue times: more requests wait than run at every line of a
    log, the line moves, and running ones keep their pace.
    Proves nothing: a high number of running requests.
    Measure next: arrival rate against completion rate; queue time as a share of the time to first token.
    Fix and its trade: more replicas or admission control (some clients are told to come back), shorter requests.
    """

    name = "queue_overload"

    def judge(self, case: Case, argument: Argument) -> Judgement:
        policy, signals = case.policy, case.signals
        queue, ttft = signals.histograms.get("queue_time"), signals.histograms.get("time_to_first_token")
        waiting = signals.gauges.get("waiting")
        # Where no time to first token is exported, the whole of a request is longer still: the share is then at least so large.
        until_end = ttft is None or not ttft.count
        ttft = signals.histograms.get("e2e_latency") if until_end else ttft
        if queue is None or queue.mean is None or ttft is None or not ttft.mean:
            return self._judge_counts(case, argument)
        mean_queue, mean_ttft = queue.mean, ttft.mean
        share = min(1.0, mean_queue / mean_ttft)
        end = "end of a request" if until_end else "first token"
        dominates = share >= policy.queue_dominates and mean_queue >= policy.noticeable_queue_seconds
        argument.say(
            Stance.FOR if dominates else Stance.AGAINST,
            f"queue time is {seconds(mean_queue)} of {seconds(mean_ttft)} to the {end} ({percent(share)}, means)",
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
        if mean_queue < policy.noticeable_queue_seconds or (share < policy.queue_small and not until_end):
            return argument.conclude(Verdict.REFUTED)
        if dominates and (held := self._held_by_another(case)) is not None:
            argument.lacks(held.measurement, held.decides, held.command)
            return argument.conclude(Verdict.UNDETERMINED)
        moved = case.itl_moved() if case.itl_moved() is not None else _steps_moved(case)
        service_holds = self._serves_more(case, argument) if moved else moved is False
        if not dominates or not service_holds:
            argument.lacks(
                "arrival and completion rates over a longer window, with inter-token latency undisturbed",
                "a queue behind a slowed service is a consequence, not the cause",
                command_live(case, "--window 120s"),
            )
            return argument.conclude(Verdict.UNDETERMINED)
        return argument.conclude(Verdict.SUPPORTED)

    def _serves_more(self, case: Case, argument: Argument) -> bool:
        """Whether tokens are slower because there is more to do: more are computed than in the baseline, requests wait neither
        for a slot nor for blocks, and waiting is most of what they lost. Else the service itself is slower, and a queue behind
        it a consequence."""
        lost, policy = case.lost_against_baseline(), case.policy
        more = _computed(case)
        held = [case.signals.peak(name) for name in ("waiting_blocks", "waiting_sequences")]
        if lost is None or more is None or more < policy.shift_ratio or any(waits != 0 for waits in held):
            argument.say(Stance.AGAINST, "inter-token latency is disturbed as well: the service itself slowed down")
            return False
        share = lost.own_waiting_share
        argument.say(
            Stance.FOR if share >= policy.dominant_share else Stance.AGAINST,
            f"{more:.1f}x as many tokens a second are computed as in the baseline, and requests wait {seconds(lost.waiting)} "
            f"longer, behind tokens {lost.slowdown:.1f}x as slow: {percent(share)} of what they lost is the queue's own",
            value=share,
            unit="share",
        )
        return share >= policy.dominant_share

    def _held_by_another(self, case: Case) -> Missing | None:
        """What would tell, where a limit or a slowed service that cannot be seen would make the same queue."""
        signals, policy = case.signals, case.policy
        running, waiting, pool = signals.gauges.get("running"), signals.gauges.get("waiting"), occupancy(signals)
        told = signals.last("max_sequences") is not None or "waiting_sequences" in signals.gauges
        roomy = pool is not None and pool.active_peak / pool.total < policy.pool_well_below
        if not told and roomy and running is not None and waiting is not None:
            top = flat_top(running.values, waiting.values, policy.min_flat_lines, policy.dominant_share)
            if top is not None:
                return Missing(
                    "the configured cap of sequences",
                    f"while requests waited {top:.0f} ran again and again, in a pool with room: a cap would look the same",
                    command_for(case, "limits", command_live(case)),
                )
        context = case.context_share()
        if case.baseline is None and (context is None or context >= policy.context_share_high):
            much = f"{percent(context)}" if context is not None else "an unknown part"
            return Missing(
                "a baseline of the same server under its usual load",
                f"{much} of a decode step is reading contexts: without a baseline nothing tells whether that slowed the service, "
                "and the queue is a consequence",
                f"stallscope record {case.address} --for 60s -o baseline.rec   # in a good hour",
            )
        return None

    def _judge_counts(self, case: Case, argument: Argument) -> Judgement:
        """Without queue times. By Little's law the waiting's share of all requests inside is the queue's share of their time."""
        signals, policy = case.signals, case.policy
        waiting, running = signals.gauges.get("waiting"), signals.gauges.get("running")
        if waiting is not None and waiting.peak == 0 and len(waiting.values) >= policy.min_load_lines:
            argument.say(
                Stance.AGAINST,
                "no request waited at any scrape of the window",
                value=0,
                source=waiting.source,
                samples=len(waiting.values),
            )
            if not signals.peak("waiting_upstream"):
                return argument.conclude(Verdict.REFUTED)
        if waiting is not None and running is not None and waiting.peak > 0:
            share, lines = waiting.mean / (waiting.mean + running.mean), len(waiting.values)
            argument.say(
                Stance.FOR if share >= policy.queue_dominates else Stance.CONTEXT,
                f"{waiting.mean:,.0f} requests waited beside {running.mean:,.0f} running ones on average: "
                f"{percent(share)} of a request's time inside is the queue, by Little's law",
                value=share,
                unit="share",
                source=waiting.source,
                samples=lines,
            )
            dominates = share >= policy.queue_dominates and min(waiting.values) > 0 and lines >= policy.min_load_lines
            if (
                dominates
                and min(running.values) > 1
                and self._line_moves(case, argument)
                and self._keeps_pace(case, argument)
            ):
                return argument.conclude(Verdict.SUPPORTED)
        argument.lacks(
            "queue time and time to first token of requests that started in the window",
            "the queue's share of the first token's delay decides",
            command_live(case),
        )
        return argument.conclude(Verdict.UNDETERMINED)

    def _line_moves(self, case: Case, argument: Argument) -> bool:
        """Whether requests were started, or the pool was short of room for them; else the head of the line may be stuck."""
        pool = occupancy(case.signals)
        if pool is not None and pool.active_peak / pool.total >= case.policy.pool_well_below:
            return True
        if admitted(case.signals.load):
            argument.say(Stance.FOR, "waiting requests were started in the window: the line moves")
            return True
        argument.say(
            Stance.AGAINST, "no waiting request is known to have been started: the head of the line may be stuck"
        )
        return False

    def _keeps_pace(self, case: Case, argument: Argument) -> bool:
        """Whether each running request went on as fast as before: a queue behind a slowed service is a consequence."""
        found = pace(case.signals.load)
        if found is None:
            return False
        steady = found.slowdown < case.policy.shift_ratio
        argument.say(
            Stance.FOR if steady else Stance.AGAINST,
            f"a running request got {found.first:,.1f} tokens/s in the first half of the window and {found.last:,.1f} in the "
            "last",
            value=found.slowdown,
            unit="ratio",
            samples=found.samples,
        )
        return steady


def _computed(case: Case) -> float | None:
    """Tokens computed a second, of prompts and of outputs, over those in the baseline."""
    rates: list[float] = []
    for window in (case.incident, case.baseline):
        if window is None or not window.signals.length_seconds:
            return None
        counts = [window.signals.delta(name) for name in ("tokens_prefill", "tokens_decode")]
        rates.append(sum(count for count in counts if count is not None) / window.signals.length_seconds)
    return rates[0] / rates[1] if rates[1] > 0 else None


def _steps_moved(case: Case) -> bool | None:
    """Of an engine without inter-token latency: whether its decode steps take longer than in the baseline."""
    if case.baseline is None:
        return None
    now, before = (w.signals.histograms.get("step_decode") for w in (case.incident, case.baseline))
    if now is None or before is None or not now.mean or not before.mean:
        return None
    return now.mean / before.mean >= case.policy.shift_ratio
