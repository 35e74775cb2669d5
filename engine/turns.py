"""Who decodes when the budget is too small for everybody."""

from bisect import bisect_right
from collections.abc import Sequence

from engine.request import Request, arrival


class DecodeTurns:
    """Round robin over decodes in order of arrival: who was passed over goes first next time."""

    def __init__(self) -> None:
        self._somebody_waits = False
        self._last_in_turn = 0

    def select(self, decodes: Sequence[Request], budget: int) -> tuple[list[Request], list[Request]]:
        """The decodes that fit the budget, oldest first, and the rest."""
        if len(decodes) <= budget and not self._somebody_waits:
            return list(decodes), []
        turn = bisect_right(decodes, self._last_in_turn, key=arrival)
        in_turn = [*decodes[turn:], *decodes[:turn]]
        selected, deferred = in_turn[:budget], in_turn[budget:]
        for request in selected:
            request.deferral, request.deferred_steps = None, 0
        self._somebody_waits = bool(deferred)
        if selected:
            self._last_in_turn = selected[-1].sequence_number
        return sorted(selected, key=arrival), deferred
