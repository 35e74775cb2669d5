"""Acts beside the lowered limits: prepared, seen, done and undone."""

import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from probes.recording import read_recording
from runbooks.admin import AdminClient
from runbooks.errors import AdminError, Refused
from runbooks.response.act_base import Effect, Site
from runbooks.response.admin_acts import CapSequences, Drain, ResetPrefixCache, Resume
from runbooks.response.other_acts import CallWebhook, Capture, RunCommand
from tests.builders import make_steps
from tests.diagnose.fake_target import FakeClock, FakeEngine
from tests.runbooks.response.fake_admin import FakeAdmin

CAUSES = ["hard_failure"]


def site(folder: Path, url: str = "http://h:1", admin: bool = False, **commands: list[str]) -> Site:
    client = AdminClient(url, "secret") if admin else None
    return Site("chat", url, client, commands, folder, FakeClock(), "incident-7")


def test_drain_and_resume(tmp_path):
    with FakeAdmin() as server:
        here, drain = site(tmp_path, server.url, admin=True), Drain(causes=CAUSES)
        intent = drain.prepare(here)
        assert drain.look(here, intent) is Effect.DID_NOT
        assert drain.apply(here, intent) == "the target is drained"
        assert drain.look(here, intent) is Effect.TOOK
        with pytest.raises(Refused, match="nothing to drain"):
            drain.prepare(here)
        resume = Resume(causes=CAUSES)
        assert not resume.can_be_undone
        resume.apply(here, resume.prepare(here))
        assert resume.look(here, {}) is Effect.TOOK
        with pytest.raises(Refused, match="takes requests already"):
            resume.prepare(here)
        drain.apply(here, intent)
        assert drain.undo(here, intent) == "the target is ok again"


def test_limits_have_a_floor(tmp_path):
    with FakeAdmin(max_sequences=6) as server:
        here, cap = site(tmp_path, server.url, admin=True), CapSequences(causes=CAUSES, factor=0.5)
        assert cap.prepare(here)["after"] == 4
        server.state["max_sequences"] = 4
        with pytest.raises(Refused, match="max_sequences is 4 already, and its floor here is 4"):
            cap.prepare(here)


def test_without_an_admin_token_nothing_can_be_changed(tmp_path):
    with pytest.raises(Refused, match="has no admin_token_file"):
        ResetPrefixCache(causes=CAUSES).prepare(site(tmp_path))


def test_a_command_runs_with_its_own_arguments_and_a_small_environment(tmp_path, monkeypatch):
    monkeypatch.setenv("SECRET", "hunter2")
    out = tmp_path / "out"
    here = site(
        tmp_path,
        act=["/bin/sh", "-c", f"env > {out}; echo $STALLSCOPE_KEY"],
        undo=["/bin/rm", str(out)],
        look=["/usr/bin/test", "-e", str(out)],
    )
    act = RunCommand(causes=CAUSES, command="act", undo_command="undo", look_command="look")
    intent = act.prepare(here)
    assert act.look(here, intent) is Effect.DID_NOT
    assert act.apply(here, intent) == "command act ended with 0: incident-7"
    assert act.look(here, intent) is Effect.TOOK
    assert "hunter2" not in out.read_text()
    act.undo(here, intent)
    assert act.look(here, intent) is Effect.DID_NOT


def test_a_command_that_fails_or_hangs(tmp_path):
    here = site(tmp_path, fails=["/bin/sh", "-c", "echo no >&2; exit 3"], hangs=["/bin/sleep", "60"], none=["/nowhere"])
    for name, error, words in (
        ("fails", AdminError, "ended with 3, what it did is not known: no"),
        ("hangs", AdminError, "did not end within 1s and was killed"),
        ("none", Refused, "cannot be started"),
    ):
        act = RunCommand(causes=CAUSES, command=name, timeout="1s")
        with pytest.raises(error, match=words):
            act.apply(here, act.prepare(here))
        assert act.look(here, {}) is Effect.UNKNOWN, "so that a cut-off command is not repeated"


def test_a_capture_is_a_recording(tmp_path):
    act = Capture(causes=CAUSES, length="3s")
    with FakeEngine(make_steps(200)).serving() as target:
        here = site(tmp_path, target.url)
        intent = act.prepare(here)
        assert act.look(here, intent) is Effect.DID_NOT
        act.apply(here, intent)
    assert act.look(here, intent) is Effect.TOOK
    kinds = [entry.kind for entry in read_recording(Path(intent["file"]).read_bytes()).entries]
    assert kinds.count("exposition") >= 3
    assert "steps" in kinds
    with pytest.raises(Refused, match="nothing was recorded"):
        act.apply(site(tmp_path, target.url), intent)


def test_a_webhook_carries_a_key_that_stays_the_same(tmp_path):
    seen: list[tuple[str, str | None]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            seen.append((self.path, self.headers["idempotency-key"]))
            self.rfile.read(int(self.headers["content-length"]))
            self.send_response(500 if self.path == "/broken" else 204)
            self.end_headers()

        def log_message(self, format, *args):  # noqa: A002
            """Nothing."""

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_address[1]}"
        here = site(tmp_path)
        act = CallWebhook(causes=CAUSES, url=f"{url}/out", undo_url=f"{url}/in")
        intent = act.prepare(here)
        act.apply(here, intent)
        act.undo(here, intent)
        broken = CallWebhook(causes=CAUSES, url=f"{url}/broken")
        with pytest.raises(AdminError, match="answered HTTP 500; what it did is not known"):
            broken.apply(here, intent)
        server.shutdown()
    assert seen == [("/out", "incident-7-act"), ("/in", "incident-7-undo"), ("/broken", "incident-7-act")]
    with pytest.raises(AdminError, match="whether it was heard is not known"):
        act.apply(here, intent)
