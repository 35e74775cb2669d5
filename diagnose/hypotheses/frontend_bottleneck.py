from diagnose.case import Case
from diagnose.hypotheses.base import Hypothesis, command_host
from diagnose.units import percent, seconds
from diagnose.verdict import Argument, Judgement, Stance, Verdict
from probes.host_profile import ThreadUse
from probes.stack_patterns import Activity, Role


class FrontendBottleneck(Hypothesis):
    """The API server, tokenizer or detokenizer holds tokens or requests up, while the engine's own steps are fine.

    Symptom: clients see late tokens and late first tokens, and the engine's own figures look fine; one core is busy.
    Mechanism: requests pass one Python process, often one thread, before and after the engine: parsing, chat templates,
    tokenising, detokenising, serialising every chunk of every stream. At its limit it feeds and empties the engine too slowly,
    which then waits with work in sight. A callback that blocks its event loop does the same without a busy core.
    Refuted when: the front end takes tokens up soon after the engine hands them out, no frontend thread is on a core for much of
    the time, or the engine's loop hardly ever waits for input.
    Supported when: tokens lie for longer than a gap between the engine's hand-out and the front end, on a machine with cores to
    spare; or a frontend thread is busy nearly all of the time while the engine's loop waits for input.
    Proves nothing: a busy core (the engine's loop spins on some engines); many streams.
    Measure next: the delay of the front end, where the engine counts it; else the host probe on the server's machine, under the
    load that is late.
    Fix and its trade: more API or tokenizer processes (memory, and one more hop); fewer and larger stream chunks (burstier
    streams); templates and tokenising by the client.
    """

    name = "frontend_bottleneck"

    def judge(self, case: Case, argument: Argument) -> Judgement:
        handing_out = self._handing_out(case, argument)
        if handing_out is Verdict.SUPPORTED:
            return argument.conclude(Verdict.SUPPORTED, _share_of_lateness(case))
        policy, host = case.policy, case.signals.host
        frontends = [] if host is None else [t for t in host.of(Role.FRONTEND) if t.run_share is not None]
        if handing_out is Verdict.REFUTED and not frontends:
            return argument.conclude(Verdict.REFUTED)
        if host is None or not frontends:
            found = "" if host is None else " (no sampled stack is of a frontend this version knows)"
            argument.lacks(
                f"what the server's threads do{found}",
                "only the host shows a frontend at its limit: to the engine it looks like little load",
                command_host(case),
            )
            return argument.conclude(Verdict.UNDETERMINED)
        busiest = max(frontends, key=_busy)
        busy, source = _busy(busiest), f"host probe of process {host.pid}"
        argument.say(
            Stance.FOR if busy >= policy.frontend_busy_share else Stance.AGAINST,
            f"the busiest frontend thread, {busiest.name or busiest.tid}, is on a core or waits for one {percent(busy)} of the "
            f"time{_doing(busiest)}",
            value=busy,
            unit="share",
            source=source,
        )
        if busy < policy.frontend_free_share:
            return argument.conclude(Verdict.REFUTED)
        engines = [thread for thread in host.of(Role.ENGINE) if thread.activities]
        if not engines:
            argument.lacks(
                "the stacks of the engine's loop",
                "a busy frontend matters only while the engine waits for it",
                command_host(case),
            )
            return argument.conclude(Verdict.UNDETERMINED)
        starved = min(thread.doing(Activity.WAITING) for thread in engines)
        argument.say(
            Stance.FOR if starved >= policy.engine_starved_share else Stance.AGAINST,
            f"the engine's loop waits for input {percent(starved)} of the time",
            value=starved,
            unit="share",
            source=source,
        )
        if starved < policy.negligible_share:
            return argument.conclude(Verdict.REFUTED)
        if busy >= policy.frontend_busy_share and starved >= policy.engine_starved_share:
            return argument.conclude(Verdict.SUPPORTED)
        argument.lacks(
            "the host probe over a longer window under the full load",
            f"the frontend is busy {percent(busy)} of the time and the engine waits {percent(starved)}: neither little nor much",
            command_host(case),
        )
        return argument.conclude(Verdict.UNDETERMINED)

    def _handing_out(self, case: Case, argument: Argument) -> Verdict | None:
        """By how long tokens lie between the engine and the front end; None where the engine does not measure it."""
        policy, delay, gap = case.policy, case.signals.histograms.get("frontend_delay"), case.incident.mean_gap()
        if delay is None or delay.mean is None or not gap or delay.count < policy.min_frontend_samples:
            return None
        late = delay.mean >= policy.frontend_felt_seconds and delay.mean >= policy.frontend_delay_high * gap
        in_time = delay.mean < policy.frontend_unfelt_seconds or delay.mean < policy.frontend_delay_low * gap
        argument.say(
            Stance.FOR if late else Stance.AGAINST if in_time else Stance.CONTEXT,
            f"tokens lie {seconds(delay.mean)} between the engine's hand-out and the front end, on average: "
            f"{delay.mean / gap:.1f} of their gaps",
            value=delay.mean,
            unit="s",
            compared_with=f"a gap of {seconds(gap)}",
            source=delay.source,
            samples=round(delay.count),
        )
        if not late:
            return Verdict.REFUTED if in_time else Verdict.UNDETERMINED
        model = case.analysis.model
        if model is None or model.slowdown < policy.contended_slowdown:
            return Verdict.SUPPORTED
        argument.say(
            Stance.CONTEXT,
            f"the engine's own thread has a core {percent(1 / model.slowdown)} of the time: a front end without one is as late",
            value=1 / model.slowdown,
            unit="share",
            source=case.signals.steps_source,
        )
        return Verdict.UNDETERMINED


def _share_of_lateness(case: Case) -> float:
    """Of all by which tokens come late: what the front end adds to them, beside what is beyond the engine's floor."""
    delay, gap = case.signals.histograms["frontend_delay"].mean or 0.0, case.incident.mean_gap() or 0.0
    beyond = max(0.0, gap - (case.reference_floor() or gap))
    return delay / (delay + beyond)


def _busy(thread: ThreadUse) -> float:
    """On a core, or ready for one: a thread that is kept from a core is no less busy."""
    return (thread.run_share or 0.0) + (thread.delay_share or 0.0)


def _doing(thread: ThreadUse) -> str:
    """`: tokenising 61 %, serialising 20 %`, the three largest."""
    shares = sorted(thread.activities.items(), key=lambda item: -item[1])
    named = [f"{name} {percent(share)}" for name, share in shares if name is not Activity.WAITING and share >= 0.01]
    return f": {', '.join(named[:3])}" if named else ""
