"""The waiting queue, first come, first served, and how long and why each request in it was passed over."""

from collections import Counter, deque
from collections.abc import Iterator
from itertools import islice

from engine.request import Request
from engine.step import Deferral, ScheduledStep
from probes.records import DeferralReason

NOT_CONSIDERED = "not_considered_yet"
"""Label of requests that arrived after the latest step was scheduled."""

LISTED_WAITING = 16
"""Waiting requests named in a step's `deferred`; the queue behind them shares the reason and is only counted."""


class WaitingQueue:
    """Oldest first. Whatever holds back the head holds back all behind it, so one reason is kept for the whole queue.

    Only the first LISTED_WAITING requests are written to in a step, so that its cost does not grow with the queue;
    `refresh` brings the others up to date.
    """

    def __init__(self) -> None:
        self._requests: deque[Request] = deque()
        self._step_count = 0
        self._reason = NOT_CONSIDERED

    def __len__(self) -> int:
        return len(self._requests)

    def __iter__(self) -> Iterator[Request]:
        return iter(self._requests)

    @property
    def head(self) -> Request:
        return self._requests[0]

    def begin_step(self) -> None:
        self._step_count += 1
        self._reason = NOT_CONSIDERED

    def append(self, request: Request) -> None:
        request.queued_step = self._step_count
        self._requests.append(request)

    def put_back(self, request: Request) -> None:
        """A preempted request goes first, and the step that preempted it is the first that passed it over."""
        request.queued_step = self._step_count - 1
        self._requests.appendleft(request)

    def push_front(self, request: Request) -> None:
        """Between two steps: it is older than all that wait, and no step has passed it over yet."""
        request.queued_step = self._step_count
        self._requests.appendleft(request)

    def pop(self) -> Request:
        return self._requests.popleft()

    def remove(self, request: Request) -> None:
        self._requests.remove(request)

    def replace(self, request: Request, heir: Request) -> None:
        """`heir` gets the place in the queue, and the time spent there."""
        heir.queued_step = request.queued_step
        self._requests[self._requests.index(request)] = heir

    def defer(self, step: ScheduledStep, reason: DeferralReason, available: int) -> None:
        """No request of the queue starts in this step, or none any more."""
        self._reason = reason
        for request in islice(self._requests, LISTED_WAITING):
            self._mark(request)
            step.deferred.append(Deferral(request, reason, available))

    def by_reason(self) -> dict[str, int]:
        unseen = 0
        for request in reversed(self._requests):
            if request.queued_step != self._step_count:
                break
            unseen += 1
        counts = Counter({self._reason: len(self._requests) - unseen})
        counts[NOT_CONSIDERED] += unseen
        return {reason: count for reason, count in counts.items() if count}

    def refresh(self) -> None:
        for request in self._requests:
            if request.queued_step != self._step_count:
                self._mark(request)

    def _mark(self, request: Request) -> None:
        request.deferral = self._reason
        request.deferred_steps = self._step_count - request.queued_step
