"""People are told on every channel that works, and a channel that does not is a sentence and no exception."""

import builtins
import json
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Thread

import pytest

from runbooks.errors import ConfigError
from runbooks.response.config import Notifier
from runbooks.response.notify import make_senders, tell


@pytest.fixture
def hook():
    """URL of a webhook and what it got; it fails below /broken."""
    got: list[dict[str, object]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            got.append(json.loads(self.rfile.read(int(self.headers["content-length"]))))
            self.send_response(503 if self.path == "/broken" else 200)
            self.end_headers()

        def log_message(self, format, *args):  # noqa: A002
            """Nothing."""

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}", got
        server.shutdown()


def test_one_broken_channel_does_not_silence_the_others(hook, capsys):
    url, got = hook
    channels = [Notifier("webhook", f"{url}/broken"), Notifier("webhook", "http://127.0.0.1:1/x"), Notifier("stdout")]
    failures = tell(make_senders(channels), "incident 1", "done\x1b[2J")
    assert [failure.partition(":")[0] for failure in failures] == ["notification by webhook failed"] * 2
    assert "answered HTTP 503" in failures[0]
    assert got == [{"title": "incident 1", "text": "done\x1b[2J"}]
    assert capsys.readouterr().out == "incident 1: done?[2J\n"


@pytest.mark.filterwarnings("ignore:.imghdr. is deprecated:DeprecationWarning")  # within apprise
def test_apprise(hook):
    pytest.importorskip("apprise")
    url, got = hook
    senders = make_senders([Notifier("apprise", url.replace("http://", "json://"))])
    assert tell(senders, "incident 1", "acted") == []
    assert got[0]["title"] == "incident 1" and got[0]["message"] == "acted"
    broken = make_senders([Notifier("apprise", url.replace("http://", "json://") + "/broken")])
    assert "could not deliver it" in tell(broken, "x", "y")[0]
    with pytest.raises(ConfigError, match="does not know this kind of url"):
        make_senders([Notifier("apprise", "nonsense")])


def test_without_apprise_the_extra_is_named(monkeypatch):
    real = builtins.__import__

    def missing(name, *rest, **others):
        if name == "apprise":
            raise ModuleNotFoundError(name)
        return real(name, *rest, **others)

    monkeypatch.setattr(builtins, "__import__", missing)
    with pytest.raises(ConfigError, match=r"stallscope\[notify\]"):
        make_senders([Notifier("apprise", "json://h")])
