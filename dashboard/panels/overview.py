"""The first page: latency, load, pool, and the diagnosis. At 80x24 the verdict and its five facts are on screen."""

from dashboard.draw.chart import AXIS_WIDTH
from dashboard.draw.spans import Line, Span, beside, clip, split_width
from dashboard.model.view import View
from dashboard.panels import plots
from dashboard.panels.chrome import problem_lines
from dashboard.panels.diagnosis import ANSWER_LINES, account, answer, answer_lines, marks_line, verdict_list
from dashboard.panels.pool import pool_lines, pool_section


def draw(view: View, width: int, height: int) -> list[Line]:
    notices: list[Line] = [clip([Span(f" {text}", "bad_strong")], width) for text in problem_lines(view)]
    marks = marks_line(view.target)
    notices += [clip(marks, width)] if marks else []
    room = height - len(notices)
    body = _small(view, width, room) if room < 30 or width < 100 else _large(view, width, room)
    return [*notices, *body]


def _small(view: View, width: int, height: int) -> list[Line]:
    """Two charts, the load in two lines, the pool in two, then the diagnosis."""
    answer_lines = min(max(ANSWER_LINES, height // 2), height)
    left = height - answer_lines
    pool = pool_lines(view, width) if left >= 3 else []
    load = [clip([Span(f" {plots.queue_text(view)}")], width)] if left >= 1 else []
    if left >= 9:
        load.append(clip([Span(f" tokens/s  {_rates(view)}")], width))
    charts = left - len(pool) - len(load)
    lines: list[Line] = []
    if charts >= 3:
        columns = split_width(width, (1, 1))
        lines = beside(
            [
                (plots.latency(view, "itl", "ITL", columns[0], charts, axis=charts >= 5), columns[0]),
                (plots.latency(view, "ttft", "TTFT", columns[1], charts, axis=charts >= 5), columns[1]),
            ],
            charts,
        )
    else:
        answer_lines += charts
    return [*lines, *load, *pool, *answer(view, width, answer_lines)]


def _rates(view: View) -> str:
    rates = [(name, view.target.history.at(f"{name}_rate", view.at, within=15)) for name, _ in plots.TOKEN_PARTS]
    cached = view.target.history.at("cached_rate", view.at, within=15)
    shown = [f"{name} {rate:.1f}" for name, rate in [*rates, ("cached", cached)] if rate is not None]
    return "  ".join(shown) or "not observed"


def _large(view: View, width: int, height: int) -> list[Line]:
    """Four charts and the pool; below them the diagnosis with the account, beside the verdicts."""
    below = min(height * 2 // 3, max(ANSWER_LINES + 10, _num_verdicts(view) + 1))
    charts = max(5, (height - 3 - below) // 2)
    below = height - 3 - 2 * charts
    columns, lower = split_width(width, (1, 1)), split_width(width, (11, 9))
    upper = beside(
        [
            (plots.latency(view, "itl", "inter-token latency", columns[0], charts, axis=charts >= 6), columns[0]),
            (plots.latency(view, "ttft", "time to first token", columns[1], charts, axis=charts >= 6), columns[1]),
        ],
        charts,
    )
    load = beside(
        [
            (plots.tokens(view, columns[0], charts), columns[0]),
            (plots.queue(view, columns[1], charts), columns[1]),
        ],
        charts,
    )
    accounted = min(8, below - answer_lines(view, lower[0]))
    accounted = accounted if accounted >= 4 else 0
    left = answer(view, lower[0], below - accounted) + account(view, lower[0], accounted)
    lines = beside([(left, lower[0]), (verdict_list(view, lower[1], below), lower[1])], below)
    return [*upper, *load, *pool_section(view, width), *lines]


def _num_verdicts(view: View) -> int:
    return len(view.target.summary.verdicts) if view.target.summary is not None else 0


def moment_at(view: View, x: int, y: int, width: int) -> float | None:
    """The moment that a click on one of the upper plots means; None beside them."""
    left, right = split_width(width, (1, 1))
    column, size = (x, left) if x < left else (x - left - 1, right)
    inside = column - AXIS_WIDTH
    if not 1 <= y <= 5 or not 0 <= inside < size - AXIS_WIDTH:
        return None
    return view.start + view.span * (inside + 1) / (size - AXIS_WIDTH)
