from diagnose.case import Case
from diagnose.hypotheses.base import Hypothesis, command_for, command_live
from diagnose.hypotheses.pool import occupancy
from diagnose.load import admitted
from diagnose.units import percent
from diagnose.verdict import Argument, Judgement, Stance, Verdict


class AdmissionStall(Hypothesis):
    """Requests wait although hardly anything runs and the pool is free: the head of the line cannot be served.

    Symptom: running 0 or 1, waiting above 0, pool nearly empty, nothing moves; new requests pile up behind.
    Mechanism: the first waiting request needs what will never be there (more blocks than the pool, an adapter or slot, a transfer
    that was stranded), and first come, first served lets nobody pass.
    Refuted when: nothing waits throughout, or running requests fill the server, or the pool is what is short.
    Supported when: requests wait at every scrape, at most one runs, the pool has room, and none was started. In a log, where
    starts are not counted: nothing runs at any line, or the pool is smaller than one request may be.
    Proves nothing: a waiting request at one scrape.
    Measure next: what the first waiting request is and what it asked for; waiting requests by reason.
    Fix and its trade: abort the head of the line, reject at admission what can never fit.
    """

    name = "admission_stall"

    def judge(self, case: Case, argument: Argument) -> Judgement:
        signals = case.signals
        waiting, running = signals.gauges.get("waiting"), signals.gauges.get("running")
        if waiting is None or running is None:
            argument.lacks("running and waiting requests", "the stall is waiting beside idleness", command_live(case))
            return argument.conclude(Verdict.UNDETERMINED)
        if min(waiting.values) == 0:
            argument.say(
                Stance.AGAINST, "no request waited at some scrape: the line moves", value=0, source=waiting.source
            )
            if len(waiting.values) >= case.policy.min_load_lines:
                return argument.conclude(Verdict.REFUTED)
            argument.lacks("a second scrape", "one scrape is a moment", command_live(case))
            return argument.conclude(Verdict.UNDETERMINED)
        argument.say(
            Stance.FOR,
            f"at least {min(waiting.values):.0f} requests waited at every scrape",
            value=min(waiting.values),
            unit="requests",
            source=waiting.source,
            samples=len(waiting.values),
        )
        few = running.peak <= 1
        argument.say(
            Stance.FOR if few else Stance.AGAINST,
            f"at most {running.peak:.0f} ran",
            value=running.peak,
            unit="requests",
            source=running.source,
        )
        started = signals.histograms.get("queue_time")
        if started is not None and started.count:
            argument.say(
                Stance.AGAINST, f"{started.count:.0f} requests were started in the window", value=started.count
            )
        if not few or (started is not None and started.count):
            return argument.conclude(Verdict.REFUTED)
        return self._judge_stuck(case, argument, never_started=started is not None)

    def _judge_stuck(self, case: Case, argument: Argument, *, never_started: bool) -> Judgement:
        """Requests wait, and at most one runs."""
        signals = case.signals
        pool, low = occupancy(signals), False
        if pool is not None:
            share = pool.active_peak / pool.total
            argument.say(
                Stance.FOR if share < case.policy.pool_well_below else Stance.AGAINST,
                f"active blocks peaked at {percent(share)} of the pool",
                value=share,
                unit="share",
                source=pool.source,
            )
            if share >= case.policy.pool_well_below:
                return argument.conclude(Verdict.REFUTED)
            low = share < case.policy.pool_low
        oversized = self._may_never_fit(case, argument) and low
        lines = len(signals.gauges["waiting"].values)
        still = admitted(signals.load) is False and lines >= case.policy.min_flat_lines
        if still:
            argument.say(Stance.FOR, f"no prompt was computed in {lines} lines: the line does not move")
        if pool is not None and (never_started or (still and (oversized or signals.peak("running") == 0))):
            return argument.conclude(Verdict.SUPPORTED)
        if pool is None or not signals.load:
            argument.lacks(
                "the block buckets and queue times",
                "a full pool or a slow queue would explain the wait",
                command_live(case),
            )
        else:
            argument.lacks(
                "the configured cap of sequences and of adapters, the pool's size, and how long the first waiting prompt is",
                "one slot that is taken, an adapter that is not loaded and a prompt that does not fit look the same from outside",
                command_for(case, "limits", command_live(case)),
            )
        return argument.conclude(Verdict.UNDETERMINED)

    def _may_never_fit(self, case: Case, argument: Argument) -> bool:
        """Whether one request may be larger than the whole pool: then it is accepted, and never admitted."""
        signals = case.signals
        blocks, size = signals.last("pool_blocks"), signals.last("block_size") or signals.number("block_size")
        tokens = signals.last("pool_tokens") or (blocks * size if blocks and size else None)
        longest = signals.number("max_model_len")
        if tokens is None or longest is None or longest <= tokens:
            return False
        argument.say(
            Stance.FOR,
            f"the pool holds {tokens:,.0f} tokens and one request may have {longest:,.0f}: a longer one than the pool is "
            "accepted and can never be admitted",
            value=tokens / longest,
            unit="ratio",
        )
        return True
