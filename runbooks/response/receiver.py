"""The HTTP side: Alertmanager's webhook, and the approval links. An alert is acknowledged once the journal has it on disk."""

import contextlib
import hmac
import socket
import sys
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import msgspec

from diagnose.report.markup import Markup, element
from diagnose.sources.clock import Clock
from diagnose.units import printable
from runbooks.errors import JournalError, Refused
from runbooks.response.alertmanager import BadNotification, decode
from runbooks.response.approval import ApprovalLinks
from runbooks.response.config import Config
from runbooks.response.journal import Journal, Routed

MAX_BODY_BYTES = 16 * 1024 * 1024
"""Ten thousand alerts of a big group."""
MAX_CONNECTIONS = 32
_NOTHING_HERE = "there is nothing here: alerts come to /alerts, by POST"
_PATIENCE_SECONDS = 10.0
"""For a sender to send all of its request: one that dribbles holds a connection no longer."""


class Receiver(ThreadingHTTPServer):
    daemon_threads = True
    patience_seconds = _PATIENCE_SECONDS

    def __init__(
        self, config: Config, journal: Journal, token: str, clock: Clock, log: Callable[[str], None], *, plan_only: bool
    ) -> None:
        """Raises OSError when the address cannot be had."""
        super().__init__((config.receiver.host, config.receiver.port), _Handler)
        self.config, self.journal, self.clock, self.log, self.plan_only = config, journal, clock, log, plan_only
        self.links = ApprovalLinks(journal.path, self.url)
        self._token = token.encode()
        self._told: set[int] = set()
        self._free = threading.BoundedSemaphore(MAX_CONNECTIONS)

    @property
    def url(self) -> str:
        host, port = str(self.server_address[0]), self.server_address[1]
        return f"http://{f'[{host}]' if ':' in host else host}:{port}"

    def is_allowed(self, header: str) -> bool:
        scheme, _, given = header.partition(" ")
        matches = hmac.compare_digest(given.strip().encode("utf-8", "replace"), self._token)
        return matches and scheme.lower() == "bearer"

    def take(self, body: bytes) -> dict[str, Any]:
        """Raises BadNotification and JournalError."""
        notification = decode(body)
        routed = []
        for alert in notification.alerts:
            route = self.config.route(alert.labels)
            names = ("", "") if route is None else (route[0].name, route[1].name)
            routed.append(Routed(alert, *names, plan_only=self.plan_only))
        received = self.journal.receive(routed, self.clock.unix())
        if notification.truncatedAlerts:
            self.log(f"Alertmanager left {notification.truncatedAlerts} alerts out of a group: raise its max_alerts")
        if received.unanswered:
            lost = [item.alert for item in routed if item.alert.is_firing and not item.runbook]
            reasons = sorted({f"{alert.name}: {self.config.why_unanswered(alert.labels)}" for alert in lost})
            self.log(f"not answered here: {printable('; '.join(reasons))[:500]}")
        for number in received.opened:
            self.log(f"incident {number} opened")
        return {
            "opened": received.opened,
            "joined": received.joined,
            "known": received.known,
            "resolved": received.resolved,
            "unanswered": received.unanswered,
        }

    def tell_refusal(self, status: int, text: str) -> None:
        """A sender that is wired wrongly is told of in our log too, once until an alert is taken: anybody can send anything."""
        if status not in self._told:
            self._told.add(status)
            self.log(f"a POST to /alerts was refused ({status}): {text}; further ones are not told")

    def tell_taken(self) -> None:
        self._told.clear()

    def process_request(self, request: Any, client_address: Any) -> None:
        if not self._free.acquire(blocking=False):
            self.shutdown_request(request)  # the sender tries again
            return
        try:
            super().process_request(request, client_address)
        except BaseException:  # no thread could be started
            self._free.release()
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        # A socket's own timeout begins anew with every byte. The answer can still be written when reading has ended.
        limit = threading.Timer(self.patience_seconds, _end_reading, (request,))
        limit.daemon = True
        try:
            limit.start()
            super().process_request_thread(request, client_address)
        finally:
            limit.cancel()
            self._free.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """The other side went away, or a fault of ours: neither may end the receiver."""

        error = sys.exception()
        if not isinstance(error, OSError):
            self.log(f"a request failed: {type(error).__name__}: {error}")


def _end_reading(connection: socket.socket) -> None:
    with contextlib.suppress(OSError):  # it has ended by itself
        connection.shutdown(socket.SHUT_RD)


class _Handler(BaseHTTPRequestHandler):
    server: Receiver
    timeout = _PATIENCE_SECONDS
    server_version = "stallscope"
    sys_version = ""

    def do_GET(self) -> None:
        if self.path == "/health":
            self._answer(200, b'{"status":"ok"}\n')
        elif (number := self._approved_path()) is not None:
            self._page(f"Incident {number}", *self._question(number))
        else:
            self._refuse(404, _NOTHING_HERE)

    def do_POST(self) -> None:
        if self.path == "/alerts":
            self._alerts()
        elif (number := self._approved_path()) is not None:
            try:
                self.server.journal.answer(number, approved=True, who="an approval link", now=self.server.clock.unix())
            except (Refused, JournalError) as error:
                self._page("Not approved", element("p", str(error)), status=409)
            else:
                self._page("Approved", element("p", f"The act of incident {number} is approved."))
        else:
            self._refuse(404, _NOTHING_HERE)

    def _alerts(self) -> None:
        # Before anything of the body is read.
        if not self.server.is_allowed(self.headers.get("authorization", "")):
            self._refuse_alerts(401, "a valid token is needed: Authorization: Bearer ...")
            return
        length = self.headers.get("content-length", "")
        if not length.isdecimal():
            self._refuse_alerts(411, "give a Content-Length")
            return
        if int(length) > MAX_BODY_BYTES:
            self._refuse_alerts(413, f"more than {MAX_BODY_BYTES >> 20} MiB")
            return
        body = self.rfile.read(int(length))
        if len(body) < int(length):
            return  # it went away in the middle
        try:
            taken = self.server.take(body)
        except BadNotification as error:
            self._refuse_alerts(400, str(error))
        except JournalError as error:
            self.server.log(f"{error}: alerts are not taken until it can be written again")
            self._refuse(503, "the journal cannot be written; try again")
        else:
            self.server.tell_taken()
            self._answer(200, msgspec.json.encode(taken) + b"\n")

    def _approved_path(self) -> int | None:
        """The incident of a good approval link."""
        parts = self.path.split("/")
        if len(parts) != 4 or parts[1] != "approve" or not parts[2].isdecimal() or len(parts[2]) > 15:
            return None
        return int(parts[2]) if self.server.links.is_good(int(parts[2]), parts[3]) else None

    def _question(self, number: int) -> list[Markup]:
        """A GET changes nothing: programs open links to preview them."""
        incident = self.server.journal.incident(number)
        asked = incident.last("ask")
        if asked is None or incident.closed is not None or incident.answer is not None:
            return [element("p", "Nothing waits for an answer here.")]
        text = str(asked.result.get("text", "")).partition(";")[0]
        return [element("p", text), Markup('<form method="post"><button>Approve</button></form>')]

    def _page(self, title: str, *content: Markup, status: int = 200) -> None:
        head = element("head", Markup('<meta charset="utf-8">'), element("title", title))
        page = element("html", head, element("body", element("h1", title), *content), lang="en")
        self._answer(status, f"<!doctype html>\n{page}\n".encode(), "text/html; charset=utf-8")

    def _refuse_alerts(self, status: int, text: str) -> None:
        self.server.tell_refusal(status, text)
        self._refuse(status, text)

    def _refuse(self, status: int, text: str) -> None:
        self.close_connection = True
        self._answer(status, msgspec.json.encode({"error": text}) + b"\n")

    def _answer(self, status: int, body: bytes, kind: str = "application/json") -> None:
        self.send_response(status)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(body)))
        self.send_header("content-security-policy", "default-src 'none'; form-action 'self'")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base class's name
        """Nothing: paths may hold an approval's signature."""
