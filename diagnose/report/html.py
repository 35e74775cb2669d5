"""The Diagnosis as one HTML file that needs nothing else: no script, no request, readable in light, dark and on paper."""

from diagnose.decision import Finding
from diagnose.diagnosis import Diagnosis
from diagnose.report import outline
from diagnose.report.document import document
from diagnose.report.markup import Markup, element, join
from diagnose.report.plots import Figure, figures
from diagnose.report.roofline_lines import TITLE, roofline_lines
from diagnose.units import percent, seconds
from diagnose.verdict import Evidence, Missing, Stance, Verdict

_STANCES = {Stance.FOR: "for", Stance.AGAINST: "against", Stance.CONTEXT: "context"}
_FULL_WIDTH = (Verdict.CONFIRMED, Verdict.SUPPORTED, Verdict.UNDETERMINED)


def render(diagnosis: Diagnosis) -> str:
    headline = outline.headline(diagnosis)
    return document(
        headline,
        _header(diagnosis, headline),
        element(
            "main",
            _decision(diagnosis),
            _symptom(diagnosis),
            *_replicas(diagnosis),
            _accounts(diagnosis),
            *_roofline(diagnosis),
            *_verdicts(diagnosis),
            _protocol(diagnosis),
        ),
    )


def _header(diagnosis: Diagnosis, headline: str) -> Markup:
    case = diagnosis.case
    about = [element("p", " · ".join(outline.about(diagnosis)), class_="soft")]
    windows = f"window: {outline.extent(case.incident)}"
    if case.baseline is not None:
        windows += f"; baseline: {outline.extent(case.baseline)}"
    if sources := outline.sources(case.incident):
        windows += f"; read: {sources}"
    warnings = outline.warnings(diagnosis)
    shown = (
        [element("ul", *(element("li", f"Warning: {text}") for text in warnings), class_="warnings")]
        if warnings
        else []
    )
    return element("header", *about, element("h1", headline), element("p", windows, class_="soft"), *shown)


def _section(title: str, *content: str) -> Markup:
    return element("section", element("h2", title), *content)


def _decision(diagnosis: Diagnosis) -> Markup:
    decision = diagnosis.decision
    steps = [element("li", step.text, *_command(step.command)) for step in decision.steps]
    return element(
        "section",
        element("h2", f"Decision: {decision.kind.value}"),
        element("p", decision.summary),
        *([element("ol", *steps)] if steps else []),
        *([element("p", f"Trade: {decision.trade}.", class_="soft")] if decision.trade else []),
        class_="decision",
    )


def _command(command: str) -> list[Markup]:
    return [element("pre", element("code", command))] if command else []


def _symptom(diagnosis: Diagnosis) -> Markup:
    with_baseline = diagnosis.case.baseline is not None
    names = ["", "now", *(["baseline"] if with_baseline else [])]
    rows = [[row.label, row.now, *([row.before] if with_baseline else [])] for row in outline.symptom_rows(diagnosis)]
    return _section("Symptom", _table(names, rows))


def _replicas(diagnosis: Diagnosis) -> list[Markup]:
    rows, total = outline.replica_rows(diagnosis)
    if not rows:
        return []
    cells = [[row.name, row.running, row.waiting, row.tokens, row.gap] for row in rows]
    return [_section(outline.replica_title(len(rows), total), _table(list(outline.REPLICA_HEADER), cells))]


def _table(names: list[str], rows: list[list[str]]) -> Markup:
    head = element("tr", *(element("th", name, scope="col") for name in names))
    body = [
        element("tr", element("th", first, scope="row"), *(element("td", cell) for cell in rest))
        for first, *rest in rows
    ]
    return element("table", element("thead", head), element("tbody", *body))


def _accounts(diagnosis: Diagnosis) -> Markup:
    content: list[Markup] = []
    accounts = outline.accounts(diagnosis)
    for name, account in accounts:
        sentence = element("strong", outline.account_sentence(name, account))
        content.append(element("p", sentence, f" ({outline.account_group(name, account)})"))
    waterfall, *others = map(_figure, figures(diagnosis))
    content.append(waterfall)
    if accounts:
        _, p99 = accounts[-1]
        names = ["part of p99", "time", "share", *(["between"] if p99.bounds else [])]
        rows = [
            [row.label, seconds(row.seconds), percent(row.share)]
            + ([outline.bounds_text(row.bounds) if row.bounds is not None else ""] if p99.bounds else [])
            for row in outline.part_rows(p99)
        ]
        content.append(_table(names, rows))
        limits = [element("li", text) for text in outline.account_limits(p99)]
        content += [element("ul", *limits)] if limits else []
    return join([_section("Where a token's time goes", *content), _section("What the window looked like", *others)])


def _roofline(diagnosis: Diagnosis) -> list[Markup]:
    lines = roofline_lines(diagnosis)
    return [_section(TITLE, element("ul", *(element("li", line) for line in lines)))] if lines else []


def _figure(figure: Figure) -> Markup:
    # Focusable, so that one who has no mouse can scroll it on a narrow screen.
    plot = element("div", figure.image, class_="plot", tabindex="0") if figure.image else figure.image
    return element("figure", element("h3", figure.title), plot, element("figcaption", figure.caption))


def _verdicts(diagnosis: Diagnosis) -> list[Markup]:
    sections: list[Markup] = []
    for title, group in outline.verdict_groups(diagnosis):
        wide = " wide" if group[0].verdict in _FULL_WIDTH else ""
        sections.append(_section(title, element("div", *map(_finding, group), class_=f"cards{wide}")))
    failed, unchecked = outline.failed_rules(diagnosis), outline.unchecked(diagnosis)
    said = [element("ul", *(element("li", text) for text in failed))] if failed else []
    if unchecked:
        said.append(element("div", *map(_finding, unchecked), class_="cards"))
    return [*sections, _section(outline.NOT_CHECKED, *(said or [element("p", outline.ALL_CHECKED)]))]


def _finding(finding: Finding) -> Markup:
    pill = element("span", finding.verdict.value, class_=f"pill {finding.verdict.value}")
    items = [*map(_evidence, finding.judgement.evidence), *map(_missing, finding.judgement.missing)]
    evidence = [element("ul", *items, class_="evidence")] if items else []
    return element("article", element("h3", finding.name, pill), *evidence, class_="card")


def _evidence(item: Evidence) -> Markup:
    stance = _STANCES[item.stance]
    origin = element("span", f" [{outline.evidence_origin(item)}]", class_="origin")
    return element("li", element("span", stance, class_=f"stance {stance}"), item.text, origin)


def _missing(missing: Missing) -> Markup:
    stance = element("span", "lacks", class_="stance")
    return element("li", stance, f"{missing.measurement}: {missing.decides}", *_command(missing.command))


def _protocol(diagnosis: Diagnosis) -> Markup:
    items = []
    for item in diagnosis.protocol:
        state = "done" if item.done else "missing"
        box = element("span", "☑" if item.done else "☐", class_="box", role="img", aria_label=state)
        items.append(
            element(
                "li", box, element("strong", item.name), f": {item.found}", *_command("" if item.done else item.command)
            )
        )
    return _section("Protocol: the four measurements", element("ul", *items, class_="check"))
