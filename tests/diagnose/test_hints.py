"""A wrong address is answered with the right one, where that can be told."""

from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

import pytest

from diagnose.errors import ErrorAnswer, NotMetrics, TargetError
from diagnose.sources.hints import after_refusal, meant_url
from diagnose.sources.http import Endpoint
from diagnose.sources.live import first_page
from tests.diagnose.fake_target import Answer, raw, serving


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("gpu-3.lan:8000", "http://gpu-3.lan:8000"),
        ("localhost:8000/v1", "http://localhost:8000/v1"),
        ("[::1]:8000", "http://[::1]:8000"),
        ("127.0.0.1", "http://127.0.0.1:PORT"),
        ("localhost/", "http://localhost:PORT"),
        ("http:/h:1/metrics", "http://h:1/metrics"),
        ("https:///h", "https://h"),
        ("htp://h:1", "http://h:1"),
        ("good.rec", None),
        ("a/b.prom", None),
        ("1.2.3", None),
        ("http://", None),
    ],
)
def test_what_is_meant_by_an_address_without_its_scheme(typed, meant):
    assert meant_url(typed) == meant


def refusal(answer: Answer, path: str = "", kind: type[TargetError] = ErrorAnswer) -> tuple[str, str]:
    """The server's address and what is said of its first answer."""
    with serving(answer) as target, pytest.raises(kind) as caught:
        first_page(Endpoint(f"{target.url}{path}"))
    return target.url, str(caught.value)


class Silent(BaseHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        """A test's output is no place for it."""


@pytest.fixture
def plain() -> Iterator[str]:
    """Answers every request with 501, and what is no HTTP with 400, unencrypted."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Silent)
    Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def first(url: str) -> str:
    with pytest.raises(TargetError) as caught:
        first_page(Endpoint(url))
    return str(caught.value)


def test_the_base_url_of_a_client_is_not_the_server_s(plain):
    text = first(f"{plain}/v1")
    assert text.startswith(f"{plain}/v1/metrics: answered HTTP 501")
    assert text.endswith(f"; metrics are usually at the server's root, not under /v1: try {plain}")
    assert "--enable-metrics" in first(plain)


@pytest.mark.parametrize("status", ["401 Unauthorized", "403 Forbidden"])
def test_a_locked_door_is_told_how_to_go_round_it(status):
    url, text = refusal(raw(status))
    assert f"fetch {url}/metrics twice with them" in text
    assert text.endswith("then diagnose a.prom b.prom --interval 20s")


def test_other_errors_say_all_there_is():
    url, text = refusal(raw("500 Internal Server Error", "out of order"))
    assert text == f"{url}/metrics: answered HTTP 500 (out of order)"


def test_a_web_page_is_called_one():
    _, text = refusal("<!DOCTYPE html><title>Grafana</title>", kind=NotMetrics)
    assert text.endswith("that is a web page, of a dashboard or a gateway: give the engine's own address")
    assert "web page" not in refusal("???", kind=NotMetrics)[1]


def test_a_prometheus_is_asked_in_another_way():
    url, text = refusal("prometheus_tsdb_head_series 5\n", kind=NotMetrics)
    assert text.endswith(f"stallscope diagnose --prometheus {url} --match 'job=\"llm\"'")
    assert "--prometheus" not in refusal("node_load1 1\n", kind=NotMetrics)[1]


def test_tls_on_one_side_alone(plain):
    assert first(plain.replace("http:", "https:")).endswith(f"that is no TLS: try {plain}")
    url, text = refusal(None, kind=TargetError)
    assert text.endswith(f"a port that speaks TLS does that: try {url.replace('http:', 'https:')}")
    assert not after_refusal("https://h", "https://h/metrics: the connection broke in the middle of the answer")


def test_a_server_that_says_nothing():
    with serving(lambda: target.hang()) as target, pytest.raises(TargetError) as caught:
        first_page(Endpoint(target.url, timeout_seconds=0.05))
    assert "no answer within 0.05 s; a hung server is like that" in str(caught.value)


def test_an_unknown_authority():
    problem = "https://h/metrics: TLS failed ([SSL: CERTIFICATE_VERIFY_FAILED] self-signed certificate)"
    assert after_refusal("https://h", problem).startswith("; the variable SSL_CERT_FILE")
