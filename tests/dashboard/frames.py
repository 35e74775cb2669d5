"""Golden frames: `python -m tests.dashboard.frames` draws them anew; look at the difference before committing it.

Text with the role of every span, not SVG: the frames are drawn by our own functions, so they are the same on every version of
Textual, a difference is a line that a person can read, and the `--once` command prints the very same lines. That Textual paints
these lines and no others is tested apart (test_app.py).
"""

import os
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path

from dashboard.draw.spans import Line, plain
from dashboard.model.view import Page, View
from dashboard.panels.pages import draw_frame
from tests.dashboard.views import engine_entries, make_view, recording

FRAMES = Path(__file__).resolve().parent / "frames"
SIZES = ((80, 24), (120, 40), (200, 50))
_REFUSED = "http://127.0.0.1:8000/metrics: connection refused: nothing listens there"


def live() -> View:
    return make_view(engine_entries(40))


def idle() -> View:
    return make_view(engine_entries(40, idle_from=20), judged_seconds=15)


def lost() -> View:
    return make_view(engine_entries(40), failures=[(after, _REFUSED) for after in (1, 3, 7, 15)])


def from_recording(name: str) -> Callable[[], View]:
    return lambda: make_view(recording(name), name=name, is_file=True)


def saturation() -> View:
    """A drill on the engine with a real model, marked as a person would: its usual load, then six streams with long contexts."""
    usual, saturated = recording("drill-bandwidth_saturation-baseline.rec"), recording("drill-bandwidth_saturation.rec")
    first = usual[0].unix
    return make_view(
        [*usual, *saturated],
        name="drill-bandwidth_saturation.rec",
        is_file=True,
        baseline=(0, usual[-1].unix - first),
        incident=(saturated[0].unix - first, saturated[-1].unix - first),
    )


SITUATIONS: dict[str, Callable[[], View]] = {
    "live": live,
    "idle": idle,
    "lost": lost,
    "interference": from_recording("interference.rec"),
    "saturation": saturation,
    "thrash": from_recording("thrash.rec"),
}


def marked_up(line: Line) -> str:
    """`text` lines, then the runs of roles: `title 2-11` says that cells 2 to 11 are drawn as a title."""
    runs, at = [], 0
    for span in line:
        if span.role and span.text.strip():
            runs.append(f"{span.role} {at}-{at + len(span.text) - 1}")
        at += len(span.text)
    return plain(line).rstrip() + (f"\n    {', '.join(runs)}" if runs else "")


def frame_text(view: View, width: int, height: int) -> str:
    return "\n".join(marked_up(line) for line in draw_frame(view, width, height)) + "\n"


def cases() -> dict[str, Callable[[], str]]:
    """File name -> what it should hold. Every situation in every size; every page once."""
    found: dict[str, Callable[[], str]] = {}
    situations = {name: cache(make) for name, make in SITUATIONS.items()}  # each is read and diagnosed once
    for name, make in situations.items():
        for width, height in SIZES:
            found[f"{name}-{width}x{height}.txt"] = _drawn(make, Page.OVERVIEW, width, height)
    for page in Page:
        found[f"page-{page.value}-100x30.txt"] = _drawn(situations["live"], page, 100, 30)
    found["page-memory-thrash-100x30.txt"] = _drawn(situations["thrash"], Page.MEMORY, 100, 30)
    return found


def _drawn(make: Callable[[], View], page: Page, width: int, height: int) -> Callable[[], str]:
    def draw() -> str:
        view = make()
        view.page = page
        return frame_text(view, width, height - 1)  # the footer has the last line

    return draw


def main() -> None:
    os.environ["TZ"] = "UTC"
    time.tzset()
    FRAMES.mkdir(exist_ok=True)
    for name, draw in cases().items():
        (FRAMES / name).write_text(draw(), encoding="utf-8")
        print(f"tests/dashboard/frames/{name}")


if __name__ == "__main__":
    main()
