from diagnose.case import Case
from diagnose.hypotheses.base import Hypothesis, command_host
from diagnose.units import percent
from diagnose.verdict import Argument, Judgement, Stance, Verdict
from probes.host_profile import ThreadUse
from probes.stack_patterns import Activity, Role


class FrontendBottleneck(Hypothesis):
    """The API server, tokenizer or detokenizer is busy while the engine's loop waits for it.

    Symptom: clients see late tokens and late first tokens, and the engine's own figures look fine; one core is busy.
    Mechanism: requests pass one Python process, often one thread, before and after the engine: parsing, chat templates,
    tokenising, detokenising, serialising every chunk of every stream. At its limit it feeds and empties the engine too slowly,
    which then waits with work in sight.
    Refuted when: no frontend thread is on a core for much of the time, or the engine's loop hardly ever waits for input.
    Supported when: a frontend thread is busy nearly all of the time while the engine's loop waits for input.
    Proves nothing: a busy core (the engine's loop spins on some engines); many streams.
    Measure next: the host probe on the server's machine, under the load that is late.
    Fix and its trade: more API or tokenizer processes (memory, and one more hop); fewer and larger stream chunks (burstier
    streams); templates and tokenising by the client.
    """

    name = "frontend_bottleneck"

    def judge(self, case: Case, argument: Argument) -> Judgement:
        policy, host = case.policy, case.signals.host
        frontends = [] if host is None else [t for t in host.of(Role.FRONTEND) if t.run_share is not None]
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


def _busy(thread: ThreadUse) -> float:
    """On a core, or ready for one: a thread that is kept from a core is no less busy."""
    return (thread.run_share or 0.0) + (thread.delay_share or 0.0)


def _doing(thread: ThreadUse) -> str:
    """`: tokenising 61 %, serialising 20 %`, the three largest."""
    shares = sorted(thread.activities.items(), key=lambda item: -item[1])
    named = [f"{name} {percent(share)}" for name, share in shares if name is not Activity.WAITING and share >= 0.01]
    return f": {', '.join(named[:3])}" if named else ""
