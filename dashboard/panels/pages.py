"""Which function draws which page."""

from collections.abc import Callable

from dashboard.draw.spans import Line, blank, fit
from dashboard.model.view import Page, View
from dashboard.panels import fleet, host, memory, overview, protocol, requests, steps
from dashboard.panels.chrome import status_line, tab_bar
from dashboard.panels.waiting import nothing_yet

PAGES: dict[Page, Callable[[View, int, int], list[Line]]] = {
    Page.OVERVIEW: overview.draw,
    Page.STEPS: steps.draw,
    Page.MEMORY: memory.draw,
    Page.HOST: host.draw,
    Page.REQUESTS: requests.draw,
    Page.PROTOCOL: protocol.draw,
    Page.FLEET: fleet.draw,
}
CHROME_LINES = 2


def draw_page(view: View, width: int, height: int) -> list[Line]:
    """The page alone, exactly `height` lines; a target that never answered has one page, which says why."""
    lines = nothing_yet(view, width, height) if view.page is not Page.FLEET else None
    if lines is None:
        lines = PAGES[view.page](view, width, height)
    lines = [fit(line, width) for line in lines[:height]]
    return lines + blank(width, height - len(lines))


def draw_frame(view: View, width: int, height: int) -> list[Line]:
    """Tabs, status and page: the whole screen but for the footer."""
    return [tab_bar(view, width), status_line(view, width), *draw_page(view, width, height - CHROME_LINES)]
