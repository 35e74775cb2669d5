"""Traces are read as a stream, in whatever layout they come, up to where they break off."""

import gzip
import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from diagnose.errors import SourceError
from diagnose.sources import trace_events
from diagnose.sources.trace_events import TraceEvent, TraceFile
from diagnose.sources.trace_head import is_trace
from tests.traces import Trace, steady


def read(path: Path) -> tuple[list[TraceEvent], TraceFile]:
    trace = TraceFile(path, lambda _: None)
    return list(trace), trace


@pytest.fixture
def text() -> str:
    return Trace(rank=1).run(steady(12)).text()


def test_every_event_is_read_with_its_fields(tmp_path, text):
    path = tmp_path / "t.json"
    path.write_text(text)
    events, trace = read(path)
    raw = json.loads(text)["traceEvents"]
    assert [(e.ph, e.cat, e.name, e.ts, e.dur) for e in events] == [
        (r["ph"], r.get("cat", ""), r["name"], r["ts"], r.get("dur", 0)) for r in raw
    ]
    kernel = next(event for event in events if event.cat == "kernel")
    assert kernel.args is not None
    assert (kernel.args.correlation, kernel.args.grid[1:]) == (1001, (1, 1))
    assert not trace.is_cut_off
    assert trace.header["distributedInfo"]["rank"] == 1


def variants(text: str) -> dict[str, str]:
    document = json.loads(text)
    shuffled = [dict(reversed(event.items())) for event in document["traceEvents"]]
    return {
        "compact": json.dumps(document, separators=(",", ":")),
        "events first": json.dumps({"traceEvents": document["traceEvents"], **document}),
        "other field order": json.dumps(document | {"traceEvents": shuffled}),
        "bare array": json.dumps(document["traceEvents"]),
        "open array": json.dumps(document["traceEvents"])[:-1],
        "nested lists of objects": text.replace('"cbid": 211', '"frames": [{"a": 1}, {"ph": "b"}], "cbid": 211'),
        "not a number": text.replace('"warps per SM": 12.4', '"warps per SM": NaN'),
        "odd names": text.replace("aten::linear", 'quo\\"ted }, {\\"ph\\" \\u00fc'),
    }


@pytest.mark.parametrize("name", list(variants(Trace().text())))
def test_other_layouts_hold_the_same_events(tmp_path, text, name):
    path = tmp_path / "t.json"
    path.write_text(variants(text)[name])
    events, trace = read(path)
    expected = json.loads(text)["traceEvents"]
    assert [(event.cat, event.ts) for event in events] == [(e.get("cat", ""), e["ts"]) for e in expected]
    assert trace.is_cut_off == (name == "open array")
    assert is_trace(path.read_bytes()[:4096])


def test_a_broken_character_costs_nothing(tmp_path, text):
    path = tmp_path / "t.json"
    path.write_bytes(text.encode().replace(b"aten::linear", b"aten::\xff\xfe"))
    assert len(read(path)[0]) == len(json.loads(text)["traceEvents"])


def test_an_event_of_wrong_types_is_counted_and_left_out(tmp_path, text):
    path = tmp_path / "t.json"
    path.write_text(text.replace('"name": "aten::linear"', '"name": 7', 1))
    events, trace = read(path)
    assert trace.num_unreadable == 1
    assert len(events) == len(json.loads(text)["traceEvents"]) - 1


@settings(max_examples=40, deadline=None)
@given(chunk=st.integers(1, 5000), share=st.floats(0.2, 1.0))
def test_wherever_chunks_and_the_file_end(tmp_path_factory, chunk, share):
    """The events before the break are all there, and the break is seen."""
    text = Trace(layers=1).run(steady(3)).text()
    cut = text[: round(share * len(text))]
    path = tmp_path_factory.mktemp("cut") / "t.json"
    path.write_text(cut)
    whole = [event["ts"] for event in json.loads(text)["traceEvents"]]
    size, trace_events._CHUNK_BYTES = trace_events._CHUNK_BYTES, chunk
    try:
        events, trace = read(path)
    finally:
        trace_events._CHUNK_BYTES = size
    assert [event.ts for event in events] == whole[: len(events)]
    ended = '],"traceName"' in cut or cut.rstrip().endswith("\n  ]")
    assert trace.is_cut_off is not ended
    assert len(events) >= cut.count("\n},\n") - 1


@pytest.mark.parametrize("steps", [8, 200])  # less and more than what is unpacked at once
@pytest.mark.parametrize("share", [0.3, 0.9])
def test_a_gzip_that_breaks_off_is_read_up_to_there(tmp_path, share, steps):
    text = Trace().run(steady(steps)).text()
    data = gzip.compress(text.encode())
    path = tmp_path / "t.json.gz"
    path.write_bytes(data)
    events, trace = read(path)
    assert not trace.is_cut_off
    path.write_bytes(data[: round(share * len(data))])
    less, trace = read(path)
    assert trace.is_cut_off
    assert 0 < len(less) < len(events)


def test_what_is_no_json_is_said_so(tmp_path, monkeypatch):
    monkeypatch.setattr(trace_events, "_MAX_EVENT_BYTES", 4096)
    monkeypatch.setattr(trace_events, "_CHUNK_BYTES", 1024)
    path = tmp_path / "t.json"
    path.write_text('{"traceEvents": [' + "x" * 20_000)
    with pytest.raises(SourceError, match="not a trace: near byte"):
        read(path)
    path.write_text('{"baseTimeNanoseconds": 1, "other": [' + "1, " * 20_000)
    with pytest.raises(SourceError, match="holds no array traceEvents"):
        read(path)


def test_progress_ends_at_the_whole_file(tmp_path, text):
    path = tmp_path / "t.json.gz"
    path.write_bytes(gzip.compress(text.encode()))
    shares: list[float] = []
    list(TraceFile(path, shares.append))
    assert shares == sorted(shares)
    assert shares[-1] == 1.0


@pytest.mark.parametrize(
    ("head", "expected"),
    [
        (b'{"schemaVersion": 1, "deviceProperties": [', True),
        (b'{"traceEvents":[', True),
        (b'[ {"name": "x", "ph": "X"}', True),
        (b'{"stallscope_steps": 1}', False),
        (b"# HELP vllm:x y\nvllm:x 1\n", False),
        (b'[{"a": 1}]', False),
        (b"", False),
        (b"\x1f\x8bjunk", False),
        (gzip.compress(b"# HELP x y\n"), False),
    ],
)
def test_what_a_trace_looks_like(head, expected):
    assert is_trace(head) is expected
