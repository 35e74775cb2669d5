"""How other packages are asked and read: what they are shown, and that their findings are taken as kindly as they allow."""

from urllib.error import URLError
from urllib.request import urlopen

import pytest

from diagnose.hypotheses.registry import HYPOTHESES
from tests.accuracy.peers import MEANINGS, PEERS, read_generously, render, served
from tests.accuracy.windows import Case, View, make_case


@pytest.fixture(scope="module")
def storm() -> Case:
    return make_case(("preemption_storm",), "small", 0)


def get(url: str) -> str:
    with urlopen(url, timeout=10) as answer:
        return str(answer.read().decode())


def test_pages_follow_each_other_and_the_last_one_stays():
    with served(["a", "b"], dies=False) as url:
        assert [get(url) for _ in range(4)] == ["a", "b", "b", "b"]


def test_a_server_that_dies_answers_nothing_after_its_last_page():
    with served(["a"], dies=True) as url:
        assert get(url) == "a"
        with pytest.raises((URLError, ConnectionError)):
            get(url)


def test_every_meaning_is_a_hypothesis_of_ours():
    known = {hypothesis.name for hypothesis in HYPOTHESES}
    assert set(MEANINGS) == set(PEERS)
    assert {name for findings in MEANINGS.values() for names in findings.values() for name in names} <= known


def test_a_finding_counts_as_right_when_anything_it_can_mean_is(storm: Case):
    assert storm.moved and "preemption_storm" in storm.truth(View.VLLM).primary
    kind = read_generously(storm, "peer", [("queue_overload", "preemption_storm")])
    assert kind.is_right and not kind.false_supported
    wrong = read_generously(storm, "peer", [("device_degraded",)])
    assert wrong.is_wrong_and_confident and wrong.false_supported == {"device_degraded"}
    second = read_generously(storm, "peer", [("device_degraded",), ("preemption_storm",)])
    assert second.primary == "device_degraded"
    silent = read_generously(storm, "peer", [])
    assert silent.primary is None and not silent.supported


def test_a_peer_without_an_environment_is_said_to_be_absent(storm: Case):
    table = render([read_generously(storm, "inferpilot", [])], {}, 1)
    assert "for want of an environment: inferguard, inferpilot, vllm-doctor" in table
    assert "| preemption_storm | none 1 |" in table
