"""The webhook: who may send, what is taken, and that an answer means it is on disk."""

import contextlib
import json
import socket
import threading
import time
from contextlib import contextmanager
from typing import Any

import pytest
import urllib3

from runbooks.response.journal import Journal
from runbooks.response.receiver import MAX_BODY_BYTES, MAX_CONNECTIONS, Receiver
from tests.runbooks.response.scenes import ACT, Clock, write_config

PAYLOAD: dict[str, Any] = {
    "receiver": "stallscope",
    "status": "firing",
    "alerts": [
        {
            "status": "firing",
            "labels": {"alertname": "InterTokenLatencySlow", "instance": "chat:8000", "severity": "page"},
            "annotations": {"summary": "slow"},
            "startsAt": "2026-11-30T10:00:00.123Z",
            "endsAt": "0001-01-01T00:00:00Z",
            "generatorURL": "http://prometheus:9090/graph?g0.expr=up",
            "fingerprint": "5ef77f1f8a3ecfb8",
        }
    ],
    "groupLabels": {"alertname": "InterTokenLatencySlow"},
    "commonLabels": {},
    "commonAnnotations": {},
    "externalURL": "http://alertmanager:9093",
    "version": "4",
    "groupKey": '{}:{alertname="InterTokenLatencySlow"}',
    "truncatedAlerts": 0,
}


@contextmanager
def receiving(folder, **options):
    config = write_config(folder, "http://127.0.0.1:1", **options)
    journal = Journal(folder / "runbooks.db")
    lines: list[str] = []
    receiver = Receiver(config, journal, "hook", Clock(), lines.append, plan_only=False)
    threading.Thread(target=receiver.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
    try:
        yield receiver, journal, lines
    finally:
        receiver.shutdown()
        receiver.server_close()
        journal.close()


def post(
    receiver: Receiver, body: object, token: str = "Bearer hook", path: str = "/alerts"
) -> urllib3.BaseHTTPResponse:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    return urllib3.request(
        "POST", receiver.url + path, body=data, headers={"Authorization": token}, retries=False, timeout=60
    )


def with_alerts(*alerts: dict[str, Any]) -> dict[str, Any]:
    return {**PAYLOAD, "alerts": [{**PAYLOAD["alerts"][0], **fields} for fields in alerts]}


def test_the_same_notification_twice_is_one_incident(tmp_path):
    with receiving(tmp_path) as (receiver, journal, lines):
        assert post(receiver, PAYLOAD).json()["opened"] == [1]
        assert post(receiver, PAYLOAD).json() == {"opened": [], "joined": 0, "known": 1, "resolved": 0, "unanswered": 0}
        resolved = with_alerts({"status": "resolved", "endsAt": "2026-11-30T10:05:00Z"})
        assert post(receiver, resolved).json()["resolved"] == 1
        assert journal.incident(1).is_resolved
        assert lines == ["incident 1 opened"]


def test_resolved_before_firing_opens_nothing(tmp_path):
    with receiving(tmp_path) as (receiver, journal, _):
        post(receiver, with_alerts({"status": "resolved"}))
        assert post(receiver, PAYLOAD).json()["known"] == 1
        assert journal.open_incidents() == []


def test_a_restart_between_receipt_and_act_loses_nothing(tmp_path):
    with receiving(tmp_path) as (receiver, _, _):
        post(receiver, PAYLOAD)
    with receiving(tmp_path) as (receiver, journal, _):
        assert journal.open_incidents() == [1]
        assert post(receiver, PAYLOAD).json()["known"] == 1


def test_alerts_of_one_group_on_one_target_share_an_incident(tmp_path):
    with receiving(tmp_path) as (receiver, journal, _):
        answer = post(receiver, with_alerts(*({"fingerprint": f"f{number}"} for number in range(5))))
        assert answer.json() == {"opened": [1], "joined": 4, "known": 0, "resolved": 0, "unanswered": 0}
        assert len(journal.incident(1).alerts) == 5


@pytest.mark.parametrize(
    ("labels", "said"),
    [
        ({"alertname": "DiskFull", "instance": "db:1"}, "DiskFull: no runbook has it in its alerts"),
        (
            {"alertname": "InterTokenLatencySlow", "instance": "chat\x1b:9", "severity": "page"},
            "InterTokenLatencySlow: no target's match fits instance='chat\\x1b:9'",
        ),
        (
            {"alertname": "InterTokenLatencySlow", "severity": "page"},
            "InterTokenLatencySlow: no target's match fits no instance",
        ),
        (
            {"alertname": "InterTokenLatencySlow", "instance": "chat:8000", "severity": "warn"},
            "InterTokenLatencySlow: no runbook's match fits its labels",
        ),
    ],
)
def test_alerts_of_nobody_are_taken_and_the_log_says_what_does_not_fit(tmp_path, labels, said):
    with receiving(tmp_path, runbook='match = { severity = "page" }') as (receiver, journal, lines):
        answer = post(receiver, with_alerts({"labels": labels}))
        assert answer.json()["unanswered"] == 1
        assert journal.open_incidents() == []
        assert lines == [f"not answered here: {said}"]


def test_a_sender_that_is_wired_wrongly_is_told_of_once_until_an_alert_is_taken(tmp_path):
    with receiving(tmp_path) as (receiver, _, lines):
        for _ in range(3):
            assert post(receiver, PAYLOAD, token="Bearer wrong").status == 401
        assert post(receiver, b"{bad").status == 400
        assert [line.partition(":")[0] for line in lines] == [
            "a POST to /alerts was refused (401)",
            "a POST to /alerts was refused (400)",
        ]
        assert post(receiver, PAYLOAD).status == 200
        post(receiver, PAYLOAD, token="")
        assert sum("(401)" in line for line in lines) == 2


def test_who_comes_to_another_place_is_told_where_alerts_go(tmp_path):
    with receiving(tmp_path) as (receiver, _, _):
        assert "/alerts, by POST" in post(receiver, PAYLOAD, path="/").json()["error"]
        assert "/alerts, by POST" in urllib3.request("GET", f"{receiver.url}/alerts").json()["error"]


@pytest.mark.parametrize("token", ["", "Bearer wrong", "Basic hook", "hook", "Bearer hook2", "Bearer høøk"])
def test_without_the_token_nothing_is_taken(tmp_path, token):
    with receiving(tmp_path) as (receiver, journal, _):
        answer = post(receiver, PAYLOAD, token=token)
        assert answer.status == 401
        assert journal.incidents(10) == []


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"", "not an Alertmanager webhook"),
        (b"[]", "Expected `object`"),
        (b'{"version":"4"}', "missing required field `alerts`"),
        (b"\xff\xfe", "not an Alertmanager webhook"),
        (b'{"a":' * 3000, "not an Alertmanager webhook"),
        ({**PAYLOAD, "version": "3"}, "webhook version '3'"),
        (with_alerts({"status": "maybe"}), "a status other than firing and resolved"),
        (with_alerts({"fingerprint": ""}), "without a fingerprint"),
        (with_alerts({"labels": {"alertname": 3}}), "$.alerts[0].labels"),
    ],
)
def test_what_is_no_webhook_is_told_so(tmp_path, body, words):
    with receiving(tmp_path) as (receiver, journal, _):
        answer = post(receiver, body)
        assert answer.status == 400
        assert words in answer.json()["error"]
        assert journal.incidents(10) == []


def test_a_body_too_large_is_refused_unread(tmp_path):
    with receiving(tmp_path) as (receiver, _, _):
        headers = {"Authorization": "Bearer hook", "Content-Length": str(MAX_BODY_BYTES + 1)}
        answer = urllib3.request("POST", receiver.url + "/alerts", headers=headers, body=b"x", retries=False)
        assert answer.status == 413


def test_a_journal_that_cannot_be_written_is_no_receipt(tmp_path):
    """Alertmanager sends again after a 503."""
    with receiving(tmp_path) as (receiver, journal, lines):
        (pages,) = journal._connection.execute("PRAGMA page_count").fetchone()
        journal._connection.execute(f"PRAGMA max_page_count = {pages}")
        many = with_alerts(*({"fingerprint": f"f{number}"} for number in range(500)))
        assert post(receiver, many).status == 503
        assert "full" in lines[-1]
        journal._connection.execute("PRAGMA max_page_count = 100000")
        assert post(receiver, many).json()["joined"] == 499


def test_ten_thousand_alerts_are_one_transaction(tmp_path):
    with receiving(tmp_path) as (receiver, _, lines):
        many = with_alerts(*({"fingerprint": f"f{number}"} for number in range(10_000))) | {"truncatedAlerts": 7}
        assert post(receiver, many).json()["joined"] == 9999
        assert "left 7 alerts out" in lines[0]


def test_an_approval_link_is_good_once_and_only_when_posted(tmp_path):
    with receiving(tmp_path, acts=ACT.replace('"auto"', '"approve"')) as (receiver, journal, _):
        post(receiver, PAYLOAD)
        step = journal.begin(1, "ask", {}, 1.0)
        journal.end(step, {"text": "approval wanted: <b>512</b> -> 256; more"}, 2.0)
        link = receiver.links.link(1)
        page = urllib3.request("GET", link).data.decode()
        assert "approval wanted: &lt;b&gt;512&lt;/b&gt; -&gt; 256" in page
        assert journal.incident(1).answer is None, "a preview approves nothing"
        assert urllib3.request("POST", link[:-1] + ("0" if link[-1] != "0" else "1"), retries=False).status == 404
        assert urllib3.request("POST", link, retries=False).status == 200
        answer = journal.incident(1).answer
        assert answer is not None and answer.approved and answer.who == "an approval link"
        assert urllib3.request("POST", link, retries=False).status == 409
        other = receiver.links.link(2).rpartition("/")[2]
        assert urllib3.request("POST", f"{receiver.url}/approve/1/{other}", retries=False).status == 404


def closed_after(connection: socket.socket) -> bool:
    """Whether the receiver closed it without a word."""
    connection.settimeout(30)
    try:
        return connection.recv(100) == b""
    except ConnectionResetError:
        return True


def test_a_sender_that_dribbles_holds_its_connection_no_longer_than_others(tmp_path):
    """One byte now and then would keep a timeout of the socket from ever ending."""
    with receiving(tmp_path) as (receiver, journal, _):
        receiver.patience_seconds = 0.5
        head = b"POST /alerts HTTP/1.1\r\nAuthorization: Bearer hook\r\nContent-Length: 1000\r\n\r\n"
        with socket.create_connection(receiver.server_address[:2]) as slow:
            slow.sendall(head)
            ended = threading.Event()

            def dribble() -> None:
                while not ended.wait(0.02):
                    with contextlib.suppress(OSError):
                        slow.send(b" ")

            thread = threading.Thread(target=dribble)
            thread.start()
            try:
                assert closed_after(slow)
            finally:
                ended.set()
                thread.join()
        assert post(receiver, PAYLOAD).status == 200
        assert journal.open_incidents() == [1]


def test_connections_beyond_the_limit_are_turned_away_and_come_back(tmp_path):
    with receiving(tmp_path) as (receiver, _, _):
        receiver.patience_seconds = 2.0
        idle = [socket.create_connection(receiver.server_address[:2]) for _ in range(MAX_CONNECTIONS)]
        try:
            with socket.create_connection(receiver.server_address[:2]) as one_too_many:
                assert closed_after(one_too_many)
            assert closed_after(idle[0]), "silent ones are given up"
            while receiver._free._value < MAX_CONNECTIONS:
                time.sleep(0.01)
            assert post(receiver, PAYLOAD).status == 200
        finally:
            for connection in idle:
                connection.close()
