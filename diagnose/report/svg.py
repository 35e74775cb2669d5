"""A few SVG primitives: a plot area with round ticks, bars as one path, legends. Coordinates are rounded to a tenth."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from math import ceil, floor, log10

from diagnose.report.markup import Markup, element, join

WIDTH = 720


@dataclass(frozen=True, slots=True)
class Area:
    """A plot area. Values grow to the right and upwards from 0."""

    x_max: float
    y_max: float
    height: float = 230
    left: float = 62
    right: float = 14
    top: float = 14
    bottom: float = 40
    bend: Callable[[float], float] = float
    """Applied to values of y: another scale than the linear one."""

    def x(self, value: float) -> float:
        return self.left + (WIDTH - self.left - self.right) * value / self.x_max

    def y(self, value: float) -> float:
        inner = self.height - self.top - self.bottom
        return self.top + inner * (1 - self.bend(value) / self.bend(self.y_max))

    @property
    def floor(self) -> float:
        return self.height - self.bottom


def number(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0")


def ticks(top: float, about: int = 5) -> list[float]:
    """Round values from 0 up to `top`, roughly `about` of them."""
    if top <= 0:
        return [0.0]
    raw = top / about
    size = 10.0 ** floor(log10(raw))
    step = next(size * factor for factor in (1, 2, 5, 10) if size * factor >= raw)
    return [step * index for index in range(floor(top / step + 1e-9) + 1)]


def round_up(top: float) -> float:
    """The end of an axis that holds `top`: the next tick."""
    if top <= 0:
        return 1.0
    step = ticks(top)[1] if len(ticks(top)) > 1 else top
    return step * ceil(top / step - 1e-9)


def label(x: float, y: float, content: str, *, anchor: str = "start", class_: str | None = None) -> Markup:
    return element("text", content, x=number(x), y=number(y), text_anchor=anchor, class_=class_)


def line(x1: float, y1: float, x2: float, y2: float, class_: str) -> Markup:
    return element("line", x1=number(x1), y1=number(y1), x2=number(x2), y2=number(y2), class_=class_)


def rows(area: Area, values: Sequence[float], text: Callable[[float], str]) -> Markup:
    """Horizontal grid lines with their values."""
    return join(
        [
            mark
            for value in values
            for mark in (
                line(area.left, area.y(value), WIDTH - area.right, area.y(value), "grid"),
                label(area.left - 6, area.y(value) + 4, text(value), anchor="end"),
            )
        ]
    )


def columns(area: Area, values: Iterable[tuple[float, str]], name: str) -> Markup:
    """Values along the bottom, and the axis' name."""
    marks = [label(area.x(value), area.floor + 16, content, anchor="middle") for value, content in values]
    centre = (area.left + WIDTH - area.right) / 2
    return join([*marks, label(centre, area.height - 6, name, anchor="middle", class_="axis")])


def bars(boxes: Iterable[tuple[float, float, float, float]], class_: str) -> Markup:
    """Many bars as one path: (left, top, width, bottom) each, in user units."""
    path = "".join(
        f"M{number(x)} {number(bottom)}V{number(y)}h{number(width)}V{number(bottom)}z" for x, y, width, bottom in boxes
    )
    return element("path", d=path, class_=class_) if path else Markup("")


def band(points: Sequence[tuple[float, float, float]], class_: str) -> Markup:
    """The area between two lines: (x, lower y, upper y) in user units, as steps that hold until the next point."""
    if not points:
        return Markup("")
    upper = "".join(f"L{number(x)} {number(high)}" for x, _, high in points)[1:]
    lower = "".join(f"L{number(x)} {number(low)}" for x, low, _ in reversed(points))
    return element("path", d=f"M{upper}{lower}z", class_=class_)


def legend(entries: Sequence[tuple[str, str]], *, right: float = WIDTH - 14, y: float = 10) -> Markup:
    """`(class, text)` from right to left along the top."""
    marks: list[Markup] = []
    for class_, content in reversed(entries):
        right -= 6.6 * len(content)
        marks.append(label(right, y, content))
        right -= 14
        marks.append(element("rect", x=number(right), y=number(y - 9), width="10", height="10", class_=class_))
        right -= 14
    return join(marks)


def picture(identity: str, title: str, description: str, height: float, *content: Markup) -> Markup:
    """The whole image, named and described for who cannot see it."""
    return element(
        "svg",
        element("title", title, id=f"{identity}-title"),
        element("desc", description, id=f"{identity}-desc"),
        *content,
        viewBox=f"0 0 {WIDTH} {number(height)}",
        role="img",
        aria_labelledby=f"{identity}-title {identity}-desc",
        xmlns="http://www.w3.org/2000/svg",
    )
