"""What a real vLLM 0.32 did, replayed: recorded once by `python -m tests.vllm.conditions tests/data`."""

import json
from pathlib import Path

from tests.vllm.expectations import (
    expect_interference,
    expect_nothing_claimed_by_scrape_alone,
    expect_pressure,
    expect_quiet,
    expect_reservation,
)

DATA = Path(__file__).parent.parent / "data"


def test_decodes_alone_are_no_interference():
    expect_quiet(DATA / "vllm-quiet.rec")


def test_by_scrape_alone_decodes_are_not_called_interference(tmp_path: Path):
    expect_nothing_claimed_by_scrape_alone(DATA / "vllm-quiet.rec", tmp_path)


def test_long_prompts_beside_streams_are_interference_and_the_account_is_what_clients_saw():
    client = json.loads((DATA / "vllm-mixed.client.json").read_text())
    expect_interference(DATA / "vllm-mixed.rec", DATA / "vllm-quiet.rec", client)


def test_after_the_load_the_memory_is_reserved_and_not_occupied():
    expect_reservation(DATA / "vllm-after.rec")


def test_a_tiny_pool_is_exhausted_before_vllm_counts_a_preemption(tmp_path: Path):
    expect_pressure(DATA / "vllm-pressure.rec", tmp_path)


def test_recordings_are_small():
    for path in DATA.glob("vllm-*.rec"):
        assert path.stat().st_size < 300 * 1024, path.name
