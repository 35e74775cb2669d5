"""Approval links: signed for one incident, good once, and only on this machine."""

import hmac
import os
from hashlib import sha256
from pathlib import Path

from runbooks.errors import ConfigError


class ApprovalLinks:
    """The key lies beside the journal, so that links outlive a restart."""

    def __init__(self, journal: Path, base_url: str) -> None:
        """Raises ConfigError when the key cannot be read or made."""
        self._base = base_url
        path = journal.with_name(journal.name + ".key")
        try:
            try:
                with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
                    file.write(os.urandom(32))
            except FileExistsError:
                pass
            self._key = path.read_bytes()
        except OSError as error:
            raise ConfigError(
                f"{path}: cannot be used as the key of approval links: {error.strerror or error}"
            ) from None
        if len(self._key) != 32:
            raise ConfigError(f"{path}: is no key of approval links; remove it, and a new one is made")

    def link(self, incident: int) -> str:
        return f"{self._base}/approve/{incident}/{self._sign(incident)}"

    def is_good(self, incident: int, signature: str) -> bool:
        return hmac.compare_digest(self._sign(incident).encode(), signature.encode())

    def _sign(self, incident: int) -> str:
        return hmac.new(self._key, f"approve {incident}".encode(), sha256).hexdigest()
