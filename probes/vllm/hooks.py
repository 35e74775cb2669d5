"""Hooks on a server's own objects: what they raise is counted and never passed on, and they come off all at once."""

import functools
import logging
from collections.abc import Callable
from typing import Any, NamedTuple

# A child of vLLM's own logger: the line comes in its format, with the name of its process.
log = logging.getLogger("vllm.stallscope")

Hook = Callable[..., None]


class _Installed(NamedTuple):
    target: Any
    name: str
    was_own: bool
    """Whether the attribute was the target's own, and not inherited from its class."""
    original: Callable[..., Any]


class Hooks:
    """Every hook of one process.

    `before` gets the positional arguments of the call, `after` the result and then the arguments. The original is called
    exactly once, with what it was called with, and its result or exception is the caller's.
    """

    def __init__(self, max_errors: int = 5) -> None:
        self.errors = 0
        self.on_error: Callable[[], None] = lambda: None
        """Called after each error was counted."""
        self.off_reason: str | None = None
        """Why the hooks have been taken off; None while they are on."""
        self._max_errors = max_errors
        self._installed: list[_Installed] = []

    def add(
        self, target: Any, name: str, *, before: Hook | None = None, after: Hook | None = None, vital: bool = False
    ) -> None:
        """Hooks `target.name`; an instance is hooked alone, without its class. A `vital` one may not fail even once."""
        original = getattr(target, name)
        run = self._run

        @functools.wraps(original)
        def hooked(*args: Any, **kwargs: Any) -> Any:
            if before is not None:
                run(before, args, vital)
            result = original(*args, **kwargs)
            if after is not None:
                run(after, (result, *args), vital)
            return result

        self._installed.append(_Installed(target, name, name in vars(target), original))
        setattr(target, name, hooked)

    def _run(self, hook: Hook, args: tuple[Any, ...], vital: bool) -> None:
        if self.off_reason is not None:
            return
        try:
            hook(*args)
        except Exception as error:  # a fault of the probe must never reach the server
            self.errors += 1
            self.on_error()
            if self.errors == 1:
                log.warning("stallscope: a probe hook failed; the server is not affected", exc_info=error)
            if vital or self.errors >= self._max_errors:
                self.turn_off(f"{self.errors} of its hooks failed, the last one with {type(error).__name__}: {error}")

    def turn_off(self, reason: str) -> None:
        """Takes every hook off again: from here on the server runs its own code alone."""
        if self.off_reason is not None:
            return
        self.off_reason = reason
        log.error("stallscope: the probe is off until the next start: %s", reason)
        self.remove()

    def remove(self) -> None:
        """Idempotent. In reverse, so that a target that was hooked twice ends with its own code."""
        while self._installed:
            target, name, was_own, original = self._installed.pop()
            if was_own:
                setattr(target, name, original)
            else:
                delattr(target, name)
