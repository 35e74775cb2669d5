"""Option types that several commands share."""

import time
from datetime import datetime
from typing import TYPE_CHECKING, Any

import click

from diagnose.errors import SourceError
from diagnose.hardware import Devices, parse_devices
from diagnose.slo import Objective, Reported, parse_reported, parse_slo
from diagnose.units import parse_duration

if TYPE_CHECKING:
    from diagnose.observation import When


class Duration(click.ParamType[float]):
    """`20s`, `500ms`, `2m` -> seconds, above zero."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        if isinstance(value, float):
            return value
        try:
            seconds = parse_duration(str(value))
        except ValueError as error:
            self.fail(str(error), param, ctx)
        if seconds <= 0:
            self.fail(f"{value!r} must be above zero", param, ctx)
        return seconds


class Moment(click.ParamType["When"]):
    """`2m`: so long after the start of what is read. `2026-11-30T04:11`: that time, local unless it states a zone."""

    name = "time"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> "When":
        from diagnose.observation import When  # brings all that reads pages

        if isinstance(value, When):
            return value
        try:
            return When(parse_duration(str(value)), is_unix=False)
        except ValueError:
            pass
        try:
            return When(datetime.fromisoformat(str(value)).timestamp(), is_unix=True)
        except ValueError:
            self.fail(f"{value!r} is no time; write 2m for so long after the start, or 2026-11-30T04:11", param, ctx)


class PastTime(click.ParamType[float]):
    """`2h`: so long ago. `2026-11-30T04:11`: that time, local unless it states a zone. In unix seconds."""

    name = "time"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        if isinstance(value, float):
            return value
        when = Moment().convert(value, param, ctx)
        return when.seconds if when.is_unix else time.time() - when.seconds


class Slo(click.ParamType[tuple[Objective, ...]]):
    """`itl_p99=200ms,ttft_p95=2s` -> objectives."""

    name = "slo"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[Objective, ...]:
        if isinstance(value, tuple):
            return value
        try:
            return parse_slo(str(value))
        except SourceError as error:
            self.fail(str(error), param, ctx)


class ReportedLatency(click.ParamType[tuple[Reported, ...]]):
    """`itl_p99=400ms` -> what clients saw."""

    name = "reported"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[Reported, ...]:
        if isinstance(value, tuple):
            return value
        try:
            return parse_reported(str(value))
        except SourceError as error:
            self.fail(str(error), param, ctx)


class DeviceName(click.ParamType[Devices]):
    """`4x NVIDIA H100 80GB HBM3` -> datasheet ceilings."""

    name = "device"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Devices:
        if isinstance(value, Devices):
            return value
        try:
            return parse_devices(str(value))
        except SourceError as error:
            self.fail(str(error), param, ctx)


class Pid(click.ParamType[int]):
    """A process on this machine."""

    name = "pid"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if not str(value).isdecimal() or int(value) == 0:
            self.fail(f"{value!r} is not a process id", param, ctx)
        return int(value)


def is_url(source: str) -> bool:
    return source.startswith(("http://", "https://"))
