"""Settings that the user states because nothing on the target does."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from diagnose.errors import SourceError
from diagnose.observation import Event, Span
from diagnose.signals import Gauge, Signals

STATABLE = ("max_batched_tokens", "max_sequences", "block_size", "pool_blocks", "pool_tokens")


@dataclass(frozen=True, slots=True)
class StatedSettings:
    values: Mapping[str, float]

    @property
    def origin(self) -> str:
        return "stated by you: " + ", ".join(f"{name} {value:g}" for name, value in self.values.items())

    def events(self, span: Span | None) -> Iterable[Event]:
        return ()

    def signals(self, span: Span | None) -> Signals:
        gauges = {name: Gauge((value,), "stated with --setting") for name, value in self.values.items()}
        return Signals("settings", None, 0, gauges=gauges)


def parse_settings(texts: Iterable[str]) -> StatedSettings | None:
    """`max_sequences=256` each. Raises SourceError that names what can be stated."""
    values: dict[str, float] = {}
    for text in texts:
        name, _, number = text.partition("=")
        if name not in STATABLE or not number.strip().isdecimal() or not int(number):
            raise SourceError(f"--setting {text!r}: write NAME=NUMBER with one of {', '.join(STATABLE)}")
        values[name] = float(number)
    return StatedSettings(values) if values else None
