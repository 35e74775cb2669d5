"""The pictures in docs/images: `python -m tests.dashboard.pictures`. With a folder: every situation in every size, to look at.

Painted by the application itself, without a terminal, from the views of the golden frames: the same pictures on every machine.
"""

import asyncio
import os
import sys
import time
from pathlib import Path

from textual.widgets._footer import FooterKey

from dashboard.app import DashboardApp
from dashboard.bundle import self_contained
from dashboard.model.view import Page, View
from dashboard.options import Options
from dashboard.session import Session
from tests.dashboard.frames import SITUATIONS, SIZES
from tests.dashboard.views import URL

IMAGES = Path(__file__).resolve().parents[2] / "docs" / "images"
PICTURES = {
    "dashboard-overview": ("interference", Page.OVERVIEW),
    "dashboard-steps": ("interference", Page.STEPS),
    "dashboard-saturation": ("saturation", Page.OVERVIEW),
    "dashboard-techniques": ("thrash", Page.TECHNIQUES),
}
"""Name -> situation and page, at 120x40."""


class StillApp(DashboardApp):
    """Shows a view as it is; nothing is read."""

    def _begin(self) -> None:
        self.redraw()


async def picture(view: View, width: int, height: int) -> str:
    """As SVG."""
    session = Session([URL], Options())
    session.view = view
    app = StillApp(session)
    async with app.run_test(size=(width, height)) as pilot:
        while not app.query(FooterKey):
            await pilot.pause(0.05)
        await pilot.pause()
        return self_contained(app.export_screenshot(title="stallscope dashboard"))


def write(path: Path, view: View, width: int, height: int) -> None:
    path.write_text(asyncio.run(picture(view, width, height)), encoding="utf-8")
    print(path)


def main() -> None:
    os.environ["TZ"] = "UTC"
    time.tzset()
    if len(sys.argv) > 1:
        folder = Path(sys.argv[1])
        folder.mkdir(parents=True, exist_ok=True)
        for name, make in SITUATIONS.items():
            view = make()
            for width, height in SIZES:
                write(folder / f"{name}-{width}x{height}.svg", view, width, height)
        return
    for name, (situation, page) in PICTURES.items():
        view = SITUATIONS[situation]()
        view.page = page
        write(IMAGES / f"{name}.svg", view, 120, 40)


if __name__ == "__main__":
    main()
