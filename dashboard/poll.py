"""A live feed's work, in its own thread: connect, scrape, digest, post, wait; back off while the target fails."""

import time

from dashboard.feed import Body, Connecting, LiveFeed
from dashboard.model.digest import Digest
from dashboard.model.requests import Requests, parse_requests
from dashboard.model.target import Refusal
from diagnose.errors import ErrorAnswer, NotMetrics, TargetError
from diagnose.sources.clock import SystemClock
from diagnose.sources.http import Endpoint
from diagnose.sources.live import Scraper

MAX_BACKOFF_SECONDS = 10.0
_START_AGAIN_AFTER = 3
"""Unreadable answers in a row after which the target may have become another engine."""


def next_wait(interval: float, took: float, failures: int) -> float:
    """Seconds to sleep after a scrape: to the next tick of the interval, doubled per failure, never under a third of it.

    A scrape that took longer than an interval is not made up for by a burst.
    """
    period = min(max(interval, MAX_BACKOFF_SECONDS), interval * 2.0 ** min(failures, 8))
    return max(period / 3, period - took % period if took > period else period - took)


class Poll:
    """One per feed. A request that hangs ends after the endpoint's timeout; the interface never waits for it."""

    def __init__(self, feed: LiveFeed) -> None:
        self._feed = feed
        self._endpoint = Endpoint(feed.url)
        self._scraper = Scraper(self._endpoint, SystemClock())
        self._digest: Digest | None = None

    def run(self) -> None:
        feed, failures, unreadable = self._feed, 0, 0
        while not feed.stopping.is_set():
            started = time.monotonic()
            if self._digest is None:
                failed = not self._first()
            else:
                failed, readable = self._next(self._digest)
                unreadable = 0 if readable else unreadable + 1
                if unreadable >= _START_AGAIN_AFTER:
                    self._digest, unreadable = None, 0
            failures = failures + 1 if failed else 0
            feed.stopping.wait(next_wait(feed.interval, time.monotonic() - started, failures))

    def _post(self, body: Body) -> None:
        self._feed.keeper.post(self._feed.number, body)

    def _first(self) -> bool:
        self._post(Connecting(time.time()))
        try:
            reading = self._scraper.start()
        except TargetError as error:
            answered = isinstance(error, ErrorAnswer | NotMetrics)
            self._post(Refusal(time.time(), str(error), answered))
            return False
        assert reading.page is not None
        self._digest = Digest(self._scraper.dialects)
        self._post(Connecting(time.time(), self._digest.engine, self._endpoint.url))
        self._feed.keeper.keep(reading.entries)
        self._post(self._digest.scraped(reading.entries[0].unix, reading.page, None, ()))
        return True

    def _next(self, digest: Digest) -> tuple[bool, bool]:
        """Whether the scrape failed, and whether its answer was of the target's kind."""
        reading = self._scraper.read()
        self._feed.keeper.keep(reading.entries)
        if reading.page is None:
            problem = reading.problem
            assert problem is not None
            self._post(digest.failed(problem.unix, problem.body, unreachable=problem.event == "unreachable"))
            return True, problem.event != "bad_answer"
        header, records = (None, []) if reading.steps is None else (reading.steps.header, reading.steps.records)
        self._post(digest.scraped(reading.entries[0].unix, reading.page, header, records))
        if self._feed.wants_requests:
            self._post(self._requests(digest))
        return False, True

    def _requests(self, digest: Digest) -> Requests:
        if not digest.lists_requests:
            return Requests(time.time(), problem=f"a {digest.engine} engine lists no requests over HTTP")
        try:
            return parse_requests(time.time(), self._endpoint.get("/debug/requests?limit=500"))
        except TargetError as error:
            return Requests(time.time(), problem=str(error))
