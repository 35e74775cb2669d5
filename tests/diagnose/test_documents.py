"""Reports as documents: Markdown for an incident, HTML that needs nothing else. What came from the target stays text."""

import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

import pytest
from markdown_it import MarkdownIt

from diagnose.decision import Finding
from diagnose.diagnosis import Diagnosis
from diagnose.hypotheses.registry import HYPOTHESES
from diagnose.observation import Event
from diagnose.report import html, markdown, outline, plots, svg
from diagnose.report.markup import Markup, element
from diagnose.report.page import Page
from diagnose.report.terminal import render as render_page
from diagnose.stats import Bounds
from diagnose.units import printable
from tests.builders import Engine, make_steps, with_prefill
from tests.diagnose import cases
from tests.diagnose.cases import look
from tests.diagnose.situations import SITUATIONS, each_situation

VOID = {"meta"}
HOSTILE = "`|<script>alert(1)</script>|*_[x](http://e)_*&lt;\x1b[2J\n# h"


class Reader(HTMLParser):
    """Checks nesting; keeps tags, ids and text."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if "style" not in self.open:
            self.words.append(data)


def read(page: str) -> Reader:
    reader = Reader()
    reader.feed(page)
    reader.close()
    assert reader.open == []
    return reader


def hostile() -> Diagnosis:
    engine = Engine(state={"info": {"version": HOSTILE, "model": HOSTILE}})
    seen = cases.interference(engine=engine, target=f"http://{HOSTILE}")
    return look(seen, events=(Event(0, "unreachable", HOSTILE),))


# ---- HTML


@each_situation
def test_html_is_whole_and_says_what_the_diagnosis_says(diagnosis):
    reader = read(html.render(diagnosis))
    words = " ".join(" ".join(reader.words).split())
    assert outline.headline(diagnosis) in words
    assert diagnosis.decision.summary in words
    for hypothesis in HYPOTHESES:
        assert hypothesis.name in words
    for item in (item for finding in diagnosis.findings for item in finding.judgement.evidence):
        assert item.text in words
        assert item.samples is None or f"n={item.samples}" in words
    for text in outline.warnings(diagnosis):
        assert text in words


@each_situation
def test_html_needs_nothing_else(diagnosis):
    """No script, no request, and a policy that would stop both."""
    page = html.render(diagnosis)
    reader = read(page)
    assert not {"script", "link", "img", "iframe", "object", "use", "image"} & {tag for tag, _ in reader.tags}
    for tag, attributes in reader.tags:
        assert not any(name.startswith("on") or name in ("src", "href", "style") for name in attributes), (
            tag,
            attributes,
        )
    assert "default-src 'none'" in page
    assert not re.search(r"url\(|@import", page)
    assert len(page) < 200_000


@each_situation
def test_pictures_have_names_and_words_and_are_well_formed(diagnosis):
    page = html.render(diagnosis)
    reader = read(page)
    ids = [attributes["id"] for _, attributes in reader.tags if "id" in attributes]
    assert len(ids) == len(set(ids))
    pictures = re.findall(r"<svg.*?</svg>", page, re.DOTALL)
    for picture in pictures:
        root = ElementTree.fromstring(picture)
        assert root.attrib["role"] == "img"
        assert all(name in ids for name in root.attrib["aria-labelledby"].split())
        assert all(child.text for child in list(root)[:2]), "title and desc"
        assert not re.search(r"nan|inf[ ,VvHhz]", picture.replace("inf</text>", ""))
    assert page.count("<figcaption>") == 4, "a plot that cannot be drawn says why"


def test_all_four_plots_are_drawn_from_step_records():
    page = html.render(SITUATIONS["interference"]())
    assert page.count("<svg") == 4
    for class_ in ("step-decode", "step-mixed", "now", "before", "blocks-active", "part", "total"):
        assert f'class="{class_}"' in page
    assert "@media print" in page
    assert "prefers-color-scheme: dark" in page


def test_nothing_from_the_target_becomes_a_tag_or_an_attribute():
    page = html.render(hostile())
    assert "<script" not in page
    assert "\x1b" not in page
    assert "alert(1)" in " ".join(read(page).words)


def test_plots_are_bounded_and_say_what_they_left_out():
    steps = make_steps(9000, with_prefill(50, 500))
    figure = plots.timeline(steps)
    assert sum(part.count("M") for part in re.findall(r' d="([^"]*)"', figure.image)) <= plots.MAX_MARKS
    assert "Each bar is the longest of its kind among 14 consecutive steps." in figure.caption
    longest = max(record.end_ns - record.start_ns for record in steps) / 1e9
    assert f"longest {round(longest * 1e3)} ms" in figure.caption, "the worst step is never left out"
    seen = cases.quiet()
    seen.steps = steps
    levels = plots.census(look(seen).case.incident)
    assert "Each point is the fullest of 14 consecutive ones." in levels.caption


def test_histogram_shares_come_with_their_counts():
    diagnosis = SITUATIONS["histograms"]()
    figure = plots.latency_histogram(diagnosis.case.incident, diagnosis.case.baseline)
    assert figure.caption.startswith("2093 gaps now against 2093 of the baseline.")


def test_an_estimate_shows_its_bounds():
    page = html.render(SITUATIONS["histograms"]())
    assert 'class="whisker"' in page
    assert "estimated from histograms: between 50 ms and" in page
    assert '<th scope="col">between</th>' in page
    assert "cannot be told apart" in page


def test_markup_escapes_what_is_not_markup():
    assert element("p", "<b>", Markup("<i></i>"), title='"x"') == '<p title="&quot;x&quot;">&lt;b&gt;<i></i></p>'
    assert element("p", class_="a", hidden=None, aria_label="b") == '<p class="a" aria-label="b"></p>'


@pytest.mark.parametrize(("top", "end"), [(0, 1.0), (2.8, 3.0), (0.4, 0.4), (97, 100), (1e-6, 1e-6)])
def test_axes_end_at_a_round_value(top, end):
    assert svg.round_up(top) == pytest.approx(end)
    assert svg.ticks(svg.round_up(top))[0] == 0


# ---- Markdown


@each_situation
def test_markdown_says_what_the_diagnosis_says(diagnosis):
    page = markdown.render(diagnosis)
    assert page.startswith(f"# {markdown.escape(outline.headline(diagnosis))}\n")
    for hypothesis in HYPOTHESES:
        assert page.count(f"### `{hypothesis.name}`: ") == 1
    for item in diagnosis.protocol:
        assert f"- [{'x' if item.done else ' '}] **{item.name}**: " in page
    for command in [step.command for step in diagnosis.decision.steps if step.command]:
        assert f"```sh\n   {command}\n   ```" in page
    assert f"## Decision: {diagnosis.decision.kind.value}" in page
    assert_tables_are_even(page)


def assert_tables_are_even(page: str) -> None:
    width = 0
    for line in page.splitlines():
        if not line.startswith("|"):
            width = 0
            continue
        cells = len(re.findall(r"(?<!\\)\|", line))
        assert cells == (width or cells), line
        width = cells


def test_nothing_from_the_target_is_read_as_markdown():
    """By another's reading: the document holds no tag, link or heading that the target put there."""
    page = markdown.render(hostile())
    assert "\x1b" not in page
    tokens = [
        token
        for block in MarkdownIt("commonmark").enable("table").parse(page)
        for token in (block, *(block.children or ()))
    ]
    kinds = {token.type for token in tokens}
    assert not {kind for kind in kinds if kind.startswith(("html", "link", "image"))}
    texts = "".join(token.content for token in tokens if token.type in ("text", "code_inline"))
    assert texts.count(printable(HOSTILE)) >= 4, "shown as it is"
    headings = [
        block.content for block, before in zip(tokens[1:], tokens, strict=False) if before.type == "heading_open"
    ]
    assert "h" not in headings
    assert_tables_are_even(page)


def test_commands_hold_no_address_that_a_shell_would_run():
    """A recording says where it came from; whoever wrote it must not write our commands."""
    for target in ("http://h:1;id", "http://$(id)", "http://h:1 -o x", "http://h:1'", "http://h:1`id`", "incident.rec"):
        diagnosis = look(cases.interference(target=target))
        commands = [step.command for step in diagnosis.decision.steps] + [item.command for item in diagnosis.protocol]
        assert all(target not in command for command in commands)
        assert any("http://HOST:PORT" in command for command in commands)
    assert look(cases.interference(target="https://[::1]:8000/v1")).case.address == "https://[::1]:8000/v1"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a|b", "a\\|b"),
        ("lock_wait 5 %", "lock_wait 5 %"),
        ("_loud_", "\\_loud\\_"),
        ("**loud** `x`", "\\*\\*loud\\*\\* \\`x\\`"),
        ("# title", "\\# title"),
        ("1. item", "1\\. item"),
        ("- item", "\\- item"),
        ("<b> [x](y) &amp;", "\\<b> \\[x](y) \\&amp;"),
        ("C:\\dir", "C:\\\\dir"),
        ("two\nlines", "two?lines"),
    ],
)
def test_markdown_escapes(text, shown):
    assert markdown.escape(text) == shown


def test_code_and_fences_hold_backticks():
    assert markdown.code("a`b") == "``a`b``"
    assert markdown.code("`a`") == "`` `a` ``"
    assert markdown.fence("echo ```x```").splitlines() == ["````sh", "echo ```x```", "````"]


def test_a_failed_rule_is_named_in_every_document():
    diagnosis = SITUATIONS["bare"]()
    first, *rest = diagnosis.findings
    broken = Finding(first.name, first.benign, first.causes_latency, first.judgement, "KeyError: 'x'")
    diagnosis = replace(diagnosis, findings=(broken, *rest))
    for page in (markdown.render(diagnosis), html.render(diagnosis)):
        assert f"{first.name}: the rule failed: KeyError: 'x'" in page.replace("&#x27;", "'")


# ---- all of them


def test_no_quantile_is_shown_without_its_sample_count():
    """In each form: whatever is called p50, p95 or p99 has a count beside it."""
    for make in SITUATIONS.values():
        diagnosis = make()
        for row in outline.symptom_rows(diagnosis):
            for cell in (row.now, row.before):
                assert cell in ("", outline.NOT_OBSERVED) or "n=" in cell or row.label == "stalls", row
        for name, account in outline.accounts(diagnosis):
            assert f"{account.num_gaps} gaps" in outline.account_group(name, account)


@each_situation
def test_evidence_that_states_a_quantile_counts_its_samples(diagnosis):
    page = " ".join(render_page(diagnosis, Page(width=110, styled=False), verbose=False).split())
    for item in (item for finding in diagnosis.findings for item in finding.judgement.evidence):
        if re.search(r"\b(p\d\d|median)\b", item.text):
            assert item.samples is not None, item
            assert item.text not in page or f"{item.text} (n={item.samples})" in page


def test_bounds_are_ranges_in_every_form():
    assert outline.bounds_text(Bounds(0.1, 0.15)) == "(100 ms, 150 ms]"


def test_the_style_is_one_file_beside_the_renderer():
    assert Path(html.__file__).with_name("style.css").is_file()
