"""Client of the admin surface of our engine: a small closed set of verbs, each answering with the new state."""

from collections.abc import Mapping
from typing import Any

import urllib3
from urllib3.exceptions import HTTPError

from runbooks.errors import AdminError, AdminRefused

VERBS: Mapping[str, tuple[str, str]] = {
    "max_batched_tokens": ("limits", "max_batched_tokens"),
    "max_sequences": ("limits", "max_sequences"),
    "prefix_cache": ("prefix_cache", "enabled"),
}
"""Setting -> admin verb and the field of its body."""
_STATE_NAMES = {"prefix_cache": "prefix_cache_enabled"}


class AdminClient:
    """Every call raises AdminError when the target does not answer, and AdminRefused when it says no (4xx)."""

    def __init__(self, url: str, token: str, timeout_seconds: float = 30.0) -> None:
        self.url = url.rstrip("/")
        self._token, self._timeout = token, timeout_seconds

    def state(self) -> dict[str, Any]:
        return self._call("GET", "state", None)

    def get(self, setting: str) -> object:
        return self.state()[_STATE_NAMES.get(setting, setting)]

    def set(self, setting: str, value: object) -> dict[str, Any]:
        """The new state; an answer that holds another value is an AdminError too."""
        verb, field = VERBS[setting]
        state = self._call("POST", verb, {field: value})
        found = state.get(_STATE_NAMES.get(setting, setting))
        if found != value:
            raise AdminError(f"{self.url}: {setting} is {found} after it was set to {value}")
        return state

    def reset_prefix_cache(self) -> dict[str, Any]:
        return self._call("POST", "prefix_cache/reset", {})

    def drain(self) -> dict[str, Any]:
        return self._call("POST", "drain", {})

    def resume(self) -> dict[str, Any]:
        return self._call("POST", "resume", {})

    def _call(self, method: str, verb: str, body: dict[str, object] | None) -> dict[str, Any]:
        url = f"{self.url}/admin/{verb}"
        headers = {"Authorization": f"Bearer {self._token}"}
        try:
            answer = urllib3.request(method, url, json=body, headers=headers, timeout=self._timeout, retries=False)
        except HTTPError as error:
            reason = "connection refused: nothing listens there" if "refused" in str(error) else type(error).__name__
            raise AdminError(f"{url}: does not answer ({reason})") from None
        if answer.status != 200:
            hint = "; is the engine served with --admin-token-file?" if answer.status in (401, 404) else ""
            text = f"{url}: answered HTTP {answer.status} {answer.data[:150].decode(errors='replace')}{hint}"
            raise AdminRefused(text) if 400 <= answer.status < 500 else AdminError(text)
        try:
            state = answer.json()
        except ValueError:
            state = None
        if not isinstance(state, dict):
            raise AdminError(f"{url}: its answer is not the state of an engine")
        return state
