"""Replicas of one service, as several URLs: each with a window of its own, their sum, and how unevenly they are loaded."""

import json

from diagnose.assembly import assemble
from diagnose.fleet import differing, join
from diagnose.policy import DEFAULT_POLICY
from diagnose.signals import HistogramWindow, Signals
from diagnose.sources.together import observe_together
from probes.recording import Entry
from tests.builders import START_UNIX, make_signals
from tests.diagnose.fake_target import serving

LIVE = ("--window", "600ms", "--interval", "200ms")


def page(tokens: float, running: int, waiting: int, *, start: float = 1.0, engine: str = "") -> str:
    labels = f'{{engine="{engine}"}}' if engine else ""
    return (
        f"process_start_time_seconds {start}\nvllm:generation_tokens_total{labels} {tokens}\n"
        f"vllm:num_requests_running{labels} {running}\nvllm:num_requests_waiting{labels} {waiting}\n"
        f"vllm:kv_cache_usage_perc{labels} {running / 100}\n"
    )


def growing(running: int, waiting: int, **over):
    state = {"tokens": 0.0}

    def answer() -> str:
        state["tokens"] += 100 * running
        return page(state["tokens"], running, waiting, **over)

    return answer


def test_urls_of_one_engine_are_replicas_and_not_one_page(stallscope):
    """Read as one series, their counters would jump to and fro between two engines."""
    with serving(growing(40, 25)) as busy, serving(growing(2, 0)) as idle, serving(growing(3, 0)) as other:
        code, out, _ = stallscope("diagnose", busy.url, idle.url, other.url, *LIVE, "--json")
    document = json.loads(out)
    window = document["windows"]["incident"]
    assert code == 1
    assert document["primary"] == "replica_imbalance"
    assert document["target"] == f"3 replicas: {busy.url}, {idle.url}, {other.url}"
    assert set(window["replicas"]) == {busy.url, idle.url, other.url}
    assert window["signals"]["running"]["last"] == 45
    assert f"stallscope diagnose {busy.url} {idle.url} {other.url}" in out, "the commands it prints name all of them"


def test_the_table_of_replicas_is_in_the_text(stallscope):
    with serving(growing(40, 25)) as busy, serving(growing(2, 0)) as idle:
        _, out, _ = stallscope("diagnose", busy.url, idle.url, *LIVE)
    assert "Replicas (2)" in out
    assert idle.url in out


def test_an_exporter_beside_replicas_stays_beside(stallscope):
    with (
        serving(growing(4, 0)) as one,
        serving("ray_serve_deployment_queued_queries 12\n") as router,
        serving(growing(4, 0)) as two,
    ):
        _, out, _ = stallscope("diagnose", one.url, router.url, two.url, *LIVE, "--json")
    document = json.loads(out)
    assert set(document["windows"]["incident"]["replicas"]) == {one.url, two.url}
    assert any("up to 12 requests waited before the engine" in text for text in document["warnings"])


def pages(*texts: str) -> list[Entry]:
    return [Entry(START_UNIX + 10 * n, "exposition", text) for n, text in enumerate(texts)]


def seen(first: list[Entry], **others: list[Entry]):
    return observe_together("http://a:1", first, {f"http://{name}:1": entries for name, entries in others.items()})


def test_a_replica_that_restarted_does_not_make_the_others_count_anew():
    """Of the sum, 1000 + 5000 and then 1100 + 50, nothing would tell which of them fell."""
    a = pages(page(1000, 4, 0), page(1100, 4, 0))
    b = pages(page(5000, 4, 0), page(50, 4, 0, start=9.0))
    signals, _ = assemble(seen(a, b=b), DEFAULT_POLICY)
    assert signals.counters["tokens_decode"].delta == 150
    assert signals.restarted


def test_one_replica_that_went_away_is_no_end_of_the_service():
    gone = [*pages(page(0, 1, 0), page(9, 1, 0)), Entry(START_UNIX + 20, "event", "it is gone", "gone")]
    observation = seen(pages(page(0, 1, 0), page(9, 1, 0)), b=gone)
    assert [event.kind for event in observation.events] == []
    assert "http://b:1: it is gone" in observation.warnings
    assert [event.kind for event in seen(gone, b=gone).events] == ["gone"]


def test_a_replica_with_a_single_page_is_left_out():
    observation = seen(pages(page(0, 1, 0), page(9, 1, 0)), b=pages(page(7, 50, 0)))
    signals, said = assemble(observation, DEFAULT_POLICY)
    assert signals.counters["tokens_decode"].delta == 9
    assert signals.gauges["running"].peak == 1
    assert any(text.startswith("http://b:1: left out") for text in said)


def test_engines_within_a_server_are_replicas_of_the_service_too():
    two = [page(0, 5, 0, engine="0") + page(0, 1, 0, engine="1"), page(9, 5, 0, engine="0") + page(9, 1, 0, engine="1")]
    signals, _ = assemble(seen(pages(*two), b=pages(page(0, 3, 0), page(1, 3, 0))), DEFAULT_POLICY)
    assert set(signals.replicas) == {"http://a:1 engine=0", "http://a:1 engine=1", "http://b:1"}
    assert signals.num_replicas == 3


# ---- the sum


def test_amounts_add_up_and_shares_do_not():
    each = {
        "a": make_signals(gauges={"running": (1, 2), "pool_usage": (0.2, 0.9), "max_sequences": 8}),
        "b": make_signals(gauges={"running": (10, 20), "pool_usage": (0.5, 0.1), "max_sequences": 8}),
    }
    joined = join(each)
    assert joined.gauges["running"].values == (11, 22)
    assert joined.gauges["pool_usage"].values == (0.5, 0.9), "the fullest one"
    assert joined.gauges["max_sequences"].last == 16


def test_histograms_of_unlike_buckets_keep_what_they_share():
    def window(bounds, counts) -> Signals:
        signals = make_signals()
        signals.histograms["queue_time"] = HistogramWindow(bounds, counts, 1.0, "q")
        return signals

    joined = join({"a": window((1, 2, 4), (1, 2, 3, 4)), "b": window((2, 8), (10, 20, 30))}).histograms["queue_time"]
    assert joined.bounds == (2,)
    assert joined.counts == (13, 57)
    assert joined.sum == 2


def test_replicas_that_are_not_alike_are_told():
    each = {"a": make_signals(info={"version": "0.32"}), "b": make_signals(info={"version": "0.33"})}
    assert differing(each) == ["replicas differ in version: 0.32 (a), 0.33 (b)"]
    assert "version" not in join(each).info
