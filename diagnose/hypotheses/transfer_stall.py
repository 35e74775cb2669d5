from diagnose.case import Case
from diagnose.disaggregation import still_shared
from diagnose.hypotheses.base import Hypothesis, command_live
from diagnose.units import percent, seconds
from diagnose.verdict import Argument, Judgement, Stance, Verdict


class TransferStall(Hypothesis):
    """KV blocks that another process computed arrive late, or not at all.

    Symptom: the first token is late, or requests wait, while both the prefill and the decode instance have room.
    Mechanism: with prefill and decode in separate processes, a request decodes only after its blocks were moved. A slow link,
    a full buffer or a lost peer holds it, and the blocks it has reserved.
    Refuted when: nothing was transferred late: transfers are a small share of the time to first token and none failed.
    Supported when: transfers dominate the time to first token, or they failed while requests waited for them; a log that
    tells of requests that waited for a transfer until a deadline says both.
    Proves nothing: bytes transferred; a busy link between steps that overlaps with prefill.
    Measure next: transfer seconds per request on both ends; blocks held by requests that wait for a transfer; then what the
    instances still share: switch contention, NIC queueing, the memory bus.
    Fix and its trade: stream blocks per finished chunk (more messages), a nearer peer, or prefill on the decode instance for
    short prompts (stalls its streams a little). No link speed is enough or too little by itself: `stallscope disaggregation`
    asks for what decides.
    """

    name = "transfer_stall"

    def judge(self, case: Case, argument: Argument) -> Judgement:
        policy, signals = case.policy, case.signals
        transfer, failures = signals.histograms.get("kv_transfer"), signals.delta("transfer_failures")
        waiting = signals.peak("waiting_transfer")
        if "disaggregation" in signals.features_absent:
            argument.say(Stance.CONTEXT, "this engine computes prefill and decode in one process")
            return argument.conclude(Verdict.NOT_APPLICABLE)
        if transfer is None and failures is None and waiting is None:
            argument.lacks(
                "KV transfer seconds, failures, and requests that wait for a transfer",
                "a late transfer looks like a queue from outside",
                f"curl -s {case.address}/metrics | grep -iE 'transfer|nixl|disagg'   # none where nothing is disaggregated",
            )
            return argument.conclude(Verdict.UNDETERMINED)
        argument.say(
            Stance.CONTEXT,
            f"separate instances still share what no transfer time shows: {', '.join(map(str, still_shared(signals)))}",
        )
        share = _share(case)
        dominates = share is not None and share >= policy.queue_dominates
        failed = self._failures(case, argument, otherwise=Stance.CONTEXT if dominates else Stance.AGAINST)
        self._posting(case, argument)
        if share is not None:
            self._say_share(case, argument, share, otherwise=Stance.CONTEXT if failed and waiting else Stance.AGAINST)
        if dominates:
            return argument.conclude(Verdict.SUPPORTED)
        if failed and (waiting or self._timed_out(case, argument)):
            return argument.conclude(Verdict.SUPPORTED)
        if not failed and not waiting and (share is None or share < policy.queue_small):
            return argument.conclude(Verdict.REFUTED)
        argument.lacks(
            "transfer seconds beside the time to first token over a longer window",
            "transfers are neither a small nor the larger part of what is known",
            command_live(case, "--window 120s"),
        )
        return argument.conclude(Verdict.UNDETERMINED)

    def _failures(self, case: Case, argument: Argument, *, otherwise: Stance) -> bool:
        """Whether transfers failed. That none did says nothing against slow ones."""
        failures, waiting = case.signals.counters.get("transfer_failures"), case.signals.gauges.get("waiting_transfer")
        if failures is not None:
            argument.say(
                Stance.FOR if failures.delta else otherwise,
                f"{failures.delta:,.0f} transfers failed in the window",
                value=failures.delta,
                unit="transfers",
                source=failures.source,
            )
        if waiting is not None:
            argument.say(
                Stance.FOR if waiting.peak else otherwise,
                f"at most {waiting.peak:,.0f} requests waited for a transfer",
                value=waiting.peak,
                unit="requests",
                source=waiting.source,
                samples=len(waiting.values),
            )
        return failures is not None and failures.delta > 0

    def _posting(self, case: Case, argument: Argument) -> None:
        """What of a transfer is handing it to the network card piece by piece: no faster network shortens that."""
        transfer, post = (case.signals.histograms.get(name) for name in ("kv_transfer", "kv_transfer_post"))
        if transfer is None or post is None or not transfer.sum or not post.count:
            return
        share = min(1.0, post.sum / transfer.sum)
        argument.say(
            Stance.CONTEXT,
            f"{percent(share)} of the transfer time is posting descriptors"
            + (
                ": larger blocks or merged ones shorten it, a faster network does not"
                if share >= case.policy.dominant_share
                else ""
            ),
            value=share,
            unit="share",
            source=post.source,
            samples=round(post.count),
        )

    def _timed_out(self, case: Case, argument: Argument) -> bool:
        """Whether a log tells of deadlines that passed while a request waited for its blocks, and on which side."""
        told = [event for event in case.events if event.kind == "transfer_timeout"]
        if not told:
            return False
        states = [side for text, side in _STATES.items() if any(text in event.detail for event in told)]
        argument.say(
            Stance.FOR,
            f"{len(told)} requests waited for a transfer until a deadline"
            + (f": {'; '.join(states)}" if states else "")
            + f"; the first: {told[0].detail}",
            value=len(told),
            unit="requests",
            source="log",
        )
        argument.say(
            Stance.CONTEXT,
            "a longer deadline makes them wait longer: whether the other side is overloaded or the network fails, its own log "
            "and free slots at that time say",
        )
        return True

    def _say_share(self, case: Case, argument: Argument, share: float, *, otherwise: Stance) -> None:
        """That transfers are quick on average says nothing against those that failed."""
        transfer, ttft = (case.signals.histograms[name] for name in _TIMES)
        argument.say(
            Stance.FOR if share >= case.policy.queue_dominates else otherwise,
            f"a transfer takes {seconds(transfer.mean or 0.0)} of {seconds(ttft.mean or 0.0)} to the first token "
            f"({percent(share)}, means)",
            value=share,
            unit="share",
            source=transfer.source,
            samples=round(transfer.count),
        )


_TIMES = ("kv_transfer", "time_to_first_token")


def _share(case: Case) -> float | None:
    """Mean transfer time over the mean time to first token; None when one of them has no sample."""
    transfer, ttft = (case.signals.histograms.get(name) for name in _TIMES)
    if transfer is None or ttft is None or not transfer.mean or not ttft.mean:
        return None
    return min(1.0, transfer.mean / ttft.mean)


_STATES = {
    "KVPoll.WaitingForInput": "the decode side waited for data",
    "KVPoll.Bootstrapping": "the prefill side waited for the decode side",
    "expired KV blocks": "the prefill side held blocks that no decode side came for",
}
"""Of SGLang and vLLM: what a state or a message says of who waited."""
