"""What an observer sees of requests that wait, and of what the cache loses."""

from threading import Event

from tests.engine.fakes import FakeRunner
from tests.engine.http_server import http_server, wait_until
from tests.requirements import covers


@covers("S2.26")
def test_a_starved_prompt_shows_for_how_long_and_why_over_http():
    with http_server(FakeRunner(seconds=0.002), max_sequences=1) as (client, harness):
        first = client.open_raw("/v1/completions", {"prompt": "a" * 40, "max_tokens": 1500})
        wait_until(lambda: harness.scheduler.num_running == 1)
        second = client.open_raw("/v1/completions", {"prompt": "b", "n": 3, "max_tokens": 1})
        wait_until(lambda: harness.scheduler.num_waiting == 1)
        before = harness.recorder.next_id
        wait_until(lambda: harness.recorder.next_id > before + 5)
        status, answer = client.get("/debug/requests")
        assert status == 200
        assert answer["total"] == 4
        running, waiting, *forking = answer["requests"]
        assert (running["state"], running["reason"], running["deferred_steps"]) == ("running", None, 0)
        assert running["blocks"] >= 3
        assert (waiting["state"], waiting["reason"], waiting["blocks"]) == ("waiting", "max_sequences", 0)
        assert waiting["deferred_steps"] >= 5
        assert 0 < waiting["age_seconds"] < running["age_seconds"] < 60
        assert [one["state"] for one in forking] == ["forking", "forking"]
        assert len(client.get("/debug/requests?limit=1")[1]["requests"]) == 1
        metrics = client.get("/metrics")[1]
        assert 'stallscope_requests_waiting{reason="max_sequences"} 1.0' in metrics
        assert 'stallscope_requests{state="forking"} 2.0' in metrics
        first.close()
        second.close()


def test_a_prompt_that_can_never_fit_is_a_400_with_the_numbers():
    with http_server(kv_blocks=4, max_model_len=2048) as (client, harness):
        for body in ({"prompt": "a" * 65, "max_tokens": 1}, {"prompt": "a" * 60, "max_tokens": 6, "n": 2}):
            status, answer = client.post("/v1/completions", body)
            assert (status, answer["error"]["code"]) == (400, "kv_capacity_exceeded")
            assert "the whole pool has 4" in answer["error"]["message"]
        assert not harness.scheduler.has_work
        assert client.post("/v1/completions", {"prompt": "a" * 60, "max_tokens": 5})[0] == 200


def test_the_census_shows_the_reuse():
    with http_server(kv_blocks=4) as (client, _):
        for letter in "abcabc":
            client.post("/v1/completions", {"prompt": letter * 32, "max_tokens": 1})
        reuse = client.get("/debug/census")[1]["reuse"]
        assert reuse["ghost_hits"] == reuse["ghost_age_seconds"]["count"] == 6
        assert reuse["working_set_blocks"] == 6
        assert reuse["residency_seconds"]["mean"] > 0
        assert reuse["reuse_seconds"] == {"count": 0, "mean": None}
        metrics = client.get("/metrics")[1]
        assert "stallscope_kv_ghost_hits_total 6.0" in metrics
        assert "stallscope_kv_working_set_blocks 6.0" in metrics


def test_looking_at_requests_does_not_wait_for_the_forward_pass():
    release = Event()
    with http_server(FakeRunner(lambda _: release.wait(10))) as (client, harness):
        connection = client.open_raw("/v1/completions", {"prompt": "a", "max_tokens": 2})
        wait_until(lambda: bool(harness.runner.plans))
        assert client.get("/debug/requests")[1]["total"] == 1
        release.set()
        wait_until(lambda: not harness.scheduler.has_work)
        connection.close()
