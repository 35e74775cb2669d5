"""Several engines in one log: data-parallel ranks, and the pods of a service. Each is a series of its own."""

import json

import pytest

from diagnose.commands.diagnose import judge
from diagnose.diagnosis import Diagnosis
from diagnose.observation import Observation
from diagnose.sources.engine_log import read_log
from diagnose.sources.log_lines import unwrapped
from diagnose.sources.log_signals import LogEvidence
from tests.diagnose.cases import texts, verdict

V1 = (
    "INFO 11-03 07:00:{at:02} [loggers.py:118] Engine {engine:03}: Avg prompt throughput: 9.0 tokens/s, Avg generation "
    "throughput: {tokens} tokens/s, Running: {running} reqs, Waiting: {waiting} reqs, "
    "GPU KV cache usage: 20.0%, Prefix cache hit rate: 0.0%"
)
SGLANG = (
    "[2026-11-03 05:54:{at:02} DP{engine} TP0] Decode batch, #running-req: {running}, #token: 900, token usage: 0.20, "
    "cuda graph: True, gen throughput (token/s): {tokens}, #queue-req: {waiting}"
)
LMDEPLOY = (
    "[2026-11-03 05:54:{at:02} DP{engine}] Avg thr (in/out): 9.0 / {tokens} tokens/s, Server (succeeded/failed/routed/waiting): "
    "1 / 0 / 5 / 0, Engine (running/waiting): {running} / {waiting}, KV cache: 20.0%,"
)
FORMS = {"vllm": V1, "sglang": SGLANG, "lmdeploy": LMDEPLOY}
BUSY, IDLE = {"running": 40, "waiting": 30, "tokens": 900.0}, {"running": 4, "waiting": 0, "tokens": 90.0}


def lines(form: str, *engines: dict[str, float], count: int = 5) -> list[str]:
    return [form.format(at=10 * n, engine=index, **load) for n in range(count) for index, load in enumerate(engines)]


def look(*log: str) -> Diagnosis:
    observation = Observation("a log")
    observation.add_source(LogEvidence(read_log("a log", log)))
    return judge(observation, None, (), is_live=False, target="a log")


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_ranks_of_one_log_are_replicas(form):
    diagnosis = look(*lines(form, BUSY, IDLE, IDLE))
    signals = diagnosis.case.signals
    loads = [(s.gauges["running"].mean, s.gauges["waiting"].mean) for s in signals.replicas.values()]
    assert loads == [(40, 30), (4, 0), (4, 0)]
    assert signals.num_replicas == 3
    assert signals.gauges["running"].last == 48
    assert verdict(diagnosis, "replica_imbalance") == "supported"
    assert "requests wait on 1 of 3 replicas" in texts(diagnosis, "replica_imbalance")
    assert signals.replicas[min(signals.replicas)].rate("tokens_decode") == pytest.approx(900)


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_ranks_that_share_the_load_are_no_imbalance(form):
    assert verdict(look(*lines(form, BUSY, BUSY)), "replica_imbalance") == "refuted"


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_one_rank_says_nothing_of_others(form):
    """A log of one engine may be that of one of many replicas."""
    diagnosis = look(*lines(form, BUSY))
    assert diagnosis.case.signals.num_replicas is None
    assert verdict(diagnosis, "replica_imbalance") == "undetermined"


PREFIXES = {
    "kubectl --prefix": "[pod/vllm-{}/server] {}",
    "kubectl --prefix --timestamps": "[pod/vllm-{}/server] 2026-11-03T07:00:00Z {}",
    "compose": "vllm-{}  | {}",
    "compose, coloured": "\x1b[36mvllm-{}  | \x1b[0m{}",
    "stern": "vllm-{} server {}",
}


@pytest.mark.parametrize("prefix", PREFIXES.values(), ids=PREFIXES)
def test_pods_of_one_log_are_replicas(prefix):
    """All of them call themselves engine 0."""
    log = [
        prefix.format(pod, V1.format(at=10 * n, engine=0, **load))
        for n in range(5)
        for pod, load in ((0, BUSY), (1, IDLE))
    ]
    diagnosis = look(*log)
    assert set(diagnosis.case.signals.replicas) == {"vllm-0 engine 000", "vllm-1 engine 000"}
    assert verdict(diagnosis, "replica_imbalance") == "supported"
    assert verdict(diagnosis, "engine_hung") == "refuted"


def test_lines_of_several_pods_that_take_turns_make_one_window():
    """They write 3 s apart, and each of them every 10 s."""
    log = [
        f"[pod/vllm-{pod}/server] {V1.format(at=10 * n + 3 * pod, engine=0, **BUSY)}"
        for n in range(3)
        for pod in range(2)
    ]
    signals = look(*log).case.signals
    assert signals.length_seconds == 30
    assert signals.rate("tokens_decode") == 1800


def test_pods_that_a_collector_names():
    log = [
        json.dumps({"log": V1.format(at=10 * n, engine=0, **load) + "\n", "kubernetes": {"pod_name": pod}})
        for n in range(5)
        for pod, load in (("a", BUSY), ("b", IDLE))
    ]
    assert set(look(*log).case.signals.replicas) == {"a engine 000", "b engine 000"}


def test_the_rest_of_a_line_is_looked_for_in_the_same_pod_only():
    text = V1.format(at=0, engine=0, **BUSY)
    cut = [f"vllm-0  | {text[:60]}", "vllm-1  | some words", f"vllm-0  | {text[60:]}"]
    assert read_log("t", cut).samples[0].values[0] is None, "what the rest of the line alone says"
    assert read_log("t", [cut[0], cut[2]]).samples[0].values[0] == 9.0


def test_words_before_a_text_are_no_pod():
    """`server-start all INFO` and an address at the start of an access log name nobody."""
    plain = ["server-start all is well", "server-start-done all (main) went well", "10.0.0.1 - INFO"]
    assert [line.origin for line in unwrapped(iter(plain))] == ["", "", ""]


def test_what_each_engine_states_for_itself_counts_for_all():
    start = "INFO 11-03 06:59:00 [api_server.py:1] non-default args: {'max_num_seqs': 40}"
    signals = look(start, *lines(V1, BUSY, BUSY)).case.signals
    assert signals.gauges["max_sequences"].last == 80
