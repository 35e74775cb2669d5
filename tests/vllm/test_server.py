"""Conditions induced on a real vLLM server, seen through the probe over HTTP."""

import json
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.vllm import conditions
from tests.vllm.expectations import (
    expect_interference,
    expect_nothing_claimed_by_scrape_alone,
    expect_pressure,
    expect_quiet,
    expect_reservation,
)
from tests.vllm.tiny import write_served_model

pytestmark = [
    pytest.mark.vllm,
    pytest.mark.skipif(find_spec("vllm") is None, reason="needs vLLM: make test-vllm"),
    pytest.mark.timeout(2400),
]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_served_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def roomy(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory with the recordings of a server whose pool has room."""
    directory = tmp_path_factory.mktemp("roomy")
    conditions.roomy(model, directory)
    return directory


@pytest.fixture(scope="module")
def pressure(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("pressure")
    conditions.pressure(model, directory)
    return directory


def test_decodes_alone_are_no_interference(roomy: Path):
    expect_quiet(roomy / "vllm-quiet.rec")


def test_by_scrape_alone_decodes_are_not_called_interference(roomy: Path, tmp_path: Path):
    expect_nothing_claimed_by_scrape_alone(roomy / "vllm-quiet.rec", tmp_path)


def test_long_prompts_beside_streams_are_interference_and_the_account_is_what_clients_saw(roomy: Path):
    client = json.loads((roomy / "vllm-mixed.client.json").read_text())
    expect_interference(roomy / "vllm-mixed.rec", roomy / "vllm-quiet.rec", client)


def test_after_the_load_the_memory_is_reserved_and_not_occupied(roomy: Path):
    expect_reservation(roomy / "vllm-after.rec")


def test_a_tiny_pool_is_exhausted_before_vllm_counts_a_preemption(pressure: Path, tmp_path: Path):
    expect_pressure(pressure / "vllm-pressure.rec", tmp_path)


def test_the_servers_logs_tell_of_the_probe_and_of_no_fault(roomy: Path, pressure: Path):
    for log in (roomy / "roomy.log", pressure / "pressure.log"):
        text = log.read_text(errors="replace")
        assert text.count("stallscope: the probe is on") == 1
        assert "probe hook failed" not in text
        assert "stays off" not in text
