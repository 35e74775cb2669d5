"""A launch is judged by the server that it started, and by no other that answers on its port."""

import os
import socket
import sys

import pytest

from runbooks.errors import ExperimentError
from runbooks.experiments import arms as arms_module
from runbooks.experiments.arms import LaunchArms
from runbooks.experiments.processes import Process, find, is_running, owner_of
from tests.runbooks.experiments.fake_server import FakeServer

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="/proc is Linux's")


def test_the_listener_of_a_port_is_found_with_its_session():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        owner = owner_of(port)
        assert owner is not None
        assert (owner.pid, owner.session) == (os.getpid(), os.getsid(0))
        assert owner == find(os.getpid())
    assert owner_of(port) is None, "nobody listens any more"


def test_what_proc_does_not_say_is_not_known(tmp_path):
    assert owner_of(80, tmp_path) is None
    assert find(1, tmp_path) is None
    assert not is_running(1, tmp_path)


def test_a_name_with_brackets_and_spaces_is_read_whole(tmp_path):
    (tmp_path / "7").mkdir()
    (tmp_path / "7" / "stat").write_text(f"7 (tmux: (a) b) Z 1 5 6 {' '.join(['0'] * 15)} 1234 0\n")
    assert find(7, tmp_path) == Process(7, "tmux: (a) b", True, 5, 6, 1234)
    assert not is_running(5, tmp_path), "it has ended, and nobody has reaped it"


def test_a_server_that_was_there_before_is_not_taken_for_the_launched_one(monkeypatch):
    """It holds the port; the launched command loads for a while, and would find that out too late."""
    with FakeServer() as other:
        port = int(other.url.rpartition(":")[2])
        monkeypatch.setattr(arms_module, "_free_port", lambda: port)
        words = rf"port {port} is answered by process {os.getpid()} \(.*\), which this launch did not start"
        arms = LaunchArms("sleep 60 {port}", "sleep 60 {port}", keep_running=False)
        with arms, pytest.raises(ExperimentError, match=words):
            arms.enter("A")


def test_a_child_of_the_launched_process_is_its_server(tmp_path):
    script = "import http.server, sys; http.server.HTTPServer(('127.0.0.1', int(sys.argv[1])), H).serve_forever()"
    handler = (
        "import http.server\n"
        "class H(http.server.BaseHTTPRequestHandler):\n"
        "    def do_GET(self):\n"
        "        self.send_response(200); self.end_headers(); self.wfile.write(b'{\"data\": []}')\n"
    )
    server = tmp_path / "server.py"
    server.write_text(f"{handler}{script}\n")
    command = f"sh -c '{sys.executable} {server} {{port}}; true'"
    with LaunchArms(command, command, keep_running=False) as arms:
        url = arms.enter("A")
        owner = owner_of(int(url.rpartition(":")[2]))
        assert owner is not None and is_running(owner.group)
    assert not is_running(owner.group), "the shell ends at once, its server when it has to"
