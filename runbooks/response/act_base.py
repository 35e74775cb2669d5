"""What an act is: prepared by looking, bounded, undone in time, and never repeated without a look whether it took effect."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, ClassVar, Literal

from msgspec import Struct

from diagnose.sources.clock import Clock
from diagnose.units import parse_duration
from runbooks.admin import AdminClient
from runbooks.errors import Refused

Intent = dict[str, Any]
"""What an act will do, in full, as the journal keeps it: enough to do it, to see whether it was done, and to undo it."""


class Effect(StrEnum):
    TOOK = "took"
    DID_NOT = "did_not"
    CHANGED = "changed"
    """Neither the state before nor the state after: somebody else was there."""
    UNKNOWN = "unknown"
    """Nothing on the target says. Such an act is done at most once."""


@dataclass(frozen=True, slots=True)
class Site:
    """Where an act happens."""

    target: str
    url: str
    admin: AdminClient | None
    commands: Mapping[str, list[str]]
    recordings: Path
    clock: Clock
    key: str
    """Names this act of this incident once and for all; receivers can use it to do nothing twice."""

    def the_admin(self) -> AdminClient:
        if self.admin is None:
            raise Refused(f"target {self.target} has no admin_token_file: its settings cannot be changed")
        return self.admin


class BaseAct(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="do"):
    causes: list[str]
    """Hypotheses that call for it."""
    policy: Literal["auto", "approve", "never"] = "never"
    """never: the act is planned and shown, and not done."""
    ttl: str = "15m"
    """After which it is undone, whatever happened."""
    cooldown: str = "1h"
    """Least time between two of it on one target."""
    approve_within: str = "30m"

    changes_target: ClassVar[bool] = True
    """False for acts that only look: they need no hard failure to be called for."""
    reversible: ClassVar[bool] = True

    @property
    def label(self) -> str:
        return str(self.__struct_config__.tag)

    @property
    def ttl_seconds(self) -> float:
        return parse_duration(self.ttl)

    @property
    def cooldown_seconds(self) -> float:
        return parse_duration(self.cooldown)

    @property
    def can_be_undone(self) -> bool:
        return self.reversible

    def problems(self) -> list[str]:
        try:
            ttl, cooldown, wait = self.ttl_seconds, self.cooldown_seconds, parse_duration(self.approve_within)
        except ValueError as error:
            return [str(error)]
        found = [] if 1 <= ttl <= 86_400 else ["ttl must be 1s to 24h"]
        found += [] if 1 <= cooldown <= 604_800 else ["cooldown must be 1s to 168h"]
        return found + ([] if 1 <= wait <= 86_400 else ["approve_within must be 1s to 24h"])

    def prepare(self, site: Site) -> Intent:
        """Only looks. Raises Refused or AdminError when it cannot or need not be done."""
        raise NotImplementedError

    def look(self, site: Site, intent: Intent) -> Effect:
        raise NotImplementedError

    def apply(self, site: Site, intent: Intent) -> str:
        """What it did, in a sentence. Raises Refused or AdminRefused with nothing changed, AdminError when that is not known."""
        raise NotImplementedError

    def undo(self, site: Site, intent: Intent) -> str:
        """As `apply`; may be called again, and changes nothing that somebody else has changed since."""
        raise NotImplementedError
