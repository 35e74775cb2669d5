"""Acts on the admin surface of our engine: state before and after are known, so that each can be seen to have taken effect."""

from typing import ClassVar

from runbooks.errors import Refused
from runbooks.response.act_base import BaseAct, Effect, Intent, Site


class LowerLimit(BaseAct, frozen=True, kw_only=True):
    factor: float = 0.5
    floor: int = 1
    setting: ClassVar[str] = ""

    def problems(self) -> list[str]:
        found = [] if 0.1 <= self.factor <= 0.95 else [f"factor = {self.factor:g} must be 0.1 to 0.95"]
        found += [] if self.floor >= 1 else [f"floor = {self.floor} must be at least 1"]
        return super().problems() + found

    def prepare(self, site: Site) -> Intent:
        before = site.the_admin().get(self.setting)
        if not isinstance(before, int):
            raise Refused(f"{self.setting} of target {site.target} is {before!r}, not a number")
        after = max(self.floor, int(before * self.factor))
        if after >= before:
            raise Refused(f"{self.setting} is {before} already, and its floor here is {self.floor}")
        return {"text": f"{self.setting} {before} -> {after}", "before": before, "after": after}

    def look(self, site: Site, intent: Intent) -> Effect:
        found = site.the_admin().get(self.setting)
        if found == intent["after"]:
            return Effect.TOOK
        return Effect.DID_NOT if found == intent["before"] else Effect.CHANGED

    def apply(self, site: Site, intent: Intent) -> str:
        site.the_admin().set(self.setting, intent["after"])
        return f"{self.setting} is {intent['after']}"

    def undo(self, site: Site, intent: Intent) -> str:
        effect = self.look(site, intent)
        if effect is Effect.CHANGED:
            found = site.the_admin().get(self.setting)
            return f"{self.setting} is {found}: changed by somebody else since, and left as it is"
        if effect is Effect.TOOK:
            site.the_admin().set(self.setting, intent["before"])
        return f"{self.setting} is {intent['before']} again"


class LowerBudget(LowerLimit, frozen=True, kw_only=True, tag="lower_budget"):
    floor: int = 64
    setting: ClassVar[str] = "max_batched_tokens"


class CapSequences(LowerLimit, frozen=True, kw_only=True, tag="cap_sequences"):
    floor: int = 4
    setting: ClassVar[str] = "max_sequences"


class ResetPrefixCache(BaseAct, frozen=True, kw_only=True, tag="reset_prefix_cache"):
    reversible: ClassVar[bool] = False

    def prepare(self, site: Site) -> Intent:
        site.the_admin().state()
        return {"text": "forget all cached prefixes"}

    def look(self, site: Site, intent: Intent) -> Effect:
        return Effect.UNKNOWN

    def apply(self, site: Site, intent: Intent) -> str:
        site.the_admin().reset_prefix_cache()
        return "the prefix cache was reset"


class Drain(BaseAct, frozen=True, kw_only=True, tag="drain"):
    def prepare(self, site: Site) -> Intent:
        status = site.the_admin().get("status")
        if status != "ok":
            raise Refused(f"target {site.target} is {status}: there is nothing to drain")
        return {"text": "take no new requests"}

    def look(self, site: Site, intent: Intent) -> Effect:
        status = site.the_admin().get("status")
        return Effect.TOOK if status in ("draining", "drained") else Effect.DID_NOT

    def apply(self, site: Site, intent: Intent) -> str:
        return f"the target is {site.the_admin().drain()['status']}"

    def undo(self, site: Site, intent: Intent) -> str:
        return f"the target is {site.the_admin().resume()['status']} again"


class Resume(BaseAct, frozen=True, kw_only=True, tag="resume"):
    reversible: ClassVar[bool] = False

    def prepare(self, site: Site) -> Intent:
        status = site.the_admin().get("status")
        if status not in ("draining", "drained"):
            raise Refused(f"target {site.target} is {status}: it takes requests already")
        return {"text": "take new requests again"}

    def look(self, site: Site, intent: Intent) -> Effect:
        return Effect.TOOK if site.the_admin().get("status") == "ok" else Effect.DID_NOT

    def apply(self, site: Site, intent: Intent) -> str:
        return f"the target is {site.the_admin().resume()['status']}"


NEED_ADMIN = (LowerLimit, ResetPrefixCache, Drain, Resume)
