"""What a person may have meant by an address that is none, or whose first answer is no page of metrics."""

import re
from collections.abc import Iterable
from urllib.parse import urlsplit

_HOST_PORT = re.compile(r"(?:[\w.-]+|\[[\da-fA-F:]+\]):\d+(?:/.*)?")
_HOST_ALONE = re.compile(r"(localhost|\d{1,3}(?:\.\d{1,3}){3})/?")
_ODD_SCHEME = re.compile(r"(\w+):/+([^/].*)")
_NO_METRICS = ("HTTP 404", "HTTP 501")
_NO_ENTRY = ("HTTP 401", "HTTP 403")


def meant_url(text: str) -> str | None:
    """`http://localhost:8000` for `localhost:8000`, `http:/localhost:8000` and `localhost`; None for what may be a file."""
    if _HOST_PORT.fullmatch(text):
        return f"http://{text}"
    if alone := _HOST_ALONE.fullmatch(text):
        return f"http://{alone[1]}:PORT"
    if odd := _ODD_SCHEME.fullmatch(text):
        return f"http{'s' if odd[1].lower() == 'https' else ''}://{odd[2]}"
    return None


def after_no_file(text: str) -> str:
    """Of a target that is neither a URL nor a file."""
    url = meant_url(text)
    return f"; a live target is written {url}" if url is not None else ""


def after_refusal(url: str, problem: str) -> str:
    """What to try where a server's first answer was `problem`; empty where that says it all."""
    parts = urlsplit(url)
    if any(code in problem for code in _NO_METRICS) and parts.path:
        return (
            f"; metrics are usually at the server's root, not under {parts.path}: try {parts.scheme}://{parts.netloc}"
        )
    if any(code in problem for code in _NO_METRICS):
        return (
            "; SGLang serves metrics with --enable-metrics, llama.cpp with --metrics, transformers serve has none: then give "
            "the server's log as a file"
        )
    if any(code in problem for code in _NO_ENTRY):
        return (
            f"; credentials are sent to a --prometheus alone: fetch {url}/metrics twice with them, 20 s apart, into a.prom and "
            "b.prom, then diagnose a.prom b.prom --interval 20s"
        )
    if "no answer within" in problem:
        return "; a hung server is like that, and so is a firewall: on its machine, --pid PID looks at its threads"
    if "WRONG_VERSION_NUMBER" in problem:
        return f"; that is no TLS: try http://{parts.netloc}{parts.path}"
    if "the connection broke" in problem and parts.scheme == "http":
        return f"; a port that speaks TLS does that: try https://{parts.netloc}{parts.path}"
    if "CERTIFICATE_VERIFY_FAILED" in problem:
        return "; the variable SSL_CERT_FILE names the file of an authority that vouches for it"
    return ""


def after_web_page(body: str) -> str:
    """Empty for an answer that is no web page."""
    if body.lstrip()[:1] != "<":
        return ""
    return "; that is a web page, of a dashboard or a gateway: give the engine's own address"


def after_other_metrics(url: str, names: Iterable[str]) -> str:
    """Empty where the page is not that of a Prometheus server, which can be asked."""
    if not any(name.startswith("prometheus_tsdb_") for name in names):
        return ""
    return f"; to ask it for its engines: stallscope diagnose --prometheus {url} --match 'job=\"llm\"'"
