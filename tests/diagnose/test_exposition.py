"""The parser against the official one, on all that is valid; one kind of error, with a line number, on all that is not."""

import io
import math
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from prometheus_client.openmetrics import parser as openmetrics_parser
from prometheus_client.parser import text_string_to_metric_families

from diagnose.exposition import Exposition, ExpositionError, ExpositionParser
from tests.builders import Engine, make_steps
from tests.probes.records import known

DATA = Path(__file__).resolve().parent.parent / "data"
REAL_PAGES = sorted(DATA.glob("*.prom"))


openmetrics: Callable[[io.StringIO], Iterable[Any]] = openmetrics_parser.text_fd_to_metric_families


def parse(text: str) -> Exposition:
    return ExpositionParser().parse(text)


Series = dict[tuple[str, tuple[tuple[str, str], ...]], float]


def oracle(text: str) -> Series:
    """The official parser's samples; the last value of a series wins, as it does in ours."""
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): float(sample.value)
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def flat(page: Exposition) -> Series:
    return {(name, key): value for name, series in page.samples.items() for key, value in series.items()}


def assert_same(ours: Series, theirs: Series) -> None:
    assert ours.keys() == theirs.keys()
    for key, value in ours.items():
        assert value == theirs[key] or (math.isnan(value) and math.isnan(theirs[key])), key


# Characters that mean something to the format are drawn often.
LABEL_VALUE = st.text(
    st.one_of(st.sampled_from('{}",=#\\ \t n'), st.characters(codec="utf-8", exclude_characters="\n\r")), max_size=12
)
NAME = st.from_regex(r"[a-zA-Z_:][a-zA-Z0-9_:]{0,12}", fullmatch=True)
LABEL_NAME = st.from_regex(r"[a-zA-Z][a-zA-Z0-9_]{0,8}", fullmatch=True).filter(lambda name: name != "__name__")
NUMBER = st.one_of(
    st.sampled_from(["NaN", "+Inf", "-Inf", "0", "1e308", "-0.0", "12345678901234567890", "1.5e-9"]),
    st.floats(allow_nan=True, allow_infinity=True).map(repr),
)
SPACE = st.sampled_from(["", " ", "  "])
EMPTY = st.sampled_from(["", "{}"])


def escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')


@st.composite
def sample_lines(draw: st.DrawFn) -> str:
    labels = draw(st.dictionaries(LABEL_NAME, LABEL_VALUE, max_size=3))
    pairs = [f'{draw(SPACE)}{k}{draw(SPACE)}={draw(SPACE)}"{escaped(v)}"{draw(SPACE)}' for k, v in labels.items()]
    comma = draw(st.sampled_from(["", ","])) if pairs else ""
    inner = "{" + ",".join(pairs) + comma + "}" if pairs else draw(EMPTY)
    stamp = draw(st.sampled_from(["", " 1700000000000", " 17"]))
    tail = draw(st.sampled_from(["", " ", "\r", "  \r"]))
    return f"{draw(SPACE)}{draw(NAME)}{draw(SPACE) if inner else ''}{inner} {draw(NUMBER)}{stamp}{tail}"


COMMENT = st.sampled_from(["", "# a remark", "#", "# HELP a_total Some \\n help.", "# TYPE a_total counter", "  "])


@given(st.lists(st.one_of(sample_lines(), COMMENT), max_size=12))
@example(['m{a="x # {y"} 1', 'm{a="}"} 2', 'm{a="b\\\\"} 3', 'm{a="\\\\n"} 4'])
def test_every_valid_page_reads_as_the_official_parser_reads_it(lines):
    text = "\n".join(lines) + "\n"
    assert_same(flat(parse(text)), oracle(text))


@given(st.lists(sample_lines(), max_size=8))
def test_a_page_seen_before_reads_the_same(lines):
    text = "\n".join(lines)
    parser = ExpositionParser()
    first = flat(parser.parse(text))
    assert_same(flat(parser.parse(text)), first)


@pytest.mark.parametrize("path", REAL_PAGES, ids=lambda path: path.stem)
def test_real_pages_read_as_the_official_parser_reads_them(path):
    text = path.read_text()
    assert_same(flat(parse(text)), oracle(text))


def test_our_own_exporter_is_read():
    engine = Engine()
    engine.run(make_steps(20))
    page = parse(engine.page())
    assert_same(flat(page), oracle(engine.page()))
    assert page.value("stallscope_tokens_total", phase="decode") == sum(known(r).emitted_tokens for r in make_steps(20))
    assert page.types["stallscope_step_duration_seconds"] == "histogram"


def test_values_sum_over_the_labels_that_are_not_asked_for():
    page = parse('a{x="1",y="1"} 1\na{x="1",y="2"} 2\na{x="2",y="1"} 4\n')
    assert page.value("a") == 7
    assert page.value("a", x="1") == 3
    assert page.value("a", x="3") is None
    assert page.value("b") is None


def test_exemplars_and_timestamps_are_no_values():
    page = parse('h_bucket{le="1"} 3 # {trace_id="a}b"} 0.5 1700000000\nc 1 1700000000123\nd 4 # {x="y"} 1\n')
    assert flat(page) == {("h_bucket", (("le", "1"),)): 3.0, ("c", ()): 1.0, ("d", ()): 4.0}
    assert page.sample_unix == 1_700_000_000.123


def test_of_a_duplicate_series_the_last_value_wins():
    page = parse('a{x="1",y="2"} 1\na{y="2",x="1"} 5\n')
    assert page.value("a") == 5


def test_crlf_blank_lines_tabs_and_an_unfinished_last_line():
    page = parse("# TYPE a counter\r\na 1\r\n\r\n\tb\t2\n   \nc 3")
    assert {name: page.value(name) for name in page.samples} == {"a": 1, "b": 2, "c": 3}
    assert page.types == {"a": "counter"}


# ---- OpenMetrics


def openmetrics_oracle(text: str) -> Series:
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): float(sample.value)
        for family in openmetrics(io.StringIO(text))
        for sample in family.samples
        if sample.native_histogram is None
    }


OPENMETRICS = """\
# HELP acme_tokens Tokens, of \\"all\\" kinds.
# TYPE acme_tokens counter
# UNIT acme_tokens tokens
acme_tokens_total{phase="a\\\\b\\"c\\nd"} 17 1700000000.25 # {trace_id="a}b # c"} 1.0 1700000000.1
acme_tokens_created{phase="a\\\\b\\"c\\nd"} 1.6e9 1700000000.25
# TYPE acme_seconds histogram
acme_seconds_bucket{le="0.5"} 3 # {} 0.25
acme_seconds_bucket{le="+Inf"} 5
acme_seconds_sum 4.5
acme_seconds_count 5
acme_seconds_created 1.6e9
# TYPE acme info
acme_info{version="1"} 1
# TYPE acme_state stateset
acme_state{acme_state="up"} 1
acme_state{acme_state="down"} 0
# EOF
"""


def test_openmetrics_reads_as_the_official_parser_reads_it():
    text = OPENMETRICS.replace("# UNIT acme_tokens tokens\n", "")
    assert_same(flat(parse(text)), openmetrics_oracle(text))
    assert parse(OPENMETRICS).skipped == 0


def test_timestamps_are_seconds_there_and_milliseconds_else():
    assert parse(OPENMETRICS).sample_unix == 1_700_000_000.25
    assert (
        parse(OPENMETRICS.replace("1700000000.25", "1700000000250").replace("# EOF\n", "")).sample_unix
        == 1_700_000_000.25
    )


@st.composite
def openmetrics_lines(draw: st.DrawFn, index: int) -> str:
    """One gauge family with timestamps; the official parser wants each family once, and its labels well formed."""
    labels = draw(st.dictionaries(LABEL_NAME, LABEL_VALUE, max_size=3))
    inner = "{" + ",".join(f'{k}="{escaped(v)}"' for k, v in labels.items()) + "}" if labels else ""
    stamp = draw(st.sampled_from(["", " 1700000000", " 1700000000.5"]))
    return f"# TYPE f{index} gauge\nf{index}{inner} {draw(NUMBER)}{stamp}"


@given(st.data())
def test_any_openmetrics_gauge_reads_as_the_official_parser_reads_it(data):
    lines = [data.draw(openmetrics_lines(index)) for index in range(data.draw(st.integers(0, 6)))]
    text = "\n".join([*lines, "# EOF\n"])
    assert_same(flat(parse(text)), openmetrics_oracle(text))


def test_names_beyond_the_old_alphabet_stand_in_quotes():
    page = parse('{"a.b",x="1","y.z"="2"} 3\n{"c d"} 4\n{"a.b"} 5\n# TYPE "a.b" gauge\n')
    assert flat(page) == {("a.b", (("x", "1"), ("y.z", "2"))): 3, ("c d", ()): 4, ("a.b", ()): 5}
    assert page.types == {"a.b": "gauge"}
    assert_same(flat(page), oracle('{"a.b",x="1","y.z"="2"} 3\n{"c d"} 4\n{"a.b"} 5\n'))


NATIVE = (
    '# TYPE s histogram\ns{x="1"} {count:24,sum:100,schema:0,zero_threshold:0.001,zero_count:4,positive_spans:[0:2,1:2],'
    "negative_spans:[0:2,1:2],positive_deltas:[2,1,-3,3],negative_deltas:[2,1,-2,3]}\n# EOF\n"
)


def test_a_native_histogram_is_read_as_classic_buckets():
    page = parse(NATIVE)
    (family,) = openmetrics(io.StringIO(NATIVE))
    native = family.samples[0].native_histogram
    assert native is not None
    assert (page.value("s_count"), page.value("s_sum")) == (native.count_value, native.sum_value) == (24, 100)
    buckets = {dict(key)["le"]: value for key, value in page.samples["s_bucket"].items()}
    assert len(buckets) == 6
    below = 4 + 2 + 3 + 1 + 4  # at zero, and all that is negative
    assert [buckets[le] for le in ("1", "2", "8", "16", "+Inf")] == [below + 2, below + 5, below + 5, below + 8, 24]
    assert page.types["s"] == "histogram"


@pytest.mark.parametrize(
    "text",
    [
        "{}",
        "{count:1}",
        "{count:1,sum:2}",
        "{count:1,sum:2,schema:0,positive_spans:[0:9],positive_deltas:[1]}",
        "{count:x,sum:2,schema:0}",
        "{count:1,sum:2,schema:0,positive_spans:[a:b],positive_deltas:[1]}",
        "{count:1,sum:2,schema:-9,positive_spans:[9:1],positive_deltas:[1]}",
        "{",
    ],
)
def test_a_broken_native_histogram_costs_its_line(text):
    page = parse(f"a 1\nb 2\ns {text}\n")
    assert page.skipped == 1
    assert "s_count" not in page.samples


BROKEN = {
    "no value": "a",
    "no value after labels": 'a{x="1"}',
    "words": "a hello",
    "python's number": "a 1_000",
    "three numbers": "a 1 2 3",
    "open brace": 'a{x="1" 1',
    "open quote": 'a{x="1} 1',
    "escape at the end": 'a{x="1\\',
    "no quotes": "a{x=1} 1",
    "no equals": 'a{x"1"} 1',
    "no comma": 'a{x="1"y="2"} 1',
    "two commas": 'a{x="1",,y="2"} 1',
    "junk between labels": 'a{x="1",junk,y="2"} 1',
    "junk behind the brace": 'a{x="1"} junk} 1',
    "label twice": 'a{x="1",x="2"} 1',
    "bad label": 'a{1x="1"} 1',
    "bad name": "1a 1",
    "dash": "a-b 1",
    "no name": '{x="1"} 1',
    "html": "<!DOCTYPE html>",
    "json": '{"status": "ok"}',
    "nul": "\x00",
    "value glued on": "a1",
    "timestamp a word": "a 1 soon",
}


@pytest.mark.parametrize("line", BROKEN.values(), ids=BROKEN.keys())
def test_a_broken_line_costs_itself_alone_and_is_named(line):
    parser = ExpositionParser()
    parser.parse("a 1\n")  # a series known from before must not hide what follows it
    page = parser.parse(f"a 1\n# fine\n{line}\nb 2\n")
    assert (page.value("a"), page.value("b"), len(page.samples)) == (1, 2, 2)
    assert page.skipped == 1
    assert page.first_problem.startswith("line 3: ")


@pytest.mark.parametrize("line", BROKEN.values(), ids=BROKEN.keys())
def test_broken_lines_alone_are_no_page(line):
    with pytest.raises(ExpositionError, match=r"^line 1: "):
        parse(f"{line}\n")


def test_half_broken_is_no_page():
    with pytest.raises(ExpositionError):
        parse("<html>\na 1\n")
    assert parse("<html>\na 1\nb 2\n").skipped == 1


@given(st.text(max_size=200))
def test_any_text_is_a_page_or_an_exposition_error(text):
    try:
        parse(text)
    except ExpositionError as error:
        assert re.match(r"line \d+: ", str(error))


@settings(max_examples=200)
@given(st.data())
def test_mutated_real_pages_are_pages_or_exposition_errors(data):
    text = data.draw(st.sampled_from(REAL_PAGES)).read_text()
    at = data.draw(st.integers(0, len(text)))
    cut = data.draw(st.integers(0, 30))
    noise = data.draw(st.text(st.sampled_from('{}",=#\\ \n\t\r\x00a1.eNI+-_:é'), max_size=6))
    try:
        page = parse(text[:at] + noise + text[at + cut :])
    except ExpositionError as error:
        assert re.match(r"line \d+: ", str(error))
    else:
        assert page.samples


@pytest.mark.parametrize("cut", [1, 10, 100, 1000, 4000])
def test_a_page_cut_in_the_middle_of_a_series_says_so(cut):
    text = REAL_PAGES[0].read_text()
    end = text.rindex("} ", 0, len(text) - cut) - 1
    page = parse(text[:end])
    assert page.skipped == 1
    assert page.first_problem.startswith(f"line {text[:end].count(chr(10)) + 1}: labels are broken near")


def test_long_labels_take_linear_time(monkeypatch):
    """Megabytes of escapes and braces, closed and not: a quadratic pattern would run into the suite's timeout."""
    monkeypatch.setattr("diagnose.exposition.MAX_LINE_CHARS", 10_000_000)
    size = 1_000_000
    assert parse('a{x="' + "\\\\}" * size + '"} 1').value("a") == 1
    with pytest.raises(ExpositionError):
        parse('a{x="' + "}\\" * size)


def test_pages_without_bounds_are_bounded(monkeypatch):
    long = 'a{x="' + "y" * 100_000 + '"} 1'
    page = parse(f"{long}\nb 1\nc 2\n")
    assert (page.skipped, page.first_problem) == (1, "line 1: longer than 64 KiB")
    monkeypatch.setattr("diagnose.exposition.MAX_SERIES", 3)
    page = parse("".join(f'a{{x="{n}"}} {n}\n' for n in range(5)))
    assert (page.value("a"), page.skipped) == (3, 2)
    assert "more than 3 series" in page.first_problem


def test_the_memory_of_series_is_bounded(monkeypatch):
    monkeypatch.setattr(ExpositionParser, "_MAX_CACHED", 2)
    parser = ExpositionParser()
    for _ in range(2):
        page = parser.parse("".join(f'a{{x="{n}"}} {n}\n' for n in range(5)))
        assert page.value("a") == 10
    assert len(parser._series) == 2
