"""Option types that several commands share."""

import time
from datetime import datetime
from typing import Any

import click

from diagnose.errors import SourceError
from diagnose.slo import Objective, parse_slo
from diagnose.units import parse_duration


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


class Moment(click.ParamType[float]):
    """`2026-11-30 04:11`, `2026-11-30T04:11:14Z`, or `30m` for so long ago -> Unix seconds. Without a zone it is local time."""

    name = "time"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        if isinstance(value, float):
            return value
        try:
            return time.time() - parse_duration(str(value))
        except ValueError:
            pass
        try:
            return datetime.fromisoformat(str(value)).timestamp()
        except ValueError:
            self.fail(f"{value!r} is no time; write 2026-11-30T04:11 or, for so long ago, 30m", param, ctx)


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


def is_url(source: str) -> bool:
    return source.startswith(("http://", "https://"))
