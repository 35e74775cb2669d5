"""Arrivals are seeded, open loop, and the same in both blocks of a pair."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runbooks.errors import ExperimentError
from runbooks.experiments.workload import Arrival, Workload, parse_lengths, parse_load, prompt_text, read_trace


@given(st.integers(0, 50), st.sampled_from(["poisson", "constant", "burst"]))
def test_blocks_of_a_pair_are_equal_and_pairs_differ(pair, arrivals):
    workload = Workload([parse_load(f"rate=2,arrivals={arrivals},prompt=10-90,output=lognormal:40,0.5")], seed=4)
    block = workload.block(pair, 30.0)
    assert block == workload.block(pair, 30.0)
    assert block != workload.block(pair + 1, 30.0)
    assert [arrival.at for arrival in block] == sorted(arrival.at for arrival in block)
    assert all(0 <= arrival.at < 30 for arrival in block)
    assert all(10 <= arrival.prompt_words <= 90 and arrival.output_tokens >= 1 for arrival in block)


@pytest.mark.parametrize("arrivals", ["poisson", "constant", "burst"])
def test_the_rate_is_the_rate_whatever_the_shape(arrivals):
    block = Workload([parse_load(f"rate=5,arrivals={arrivals}")]).block(0, 2000.0)
    assert len(block) == pytest.approx(10_000, rel=0.05)
    if arrivals == "burst":
        assert all(arrival.at % 10 < 10 / 3 for arrival in block)


def test_several_classes_arrive_among_each_other():
    block = Workload([parse_load("rate=1,prompt=24"), parse_load("rate=0.2,prompt=260")]).block(0, 100.0)
    assert {arrival.prompt_words for arrival in block} == {24, 260}
    assert [arrival.at for arrival in block] == sorted(arrival.at for arrival in block)


def test_prompts_share_their_prefix_within_a_block_and_nothing_across_blocks():
    arrival = Arrival(0.0, 60, 10, 40, 0)
    first, second = prompt_text(arrival, "1-0", "0").split(), prompt_text(arrival, "1-0", "1").split()
    other_block, other_group = (
        prompt_text(arrival, "1-1", "0").split(),
        prompt_text(arrival._replace(prefix_group=1), "1-0", "0").split(),
    )
    assert first[:41] == second[:41]
    assert first != second
    assert first[0] != other_block[0], "the very first word differs, so that not one block of KV is shared"
    assert first[1:41] != other_group[1:41]
    assert len(first) == 61


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("rate", "write NAME=VALUE"),
        ("speed=3", "rate, arrivals, prompt"),
        ("rate=0", "rate must be above 0"),
        ("rate=x", "could not convert"),
        ("arrivals=often", "poisson, constant, burst"),
        ("prompt=0", "write 256, 128-512"),
        ("prompt=9-3", "write 256, 128-512"),
        ("groups=0", "groups >= 1"),
    ],
)
def test_a_wrong_load_says_which_part(text, message):
    with pytest.raises(ExperimentError, match=message):
        parse_load(text)
    with pytest.raises(ExperimentError):
        parse_lengths("many")


TRACES = {
    "mooncake.jsonl": '{"timestamp": 5000, "input_length": 6758, "output_length": 500, "hash_ids": [0, 1]}\n'
    '{"timestamp": 8000, "input_length": 100, "output_length": 20}\n',
    "azure.csv": "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.6805900,6758,500\n"
    "2023-11-16 18:15:49.6805900,100,20\n",
    "burstgpt.csv": "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n5,ChatGPT,6758,500,7258,API\n"
    "8,ChatGPT,100,20,120,API\n",
}


@pytest.mark.parametrize("name", TRACES)
def test_public_traces_are_read_by_their_fields(tmp_path, name):
    path = tmp_path / name
    path.write_text(TRACES[name])
    trace = read_trace(path)
    assert [(arrival.prompt_words, arrival.output_tokens) for arrival in trace] == [(6758, 500), (100, 20)]
    assert trace[0].at == 0
    assert trace[1].at == pytest.approx(3)


def test_a_trace_is_replayed_in_stretches_and_starts_over():
    trace = [Arrival(float(at), 10, 10, 0, 0) for at in range(100)]
    workload = Workload((), trace)
    assert [arrival.at for arrival in workload.block(0, 10)] == list(range(10))
    assert len(workload.block(1, 10)) == 10
    assert len(workload.block(50, 10)) == 10


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "holds no arrival"),
        ("a,b\n1,2\n", "row 1 is not an arrival"),
        ('{"timestamp": 1}\n', "row 1"),
        ("{nope\n", "line 1 is not JSON"),
    ],
)
def test_a_wrong_trace_names_its_row(tmp_path, text, message):
    path = tmp_path / "trace"
    path.write_text(text)
    with pytest.raises(ExperimentError, match=message):
        read_trace(path)
    with pytest.raises(ExperimentError, match="cannot be read"):
        read_trace(tmp_path / "absent")
