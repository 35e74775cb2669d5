"""What a Prometheus API answers when things go wrong, and what the reader is told."""

import json
import shutil
import ssl
import subprocess
from base64 import b64decode
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Event, Thread
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from diagnose.errors import SourceError, TargetError
from diagnose.sources.http import NO_ACCESS, Access, Endpoint
from diagnose.sources.prometheus import Reading, read_prometheus
from diagnose.sources.prometheus_api import PrometheusApi
from diagnose.sources.promql import Membership, matcher, parse_selector
from tests.diagnose.commands import complaint

AT = 1_700_000_000.0
NAMES = ["vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:generation_tokens_total", "up"]


class Server(ThreadingHTTPServer):
    """`answer(path, fields, headers)` gives status and body."""

    daemon_threads = True
    answer: Callable[..., tuple[int, str]]

    def handle_error(self, request: Any, client_address: Any) -> None:
        """The other side went away: nothing to tell."""


class Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        parts = urlsplit(self.path)
        self._answer(parts.path, parse_qs(parts.query))

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0))).decode()
        self._answer(self.path, parse_qs(body))

    def _answer(self, path: str, fields: dict[str, list[str]]) -> None:
        assert isinstance(self.server, Server)
        status, body = self.server.answer(path, fields, self.headers)
        data = body.encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: Any) -> None:
        """Tests read the command's own words."""


@contextmanager
def answering(answer: Callable[..., tuple[int, str]], context: ssl.SSLContext | None = None) -> Iterator[str]:
    server = Server(("127.0.0.1", 0), Handler)
    server.answer = answer
    scheme = "http"
    if context is not None:
        server.socket, scheme = context.wrap_socket(server.socket, server_side=True), "https"
    Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
    try:
        yield f"{scheme}://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()


def good(data: Any, **more: Any) -> tuple[int, str]:
    return 200, json.dumps({"status": "success", "data": data, **more})


def bad(status: int, text: str, kind: str = "bad_data") -> tuple[int, str]:
    return status, json.dumps({"status": "error", "errorType": kind, "error": text})


def fleet(path: str, fields: dict[str, list[str]], _headers: Any = None, **more: Any) -> tuple[int, str]:
    """Two vLLM servers, to every question."""
    if path.endswith("/values"):
        return good(NAMES, **more)
    at = float(fields.get("time", fields.get("end", ["0"]))[0])
    expression = fields["query"][0]
    if 'name__="up"' in expression or expression.endswith(" > 0"):  # none is down, none restarted
        return good({"resultType": "vector", "result": []}, **more)
    value = at if expression.startswith("timestamp") else 11.0 if at == AT and "_total" in expression else 5.0
    labels = [{"instance": f"gpu-{number}:8000", "job": "llm"} for number in (1, 2)]
    if path.endswith("query_range"):
        start, end, step = (float(fields[name][0]) for name in ("start", "end", "step"))
        points = [[start + index * step, "5"] for index in range(round((end - start) / step) + 1)]
        return good({"resultType": "matrix", "result": [{"metric": {}, "values": points}]}, **more)
    if expression.startswith("sum by () "):
        labels = [{}]
    return good({"resultType": "vector", "result": [{"metric": m, "value": [at, str(value)]} for m in labels]}, **more)


def read(url: str, access: Access = NO_ACCESS, timeout: float = 5.0) -> Reading:
    return read_prometheus(PrometheusApi(Endpoint(url, timeout, access)), parse_selector('job="llm"'), AT, 600)


def test_the_fake_is_a_fleet():
    with answering(fleet) as url:
        reading = read(url)
    (evidence,) = reading.evidence
    assert evidence.found.num_replicas == 2
    assert evidence.found.delta("tokens_decode") == 6
    assert reading.warnings == []


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        ((401, ""), "HTTP 401: it wants credentials: --bearer-token-file"),
        ((403, "no"), "HTTP 403: the credentials do not allow it"),
        ((200, "<!doctype html><title>Sign in</title>"), "an HTML page: a proxy or a log-in page"),
        ((502, "<html>Bad Gateway</html>"), "HTTP 502: answers an HTML page"),
        ((404, "404 page not found"), "give the server's address as it stands before /api/v1"),
        ((200, '{"status":"success","data":["a'), "JSON that is cut short"),
        ((200, '{"status":"success","data":{"b":1}}'), "an answer that is no Prometheus API's"),
        ((200, ""), "answers nothing"),
    ],
)
def test_what_is_no_api_is_said(answer, words):
    with answering(lambda *_: answer) as url, pytest.raises(TargetError) as error:
        read(url)
    assert words in str(error.value)


@pytest.mark.parametrize(
    ("status", "text", "kind"),
    [(400, "1:9: parse error: unexpected end", "bad_data"), (422, "cannot parse match[]", "422")],
)
def test_a_rejected_selector_is_a_source_error_in_the_servers_words(status, text, kind):
    """Prometheus answers 400, VictoriaMetrics 422."""
    with answering(lambda *_: bad(status, text, kind)) as url, pytest.raises(SourceError) as error:
        read(url)
    assert text in str(error.value)


@pytest.mark.parametrize(
    ("text", "kind", "words"),
    [
        ("query processing would load too many samples into memory", "execution", "a narrower --match needs less"),
        ("query timed out in expression evaluation", "timeout", "took too long there"),
    ],
)
def test_one_query_that_fails_is_a_warning(text, kind, words):
    def answer(path, fields, headers):
        if "generation_tokens" in str(fields.get("query")):
            return bad(503 if kind == "timeout" else 422, text, kind)
        return fleet(path, fields)

    with answering(answer) as url:
        reading = read(url)
    assert any(text in warning and words in warning for warning in reading.warnings)
    assert reading.evidence[0].found.last("running") == 5


def test_a_server_that_breaks_down_is_not_asked_for_ever():
    asked = []

    def answer(path, fields, headers):
        asked.append(path)
        return fleet(path, fields) if len(asked) < 8 else (502, "<html>")

    with answering(answer) as url, pytest.raises(TargetError, match="HTTP 502"):
        read(url)
    assert len(asked) == 10


def test_warnings_of_the_server_are_passed_on():
    """Thanos warns, VictoriaMetrics says `isPartial` and adds fields of its own."""

    def answer(path, fields, headers):
        return fleet(path, fields, warnings=["store a is down"], isPartial=True, stats={"seriesFetched": "2"})

    with answering(answer) as url:
        warnings = read(url).warnings
    assert warnings == ["store a is down", "the server says that its answer is partial"]


def test_a_slow_server_is_bounded():
    released = Event()

    def answer(*_):
        released.wait(20)
        return 200, ""

    with answering(answer) as url:
        with pytest.raises(TargetError, match=r"no answer within 0\.2 s"):
            read(url, timeout=0.2)
        released.set()


def test_a_port_where_nothing_listens(stallscope):
    assert "nothing listens there" in complaint(
        stallscope("diagnose", "--prometheus", "http://127.0.0.1:1", "--match", 'job="llm"')
    )


def seen_authorization(stallscope: Any, *options: Any) -> set[str]:
    seen = []

    def answer(path, fields, headers):
        seen.append(headers.get("Authorization"))
        return fleet(path, fields)

    with answering(answer) as url:
        code, out, _ = stallscope("diagnose", "--prometheus", url, "--match", 'job="llm"', *options, "--json")
    assert code in (0, 1, 3), out
    return set(seen)


def test_credentials_come_from_files(stallscope, tmp_path):
    token, pair = tmp_path / "token", tmp_path / "pair"
    token.write_text("s3cret\n")
    pair.write_text("ada:pass:word\n")
    assert seen_authorization(stallscope, "--bearer-token-file", token) == {"Bearer s3cret"}
    (basic,) = seen_authorization(stallscope, "--basic-auth-file", pair)
    assert b64decode(basic.removeprefix("Basic ")) == b"ada:pass:word"


def test_credentials_come_from_the_environment(stallscope, monkeypatch):
    monkeypatch.setenv("STALLSCOPE_PROMETHEUS_TOKEN", "t0ken")
    assert seen_authorization(stallscope) == {"Bearer t0ken"}
    monkeypatch.delenv("STALLSCOPE_PROMETHEUS_TOKEN")
    monkeypatch.setenv("STALLSCOPE_PROMETHEUS_BASIC_AUTH", "ada:word")
    (basic,) = seen_authorization(stallscope)
    assert b64decode(basic.removeprefix("Basic ")) == b"ada:word"


@pytest.mark.skipif(shutil.which("openssl") is None, reason="needs openssl on the PATH, to make a certificate")
def test_a_certificate_is_checked_against_the_given_authority(tmp_path):
    key, certificate = tmp_path / "key.pem", tmp_path / "cert.pem"
    made = subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=127.0.0.1"),
            *("-addext", "subjectAltName=IP:127.0.0.1", "-keyout", key, "-out", certificate),
        ],
        capture_output=True,
        check=False,
    )
    assert made.returncode == 0, made.stderr
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    with answering(fleet, context) as url:
        assert read(url, Access(ca_file=certificate)).evidence
        with pytest.raises(TargetError, match="TLS failed"):
            read(url)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--match", 'job="llm"'), "--match belongs to --prometheus URL"),
        (("--prometheus", "http://127.0.0.1:1"), "--prometheus needs --match"),
        (("--prometheus", "http://127.0.0.1:1", "--match", "llm"), "is no selector"),
        (("--prometheus", "http://127.0.0.1:1", "--match", 'up{job="llm"}'), "names a metric"),
        (("--prometheus", "127.0.0.1:9090", "--match", 'job="llm"'), "is not a target"),
        (("--prometheus", "http://a:b@127.0.0.1:1", "--match", 'job="llm"'), "use --basic-auth-file"),
        (("--prometheus", "http://127.0.0.1:1", "--match", 'job="l"', "--ca-file", "none.pem"), "no such file"),
        (("--prometheus", "http://127.0.0.1:1", "--match", 'job="l"', "--bearer-token-file", "none"), "No such file"),
        (("--prometheus", "http://127.0.0.1:1", "--match", 'job="l"', "--at", "noon"), "is no time"),
        (("http://127.0.0.1:1", "--prometheus", "http://127.0.0.1:1", "--match", 'job="l"'), "two windows"),
    ],
)
def test_options_that_do_not_go_together(stallscope, options, words):
    code, out, err = stallscope("diagnose", *options)
    assert (code, out) == (2, "")
    assert words in " ".join(err.split())


def test_values_are_matched_literally():
    assert matcher("instance", ["10.0.0.1:80|x"], "=~") == 'instance=~"10\\\\.0\\\\.0\\\\.1:80\\\\|x"'


def test_growth_is_made_of_replicas_whose_past_is_known():
    membership = Membership("instance", started=("a",), unknown=("b",), gone=("c",))
    selector = parse_selector('{job="llm",}')
    assert selector.of("m", membership.at_start or "") == '{__name__="m",job="llm",instance!~"a|c"}'
    assert selector.of("m", membership.at_end or "") == '{__name__="m",job="llm",instance!~"b"}'
    assert (Membership("").at_start, Membership("", started=("",)).at_start) == ("", None)


def test_half_a_difference_is_none():
    """A counter whose value at the start is not known did not grow from zero."""

    def answer(path, fields, headers):
        if "generation_tokens" in str(fields.get("query")) and float(fields["time"][0]) < AT:
            return bad(422, "too many samples", "execution")
        return fleet(path, fields)

    with answering(answer) as url:
        assert read(url).evidence[0].found.delta("tokens_decode") is None
