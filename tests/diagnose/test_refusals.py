"""What people can get wrong, and the line that says what would be right: exit code 2, nothing on stdout, no traceback."""

import importlib.util
import io
import json
import sys
from importlib.machinery import ModuleSpec

import pytest

from diagnose.errors import SourceError
from diagnose.observation import Cut, When
from diagnose.secret_files import read_token
from diagnose.sources.replay import part_of
from diagnose.sources.trace_events import TraceFile
from probes.recording import Entry
from tests.diagnose.commands import complaint

VLLM = "vllm:num_requests_running {}\nvllm:generation_tokens_total {}\n"
PROMETHEUS = ("--prometheus", "http://127.0.0.1:1", "--match", 'job="llm"')
FILES = {
    "token": "word",
    "pair": "name:word",
    "bare": "no colon in it",
    "list.json": "[1]",
    "heads.json": json.dumps({"num_hidden_layers": 2, "num_attention_heads": 0, "hidden_size": 8, "head_dim": 4}),
    "a.prom": VLLM.format(1, 1),
    "b.prom": VLLM.format(1, 9),
    "stack.txt": "Thread 12 (idle)\n",
}


@pytest.fixture
def here(tmp_path, monkeypatch):
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["http://h:1", *PROMETHEUS], "--prometheus and a live target are two windows"),
        (["--pid", "1", *PROMETHEUS], "--prometheus and a live target are two windows"),
        ([*PROMETHEUS, "--baseline", "a.prom", "--baseline-at", "24h"], "--baseline and --baseline-at: one of them"),
        (
            [*PROMETHEUS, "--bearer-token-file", "token", "--basic-auth-file", "pair"],
            "--bearer-token-file and --basic-auth-file: one of them",
        ),
        (["a.prom", "--device", "abacus"], "--device 'abacus': no datasheet for it; known: "),
        (["a.prom", "b.prom", "--since", "9s", "--until", "2s"], "--since must be before --until"),
    ],
)
def test_options_that_do_not_go_together(stallscope, here, words, said):
    code, out, err = stallscope("diagnose", *words)
    assert (code, out) == (2, "")
    assert said in " ".join(err.split())


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--prometheus", "http://me:word@127.0.0.1:1", "--match", 'job="llm"'], "is shown in lists of processes"),
        ([*PROMETHEUS, "--ca-file", "none.pem"], "--ca-file none.pem: no such file"),
        ([*PROMETHEUS, "--basic-auth-file", "bare"], "--basic-auth-file: holds no USER:PASSWORD"),
        (["a.prom", "--model-config", "none.json"], "none.json: cannot be read: No such file"),
        (["a.prom", "--model-config", "a.prom"], "a.prom: is not JSON"),
        (["a.prom", "--model-config", "list.json"], "should be the object of a Hugging Face config.json"),
        (["a.prom", "--model-config", "heads.json"], "is not the config.json of a decoder"),
        (["--pid", "99999999"], "99999999"),
        (["http://[half", "--window", "1s"], "'http://[half' is not a URL"),
        (["a.prom", "b.prom", "--since", "5s"], "has no times that --since and --until could choose from"),
        (["stack.txt"], "stack.txt: output of py-spy without a stack in it"),
    ],
)
def test_sources_and_files_that_cannot_be_used(stallscope, here, words, said):
    assert said in complaint(stallscope("diagnose", *words, "-q"))


@pytest.mark.parametrize(
    ("variable", "value", "said"),
    [
        ("STALLSCOPE_PROMETHEUS_TOKEN", "wo\trd", "the bearer token holds characters that no HTTP header may have"),
        ("STALLSCOPE_PROMETHEUS_TOKEN", "wörd", "the bearer token holds characters that no HTTP header may have"),
        ("STALLSCOPE_PROMETHEUS_BASIC_AUTH", "nobody", "STALLSCOPE_PROMETHEUS_BASIC_AUTH: holds no USER:PASSWORD"),
    ],
)
def test_secrets_of_the_environment_are_checked_and_not_shown(stallscope, monkeypatch, variable, value, said):
    monkeypatch.setenv(variable, value)
    err = complaint(stallscope("diagnose", *PROMETHEUS, "-q"))
    assert said in err
    assert value not in err


def test_a_token_of_two_words_is_none(here):
    with pytest.raises(SourceError, match="must hold one word of printable ASCII"):
        read_token(here / "bare")


def test_what_is_too_large_is_said_to_be(stallscope, here, monkeypatch):
    monkeypatch.setattr("diagnose.sources.content.MAX_TEXT_BYTES", 1000)
    (here / "large.prom").write_text(VLLM.format(1, 1) * 40)
    assert "only a log may be that large" in complaint(stallscope("diagnose", "large.prom"))
    series = {"metric": {"__name__": "vllm:num_requests_running"}, "values": [[at, "1"] for at in range(5)]}
    answer = {"status": "success", "data": {"resultType": "matrix", "result": [series]}}
    (here / "answer.json").write_text(json.dumps(answer))
    monkeypatch.setattr("diagnose.sources.pages._MAX_MOMENTS", 4)
    assert "5 moments; ask for at most 4 (a longer step)" in complaint(stallscope("diagnose", "answer.json"))


def test_a_trace_from_a_pipe_is_refused(stallscope, monkeypatch):
    events = [{"ph": "X", "cat": "kernel", "name": "gemm", "ts": 1, "dur": 2, "args": {"stream": 7}}] * 3
    trace = json.dumps({"schemaVersion": 1, "deviceProperties": [], "traceEvents": events})
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(trace.encode())))
    assert "-: a trace is read from a file, more than once" in complaint(stallscope("diagnose", "-"))


def test_a_trace_that_goes_on_as_something_else_is_no_trace(here, monkeypatch):
    monkeypatch.setattr("diagnose.sources.trace_events._MAX_EVENT_BYTES", 64)
    (here / "odd.json").write_text('{"traceEvents": [' + "x" * 4000)
    with pytest.raises(SourceError, match=r"near byte .* there is no JSON event"):
        list(TraceFile(here / "odd.json", lambda _: None))


def test_a_part_of_what_knows_no_time_is_refused():
    pages = [Entry(-1.0, "exposition", VLLM.format(1, n)) for n in range(2)]
    with pytest.raises(SourceError, match="has no times"):
        part_of("a.prom", pages, Cut(When(1.0, is_unix=False), None))


def test_a_foreign_package_in_a_rooms_place_is_named(stallscope, monkeypatch):
    """PyPI has distributions of the same names, and one would answer in ours' place."""
    find = importlib.util.find_spec

    def foreign(name: str, package: str | None = None):
        return (
            ModuleSpec(name, None, origin="/elsewhere/runbooks/__init__.py")
            if name == "runbooks"
            else find(name, package)
        )

    monkeypatch.setattr(importlib.util, "find_spec", foreign)
    err = complaint(stallscope("explain"))
    assert "package 'runbooks' comes from /elsewhere/runbooks/__init__.py" in err
    assert "install stallscope in an environment of its own" in err
