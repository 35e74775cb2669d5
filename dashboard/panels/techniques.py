"""Four ways to serve prompts beside each other, five questions to each, and with every answer what this target counts of it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from dashboard.draw.figures import compact, count, share
from dashboard.draw.spans import Line, Span, beside, blank, clip, section, split_width, wrap
from dashboard.model.view import Page, View
from dashboard.panels.chrome import problem_lines
from diagnose.units import seconds

_LABELS = 12
_LEAST = 24
"""Cells that a technique's column needs at least; where there is no room for all, up and down go through them."""


@dataclass(frozen=True, slots=True)
class Live:
    """What a target counts: a name, how to read it, and the page that shows more of it."""

    name: str
    read: Callable[[View], float | None]
    text: Callable[[float], str]
    page: Page


def _column(name: str, column: str, text: Callable[[float], str], page: Page) -> Live:
    return Live(name, lambda view: view.target.history.at(column, view.at, within=60), text, page)


def _newest(name: str, kind: str, signal: str) -> Live:
    """A counter or gauge that has no history: known for the newest page alone."""

    def read(view: View) -> float | None:
        levels = view.target.levels
        return getattr(levels[-1], kind).get(signal) if levels and view.playhead.follows else None

    return Live(name, read, count, Page.OVERVIEW)


def _prefill_budget(view: View) -> float | None:
    """A decode takes one token of the budget."""
    budget, running = (view.target.history.at(name, view.at, within=60) for name in ("budget", "running"))
    return None if budget is None or running is None else max(0.0, budget - running)


def _mean_transfer(view: View) -> float | None:
    """Since the engine started."""
    levels = view.target.levels
    found = levels[-1].histograms.get("kv_transfer") if levels and view.playhead.follows else None
    return found.sum / found.counts[-1] if found is not None and found.counts[-1] else None


@dataclass(frozen=True, slots=True)
class Cell:
    text: str
    live: Live | None = None
    """None where no engine counts it: an invariant is for tests to prove."""


DIMENSIONS = ("goal", "scheduling", "memory", "latency", "invariant")
TECHNIQUES: dict[str, tuple[Cell, ...]] = {
    "monolithic prefill": (
        Cell("a whole prompt in one iteration", _column("prefill tokens/s", "prefill_rate", compact, Page.OVERVIEW)),
        Cell("all of a prompt's tokens in one step", _column("step budget", "budget", count, Page.STEPS)),
        Cell("KV of the full sequence at once", _column("active blocks", "active", count, Page.MEMORY)),
        Cell("can delay the decodes of its step", _column("ITL p99", "itl_p99", seconds, Page.OVERVIEW)),
        Cell("plain causal masking"),
    ),
    "chunked prefill": (
        Cell("shorter stalls of decodes; a bound on a step's query tokens",
             _column("time lost to stalls", "stall_ratio", share, Page.PROTOCOL)),
        Cell("a chunk is at most the budget less the decodes", Live("left for prefill", _prefill_budget, count, Page.STEPS)),
        Cell("blocks are taken chunk by chunk", _column("free blocks", "free", count, Page.MEMORY)),
        Cell("can ease interference; costs scheduling and traffic", _column("ITL p50", "itl_p50", seconds, Page.OVERVIEW)),
        Cell("the same causal dependencies, to floating-point tolerance"),
    ),
    "prefix caching": (
        Cell("what was computed is not computed again", _column("cached tokens/s", "cached_rate", compact, Page.OVERVIEW)),
        Cell("blocks found by hash chain or radix tree", _column("prompt tokens found", "hit_ratio", share, Page.MEMORY)),
        Cell("matched blocks are not allocated", _column("reclaimable blocks", "reclaimable", count, Page.MEMORY)),
        Cell("skips work; what TTFT gains depends on other costs", _column("TTFT p50", "ttft_p50", seconds, Page.OVERVIEW)),
        Cell("same model, configuration, adapter and tokens, or no match"),
    ),
    "disaggregation": (
        Cell("compute-bound prefill apart from memory-bound decode",
             _column("decode tokens/s", "decode_rate", compact, Page.OVERVIEW)),
        Cell("prompts go to workers of their own", _newest("awaiting KV", "gauges", "waiting_transfer")),
        Cell("KV crosses the network to the decode worker", Live("mean transfer", _mean_transfer, seconds, Page.OVERVIEW)),
        Cell("the phases do not collide; transfers and what is shared still delay",
             _column("queue p50", "queue_p50", seconds, Page.OVERVIEW)),
        Cell("KV is there before a decode needs it", _newest("failures", "counters", "transfer_failures")),
    ),
}  # fmt: skip
"""In the order of `DIMENSIONS`."""


def draw(view: View, width: int, height: int) -> list[Line]:
    notices: list[Line] = [clip([Span(f" {text}", "bad_strong")], width) for text in problem_lines(view)]
    room = height - len(notices)
    fitting = max(1, min(len(TECHNIQUES), (width - _LABELS) // (_LEAST + 1)))
    first = min(view.table.selected, len(TECHNIQUES) - fitting)
    shown = list(TECHNIQUES.items())[first : first + fitting]
    widths = split_width(width - _LABELS - 1, [1] * len(shown))
    each = max(2, min(5, (room - 2) // len(DIMENSIONS)))
    columns = [(_labels(each), _LABELS)]
    columns += [(_technique(view, *one, size, each), size) for one, size in zip(shown, widths, strict=True)]
    note = "with what this target counts" if fitting == len(TECHNIQUES) else f"{fitting} of {len(TECHNIQUES)}: up, down"
    return [*notices, *section("techniques", beside(columns, room - 1), width, room, note)]


def _labels(each: int) -> list[Line]:
    lines: list[Line] = [[Span("")]]
    for dimension in DIMENSIONS:
        lines += [[Span(f" {dimension}", "head")], *blank(_LABELS, each - 1)]
    return lines


def _technique(view: View, name: str, cells: Sequence[Cell], width: int, each: int) -> list[Line]:
    lines: list[Line] = [clip([Span(name, "title")], width)]
    for cell in cells:
        block = [*wrap(cell.text, width, each - 1), clip(_live(view, cell.live), width)]
        lines += [*block, *blank(width, each - len(block))]
    return lines


def _live(view: View, live: Live | None) -> Line:
    """The counter's present value; a click goes to the page that shows more of it."""
    if live is None:
        return [Span("not counted", "dim")]
    value, action = live.read(view), f"page('{live.page.value}')"
    if value is None:
        return [Span(f"{live.name}: not served", "dim", action)]
    return [Span(f"{live.name} ", "number", action), Span(live.text(value), "key", action)]
