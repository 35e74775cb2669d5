"""Targets of which there is nothing to plot yet: connecting, unreachable, not a metrics endpoint. Each says what to do."""

from dashboard.draw.figures import age
from dashboard.draw.spans import Line, Span, blank, fit, wrap
from dashboard.model.target import Phase
from dashboard.model.view import View

_TITLES = {
    Phase.CONNECTING: ("connecting", "wait"),
    Phase.UNREACHABLE: ("cannot be reached", "bad"),
    Phase.NOT_METRICS: ("not a metrics endpoint", "bad"),
}


def nothing_yet(view: View, width: int, height: int) -> list[Line] | None:
    """None when the target has answered before: then its pages are shown."""
    target = view.target
    if len(target.history):
        return None
    phase = target.phase(view.now)
    title, role = _TITLES.get(phase, _TITLES[Phase.CONNECTING])
    inner = min(width - 4, 76)
    lines: list[Line] = [[Span(title, role)], [Span(target.name, "title")], []]
    for text, style in _body(view, phase):
        lines += [*wrap(text, inner, 5, style), []]
    left = max(0, (width - inner) // 2)
    body = [fit([Span(" " * left), *line], width) for line in lines[: height - 1]]
    above = max(0, (height - len(body)) // 3)
    return [*blank(width, above), *body, *blank(width, height - above - len(body))]


def _body(view: View, phase: Phase) -> list[tuple[str, str]]:
    target, refusal = view.target, view.target.refusal
    waited = "" if target.first_try is None else f"for {age(view.now - target.first_try)}"
    if target.is_file:
        return [("reading the recording" if refusal is None else refusal.text, "")]
    if phase is Phase.CONNECTING or refusal is None:
        return [(f"asking for {target.name}/metrics {waited}".rstrip(), "")]
    if phase is Phase.UNREACHABLE:
        return [
            (refusal.text, ""),
            (f"Tried {waited}; it is tried again until it answers.", "dim"),
            ("Is the server up, and is this its address? A server that binds 127.0.0.1 answers only on its own host.", "dim"),
        ]  # fmt: skip
    return [
        (refusal.text, ""),
        (
            "Something answers, and it is no engine that this version reads. A model server's metrics are usually at "
            "http://HOST:PORT/metrics; behind a gateway, give the engine's own port.",
            "dim",
        ),
        ("It is asked again until it answers with metrics.", "dim"),
    ]
