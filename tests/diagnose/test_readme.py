"""Commands of the README are run as they stand there: only the addresses and files of a reader's own are put in."""

import io
import os
import re
import shutil
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.builders import make_steps, with_prefill
from tests.commands import commands_in
from tests.diagnose.commands import recording
from tests.diagnose.fake_target import FakeEngine
from tests.diagnose.test_prometheus_errors import AT, answering, fleet
from tests.traces import Trace, steady

ROOT = Path(__file__).resolve().parents[2]
DATA = ROOT / "tests" / "data"
README = (ROOT / "README.md").read_text(encoding="utf-8")
COMMANDS = commands_in(README)
ELSEWHERE = {
    "serve": "tests/engine/serving.py",
    "dashboard": "tests/dashboard/test_command.py",
    "experiment": "tests/runbooks/experiments/test_command.py",
    "drill": "tests/runbooks/test_drill.py",
    "demo": "tests/runbooks/test_demo.py",
    "runbook": "tests/runbooks/response/test_command.py",
}
"""Commands that start something that stays or takes minutes -> where they are run."""
RUN = [words for words in COMMANDS if len(words) > 1 and words[0] not in ELSEWHERE]
REPORTS = {0, 1, 3, 4}
"""Exit codes of a command that did what it says; 2 is that it could not."""


@pytest.fixture
def there(tmp_path, monkeypatch) -> Iterator[dict[str, str]]:
    """What the README takes for granted: a server, a Prometheus, and files in the working directory. Word -> what is meant."""
    monkeypatch.chdir(tmp_path)
    shutil.copy(DATA / "interference.rec", tmp_path / "incident.rec")
    recording(tmp_path / "good.rec", make_steps(300))
    (tmp_path / "engine.log").write_bytes((DATA / "vllm" / "engine-kv.log.gz").read_bytes())
    for rank in (0, 1):
        Trace(rank=rank).run(steady()).write(tmp_path / f"rank{rank}.trace.json.gz")
    for number in (1, 2):
        shutil.copy(DATA / f"vllm-0.32.0-decode-0{number}.prom", tmp_path / f"scrape{number}.prom")
    monkeypatch.setattr("diagnose.commands.prometheus.time.time", lambda: AT)
    engine = FakeEngine(make_steps(4000, with_prefill(5, 1500)), per_scrape=100)
    with ExitStack() as stack:
        yield {
            "http://127.0.0.1:8000": stack.enter_context(engine.serving()).url,
            "http://prometheus:9090": stack.enter_context(answering(fleet)),
            "4242": str(os.getpid()),
            "NAME": "prefill_interference",
        }


@pytest.mark.parametrize("words", RUN, ids=" ".join)
def test_a_command_of_the_readme_does_what_it_says(words, there, stallscope, monkeypatch):
    if "-" in words:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO((DATA / "vllm/engine-kv.log.gz").read_bytes())))
    if words[0] == "record":
        Path("good.rec").unlink()
    code, out, err = stallscope(*(there.get(word, word) for word in words))
    assert code in REPORTS, err
    if "-o" in words:
        assert Path(words[words.index("-o") + 1]).stat().st_size > 100
    else:
        assert out


def test_what_is_not_run_here_is_run_where_it_says():
    for command, where in ELSEWHERE.items():
        assert re.search(rf"\b{command}\b", (ROOT / where).read_text(encoding="utf-8")), where


def test_every_first_step_is_among_them():
    assert {"doctor", "diagnose", "record", "sources", "explain"} <= {words[0] for words in RUN}


def test_documents_that_the_readme_links_to_exist():
    for link in re.findall(r"\]\(([^)#]+)", README):
        assert link.startswith("http") or (ROOT / link).exists(), link


def test_accuracy_figures_are_those_of_the_latest_run():
    results = (ROOT / "tests/accuracy/results/accuracy.md").read_text(encoding="utf-8")
    rows = re.findall(
        r"^\| .*? \| ([\d.]+) % \(([\d.]+-[\d.]+)\) \| ([\d.]+) % \(([\d.]+-[\d.]+)\) \|$", README, re.MULTILINE
    )
    assert len(rows) == 9
    for right, right_interval, wrong, wrong_interval in rows:
        shown = rf"\| {right} % \([\d/]+; {right_interval}\) \| {wrong} % \([\d/]+; {wrong_interval}\) \|"
        assert re.search(shown, results), (right, wrong)


@pytest.mark.parametrize(
    ("row", "peer", "place"),
    [
        ("schedule() of 256 decodes, vLLM", "schedule() 256 decodes  ", 0),
        ("looking up a hashed prompt that is cached, vLLM", "look up a hashed 4096-token prompt: hit", 0),
        ("a cached prefix taken and given back, vLLM", "take and give back a cached prefix", 0),
        ("eviction, nano-vllm", "evict and hand out", 1),
    ],
)
def test_ratios_to_peers_are_those_of_the_latest_run(row, peer, place):
    lines = (ROOT / "tests/benchmarks/results/policy_vs_peers.txt").read_text(encoding="utf-8").splitlines()
    medians = [
        float(re.findall(r"([\d.]+) \([\d.]+-[\d.]+\)", line)[place])
        for line in lines
        if line.startswith(peer) and " us/" in line
    ]
    told = re.search(rf"^\| {re.escape(row)} / ours \| ([\d.]+) to ([\d.]+)x", README, re.MULTILINE)
    assert told is not None and len(medians) == 3
    digits = len(told[1].partition(".")[2])
    assert (float(told[1]), float(told[2])) == (round(min(medians), digits), round(max(medians), digits))


def test_exit_codes_are_those_of_the_command():
    from diagnose.commands.diagnose import INTERRUPTED
    from diagnose.errors import ExitCode

    told = {int(code) for code in re.findall(r"^\| (\d+) \|", README, re.MULTILINE)}
    assert told == {*map(int, ExitCode), INTERRUPTED}
