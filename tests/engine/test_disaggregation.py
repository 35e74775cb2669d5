"""Prefill and decode in two real processes: the same tokens as one engine, and an answer whatever happens to the other."""

import json
import os
import signal
import socket
import subprocess
import threading
import time

import pytest

from engine.model.registry import smollm2_path
from tests.engine.model_helpers import make_prompt
from tests.engine.pair import SMALL, Pair, complete, metrics, pair, steps, text_of
from tests.engine.serving import COMMAND, ROOT, command_environment, serving
from tests.requirements import covers

PROMPTS = [make_prompt(length, seed=length) for length in (40, 64, 65, 200, 333)]


@pytest.fixture(scope="module")
def alone():
    with serving(*SMALL) as server:
        yield server


@pytest.fixture(scope="module")
def two():
    with pair() as running:
        yield running


@covers("S6.8", "S8.14")
def test_a_pair_gives_the_tokens_of_one_engine(two: Pair, alone):
    for prompt in PROMPTS:
        assert text_of(complete(two.decode, prompt)) == text_of(complete(alone, prompt))
    here = metrics(two.decode)
    assert here['tokens_total{phase="received"}'] == sum(map(len, PROMPTS))
    assert here['tokens_total{phase="prefill"}'] == 0, "nothing of a prompt is computed on the decode side"
    assert here['step_duration_seconds_count{kind="decode"}'] == len(steps(two.decode))
    assert sum(value for name, value in here.items() if name.startswith("kv_transfer_failures_total")) == 0


def test_chunks_are_sent_while_later_ones_are_computed(two: Pair):
    """A prompt of 333 tokens is computed 64 at a time: six chunks, each with the blocks that it filled."""
    before = metrics(two.prefill), metrics(two.decode)
    complete(two.decode, make_prompt(333, seed=7))
    after = metrics(two.prefill), metrics(two.decode)
    sent, received = 'kv_transfer_chunks_total{direction="sent"}', 'kv_transfer_chunks_total{direction="received"}'
    assert after[0][sent] - before[0].get(sent, 0) == 6
    assert after[1][received] - before[1].get(received, 0) == 6
    block_bytes = 16 * 2 * 2 * 32 * 4  # tokens, K and V, layers, KV heads x head size, float32
    moved = 'kv_transfer_bytes_total{direction="received"}'
    assert after[1][moved] - before[1].get(moved, 0) == 21 * block_bytes


def test_received_blocks_are_cached_on_both_sides(two: Pair):
    prompt = make_prompt(160, seed=11)
    complete(two.decode, prompt)
    name = 'kv_transfer_bytes_total{direction="received"}'
    before = metrics(two.decode)[name]
    longer = complete(two.decode, [*prompt, *make_prompt(80, seed=12)])
    assert longer["usage"]["prompt_tokens_details"]["cached_tokens"] == 160
    assert metrics(two.decode)[name] - before == 5 * 16 * 2 * 2 * 32 * 4, "only what is not cached is sent"
    assert complete(two.prefill, prompt)["usage"]["prompt_tokens_details"]["cached_tokens"] >= 144


@pytest.mark.parametrize(
    "asked",
    [
        {"n": 3, "temperature": 0.8, "seed": 5},
        {"temperature": 0.7, "seed": 42, "top_p": 0.9},
        {"logprobs": 2},
        {"max_tokens": 1},
        {"repetition_penalty": 1.3},
    ],
    ids=lambda asked: "+".join(asked),
)
def test_a_pair_answers_as_one_engine_whatever_is_asked(two: Pair, alone, asked):
    prompt = make_prompt(150, seed=21)
    there, here = complete(two.decode, prompt, **asked), complete(alone, prompt, **asked)
    assert [choice["text"] for choice in there["choices"]] == [choice["text"] for choice in here["choices"]]
    if "logprobs" in asked:
        ours, theirs = (one["choices"][0]["logprobs"] for one in (there, here))
        assert ours["tokens"] == theirs["tokens"]
        assert ours["token_logprobs"] == pytest.approx(theirs["token_logprobs"], abs=1e-4)


def test_short_prompts_are_computed_where_they_are_decoded(two: Pair):
    before = metrics(two.decode)
    complete(two.decode, make_prompt(20, seed=31))
    after = metrics(two.decode)
    name = 'tokens_total{phase="prefill"}'
    assert after[name] - before[name] == 20


@covers("S6.8")
def test_the_decode_side_goes_on_when_its_prefill_instance_is_killed(alone):
    """In the middle of a transfer: SIGKILL sends no farewell."""
    slow = ("--drill-fault", "transfer=3000ms")
    os.environ["STALLSCOPE_DRILLS"] = "1"
    try:
        with pair(prefill=slow) as running:
            answers: list[str] = []
            asking = threading.Thread(target=lambda: answers.append(text_of(complete(running.decode, PROMPTS[4]))))
            asking.start()
            _wait(lambda: metrics(running.decode)['requests{state="transferring"}'] == 1)
            os.kill(running.prefill.process.pid, signal.SIGKILL)
            asking.join(60)
            assert answers == [text_of(complete(alone, PROMPTS[4]))]
            assert text_of(complete(running.decode, PROMPTS[3])) == text_of(complete(alone, PROMPTS[3]))
            found = metrics(running.decode)
            assert found['kv_transfer_failures_total{kind="lost"}'] == 1
            assert found['kv_blocks{state="active"}'] == 0
            assert found['requests{state="transferring"}'] == 0
    finally:
        del os.environ["STALLSCOPE_DRILLS"]


def test_a_transfer_that_takes_too_long_is_computed_here(alone):
    os.environ["STALLSCOPE_DRILLS"] = "1"
    try:
        with pair(prefill=("--drill-fault", "transfer=5000ms"), decode=("--transfer-timeout", "0.5")) as running:
            assert text_of(complete(running.decode, PROMPTS[3])) == text_of(complete(alone, PROMPTS[3]))
            assert metrics(running.decode)['kv_transfer_failures_total{kind="timeout"}'] == 1
    finally:
        del os.environ["STALLSCOPE_DRILLS"]


def test_a_client_that_leaves_during_a_transfer_leaves_nothing_behind():
    os.environ["STALLSCOPE_DRILLS"] = "1"
    try:
        with pair(prefill=("--drill-fault", "transfer=2000ms")) as running:
            body = json.dumps({"prompt": PROMPTS[4], "max_tokens": 5}).encode()
            with socket.create_connection(("127.0.0.1", running.decode.port), timeout=10) as connection:
                head = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body)
                connection.sendall(head + body)
                _wait(lambda: metrics(running.decode)['requests{state="transferring"}'] == 1)
            _wait(lambda: metrics(running.decode)['requests{state="transferring"}'] == 0)
            _wait(lambda: metrics(running.prefill)['requests{state="running"}'] == 0)
            for server in (running.prefill, running.decode):
                assert metrics(server)['kv_blocks{state="active"}'] == 0
    finally:
        del os.environ["STALLSCOPE_DRILLS"]


def test_a_decode_instance_starts_before_its_prefill_instance(alone):
    with socket.create_server(("127.0.0.1", 0)) as reserved:
        nobody = f"http://127.0.0.1:{reserved.getsockname()[1]}"
    with serving(*SMALL, "--role", "decode", "--prefill", nobody, seconds_to_ready=240) as decode:
        assert text_of(complete(decode, PROMPTS[2])) == text_of(complete(alone, PROMPTS[2]))
        assert metrics(decode)['kv_transfer_failures_total{kind="unreachable"}'] == 1


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("--block-size", "8"), 'engine: {"block_size":8} here, {"block_size":16} there'),
        (("--dtype", "float64"), "weights: "),
    ],
    ids=["block size", "dtype"],
)
def test_an_instance_whose_kv_does_not_fit_is_refused_at_start(two: Pair, options, says):
    command = [*COMMAND, "--port", "0", *SMALL, *options, "--role", "decode", "--prefill", two.prefill.url]
    result = subprocess.run(command, cwd=ROOT, env=command_environment(), capture_output=True, text=True, timeout=240)
    assert result.returncode == 2
    last = result.stderr.strip().splitlines()[-1]
    assert last.startswith(f"error: --prefill {two.prefill.url}: KV of this instance cannot serve that one; ")
    assert says in last


def test_an_ordinary_server_is_no_prefill_instance(alone):
    command = [*COMMAND, "--port", "0", *SMALL, "--role", "decode", "--prefill", alone.url]
    result = subprocess.run(command, cwd=ROOT, env=command_environment(), capture_output=True, text=True, timeout=240)
    assert result.returncode == 2
    assert "is no prefill instance: /disaggregation answers 404" in result.stderr.splitlines()[-1]


@pytest.mark.model
@pytest.mark.slow
def test_a_pair_gives_the_tokens_of_one_engine_with_a_real_model():
    model = ("--model", str(smollm2_path()), "--threads", "1", "--kv-blocks", "64")
    prompt = "The three primary colours are red, yellow and blue. Mixing two of them gives a secondary colour: red and yellow"
    with pair(both=model, decode=("--remote-prefill-tokens", "8")) as running:
        there = complete(running.decode, prompt, max_tokens=16)
        assert metrics(running.decode)['tokens_total{phase="prefill"}'] == 0
        assert text_of(there) == text_of(complete(running.prefill, prompt, max_tokens=16))


def _wait(condition, seconds: float = 20.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "the condition did not come true in time"
        time.sleep(0.02)
