"""The latency account of a drill held against what its clients saw: by how much tokens came later, and where that time went."""

from collections.abc import Mapping
from typing import NamedTuple

from diagnose.account import Account
from diagnose.diagnosis import Diagnosis
from runbooks.drills.service_levels import Levels, mean

PARTS: Mapping[str, tuple[str, ...]] = {
    "decode": ("decode_floor",),
    "prefill": ("prefill",),
    "host": ("schedule", "prepare", "postprocess", "idle"),
    "lock": ("lock_wait",),
}
"""Where a drill may put its time, and the parts of an account that make each up."""


class AccountCheck(NamedTuple):
    """Means over all gaps between tokens of the incident, less those of the quiet window. Seconds."""

    part: str
    clients: float
    """How much later each token came, by the clients' clocks."""
    said: float
    """How much of that the account puts into the part that the drill lengthens."""

    @property
    def error(self) -> float:
        """As a share of what the clients saw."""
        return abs(self.said - self.clients) / self.clients

    def text(self) -> str:
        return (
            f"tokens came {self.clients * 1e3:+.1f} ms later by the clients' clocks, the account puts {self.said * 1e3:+.1f} ms "
            f"into {self.part}"
        )


def check_account(part: str, diagnosis: Diagnosis, quiet: Levels, incident: Levels) -> AccountCheck | None:
    """None where the drill lengthens no part, tokens came no later, or a window has no account."""
    case = diagnosis.case
    now = case.incident.analysis.account_all()
    before = case.baseline.analysis.account_all() if case.baseline is not None else None
    later = mean(incident.gaps) - mean(quiet.gaps)
    if not part or now is None or before is None or later <= 0:
        return None
    return AccountCheck(part, later, _of(now, part) - _of(before, part))


def _of(account: Account, part: str) -> float:
    return sum(account.parts[name] for name in PARTS[part])
