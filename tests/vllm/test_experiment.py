"""A controlled comparison of two launches of a real vLLM that differ in their token budget."""

import shlex
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.runbooks.experiments.on_engine import compare, interference, measure_pace
from tests.vllm.conditions import COMMON
from tests.vllm.server import ENVIRONMENT, VllmServer, serve_command
from tests.vllm.tiny import write_served_model

pytestmark = [
    pytest.mark.vllm,
    pytest.mark.skipif(find_spec("vllm") is None, reason="needs vLLM: make test-vllm"),
    pytest.mark.timeout(2400),
]
BUDGETS = 2048, 128
WORDS, TOKENS = 200, 40
"""Some 1,300 tokens of the byte tokenizer: one chunk of the larger budget, ten of the smaller one."""
TIMES = ["--block", "18s", "--washout", "4s", "--drain", "20s"]


def test_a_smaller_budget_of_a_real_vllm_is_confirmed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    model = write_served_model(tmp_path)
    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    options = [[*COMMON, "--max-model-len", "8192", "--max-num-batched-tokens", str(budget)] for budget in BUDGETS]
    with VllmServer(model, options[0], tmp_path / "pace.log") as server:
        load = interference(measure_pace(server.url, WORDS), WORDS, TOKENS)
    first, second = (shlex.join(serve_command(model, "{port}", one)) for one in options)
    report = compare("--launch-a", first, "--launch-b", second, "--keep-running", *load, *TIMES)
    told = "\n".join([*report["reading"], *report["mismatches"], *report["notes"]])
    assert report["differences"] == [f"max_batched_tokens {BUDGETS[0]} -> {BUDGETS[1]}"], told
    assert report["outcome"] == "confirmed", told
    assert report["rows"]["itl_p99"]["difference"]["high"] < 0
