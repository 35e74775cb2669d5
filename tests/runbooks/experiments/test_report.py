"""A comparison as text, Markdown, HTML with plots and JSON, and written into the diagnosis that asked for it."""

import json
import re
from typing import Any

import pytest

from diagnose.policy import DEFAULT_POLICY
from runbooks.experiments.analysis import Question, analyse
from runbooks.experiments.figures import Block
from runbooks.experiments.report import Report, apply_to_diagnosis, html, markdown, text_lines, to_json
from runbooks.experiments.run import Plan, Run
from runbooks.experiments.settings import _progress, notes_of
from runbooks.experiments.statistics import Looks
from tests.runbooks.experiments.blocks import make_pairs


def report(blocks: list[Block], **over: Any) -> Report:
    question = Question(hypothesis="prefill_interference")
    fields: dict[str, Any] = {
        "labels": {"A": "max_batched_tokens=1024", "B": "max_batched_tokens=128"},
        "differences": ("max_batched_tokens 1024 -> 128",),
        "load": ("rate=1", "blocks of 40 s, the first 10 s not measured; seed 1"),
        "question": question,
        "result": analyse(blocks, question),
        "blocks": tuple(blocks),
        "notes": (),
    }
    return Report(**(fields | over))


CONFIRMED = report(make_pairs(figures={"ttft_p50": 0.6}))


def test_text_says_verdict_arms_figures_and_how_it_was_judged():
    text = "\n".join(text_lines(CONFIRMED))
    assert text.startswith("Experiment: confirmed\nConfirmed for this target under this load: ITL p99 ")
    assert "The price in arm B: TTFT p50 400 ms -> 600 ms" in " ".join(text.split())
    assert re.search(r"^ITL p99 +\d+ ms +\d+ ms +-\d+ ms +\[-\d+ ms, -\d+ ms\] +0\.031$", text, re.MULTILINE)
    assert "  A  max_batched_tokens=1024" in text
    assert all(len(line) <= 80 for line in text.splitlines())


def test_mismatches_are_told_and_no_difference_is():
    text = "\n".join(text_lines(report(make_pairs(others=0.4))))
    assert "Conditions that did not match\n  traffic of others: 0 %" in text
    assert "Confirmed" not in text


def test_markdown_keeps_the_table_in_a_fence():
    text = markdown(CONFIRMED)
    assert text.startswith("# Experiment: confirmed\n")
    assert text.count("```") == 2
    table = text.split("```")[1]
    assert "ITL p99" in table and "95 % interval" in table
    assert "- A  max_batched_tokens=1024\n- B  max_batched_tokens=128" in text


def test_html_has_both_plots_and_needs_nothing_else():
    hostile = report(make_pairs(), labels={"A": "<script>x</script>", "B": "b"})
    page = html(hostile)
    assert page.count("<svg") == 2
    for title in ("Inter-token latency per arm", "ITL p99 per pair of blocks"):
        assert title in page
    assert "<script" not in page and "&lt;script&gt;" in page
    assert not re.search(r'(src|href)="(?!#)', page)
    assert html(report([])).count("<svg") == 0, "nothing was completed, nothing is drawn"


def test_json_holds_values_per_block_and_no_single_gap():
    found = json.loads(json.dumps(to_json(CONFIRMED)))
    assert (found["stallscope_experiment"], found["outcome"], found["pairs"]) == (1, "confirmed", 6)
    assert found["rows"]["itl_p99"]["difference"]["p"] == pytest.approx(2 / 64)
    assert [block["arm"] for block in found["blocks"]] == ["A", "B"] * 6
    block = found["blocks"][0]
    assert "gaps" not in block and block["figures"]["itl_p99"] == pytest.approx(0.4, abs=0.05)
    assert block["conditions"]["lengths"] == {"prompt": 200, "output": 60, "hit_rate": 0}


def diagnosis() -> dict[str, Any]:
    return {
        "primary": "prefill_interference",
        "verdicts": {"prefill_interference": {"verdict": "supported", "evidence": ["earlier"]}},
        "decision": {"kind": "experiment", "summary": "compare"},
    }


@pytest.mark.parametrize(
    ("blocks", "verdict", "primary", "kind"),
    [
        (make_pairs(), "confirmed", "prefill_interference", "change"),
        (make_pairs(first=0.4, second=0.401, noise=0.004), "refuted", None, "experiment"),
        (make_pairs(first=0.4, second=0.36, noise=0.15, seed=4), "supported", "prefill_interference", "experiment"),
        (make_pairs(others=0.5), "supported", "prefill_interference", "experiment"),
    ],
    ids=["confirmed", "a null", "not shown", "not comparable"],
)
def test_only_a_comparison_that_decides_changes_a_verdict(blocks, verdict, primary, kind):
    before = diagnosis()
    after = apply_to_diagnosis(before, report(blocks))
    assert before == diagnosis(), "a copy"
    assert after["verdicts"]["prefill_interference"]["verdict"] == verdict
    assert (after["primary"], after["decision"]["kind"]) == (primary, kind)
    evidence = after["verdicts"]["prefill_interference"]["evidence"]
    assert evidence[0] == "earlier" and evidence[1]["source"] == "stallscope experiment"
    assert after["experiment"]["outcome"] == report(blocks).result.outcome.value


PLAN = Plan(Looks((6,)), 40.0, 10.0, 20.0, 1, (), DEFAULT_POLICY)


def test_notes_tell_of_confounded_arms_crashes_and_interruptions():
    run = Run(make_pairs(2), crash="arm B crashed: exit code 3", interrupted=True)
    notes = notes_of(run, PLAN, ("max_batched_tokens 128 -> 64", "max_sequences 64 -> 8"))
    assert notes[0].startswith("Confounded: the arms differ in more than one thing")
    assert notes[1:] == (
        "arm B crashed: exit code 3; 2 of 6 pairs were completed.",
        "Interrupted: 2 of 6 pairs were completed; what was changed has been put back.",
    )
    assert notes_of(Run(make_pairs(6)), PLAN, ("max_batched_tokens 128 -> 64",)) == ()


def test_progress_is_a_line_per_block_where_there_is_no_terminal(capsys):
    with _progress(PLAN, quiet=False) as on_progress:
        for at in (0.5, 20.0):
            on_progress(0, "A", at)
        on_progress(3, "B", 1.0)
    assert capsys.readouterr().err == (
        "block 1 of 12: arm A, at least 480.0 s left\nblock 4 of 12: arm B, at least 360.0 s left\n"
    )


def test_progress_is_a_bar_with_the_time_left_on_a_terminal(capsys, monkeypatch):
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    with _progress(PLAN, quiet=False) as on_progress:
        on_progress(3, "B", 20.0)
    assert "pair 2 of 6, arm B" in capsys.readouterr().err
