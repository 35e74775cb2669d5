"""What a pasted py-spy output says of the server's threads, in the words of evidence."""

from diagnose.case import Case
from diagnose.observation import SPIN_EVENT, STACK_EVENT
from diagnose.verdict import Argument, Stance

_MOST = 4


def say_stacks(case: Case, argument: Argument) -> None:
    for event in case.events:
        if event.kind == SPIN_EVENT:
            argument.say(
                Stance.AGAINST,
                f"{event.detail}: a core that spins in a wait is busy without work; what it waits for is elsewhere",
                source="py-spy",
            )
    for event in [event for event in case.events if event.kind == STACK_EVENT][:_MOST]:
        argument.say(Stance.CONTEXT, event.detail, source="py-spy")
