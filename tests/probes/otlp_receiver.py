"""A real OTLP/HTTP receiver: decodes the protobuf of metrics and spans, and answers as a test wants."""

import gzip
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest


class Receiver(ThreadingHTTPServer):
    daemon_threads = True
    allow_reuse_address = True

    def __init__(self, port: int = 0) -> None:
        super().__init__(("127.0.0.1", port), Handler)
        self.status = 200
        self.let_go = threading.Event()
        """Answers wait for it."""
        self.let_go.set()
        self.spans: list[Any] = []
        self.resources: list[dict[str, str]] = []
        self.metrics: list[dict[str, Any]] = []
        """Per request: name -> metric."""
        self.asked = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def take(self, path: str, data: bytes) -> None:
        if path == "/v1/traces":
            traces = ExportTraceServiceRequest.FromString(data)
            for of_resource in traces.resource_spans:
                self.resources.append(attributes(of_resource.resource))
                self.spans += [span for scope in of_resource.scope_spans for span in scope.spans]
        else:
            assert path == "/v1/metrics"
            metrics = ExportMetricsServiceRequest.FromString(data)
            self.metrics.append(
                {
                    metric.name: metric
                    for of_resource in metrics.resource_metrics
                    for scope in of_resource.scope_metrics
                    for metric in scope.metrics
                }
            )

    def handle_error(self, request: Any, client_address: Any) -> None:
        """The other side went away: nothing to tell."""


class Handler(BaseHTTPRequestHandler):
    server: Receiver

    def do_POST(self) -> None:
        server = self.server
        server.asked += 1
        data = self.rfile.read(int(self.headers["content-length"]))
        if self.headers.get("content-encoding") == "gzip":
            data = gzip.decompress(data)
        server.let_go.wait(30)
        if server.status == 200:
            server.take(self.path, data)
        self.send_response(server.status)
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base class's name
        pass


@contextmanager
def receiving(port: int = 0) -> Iterator[Receiver]:
    receiver = Receiver(port)
    thread = threading.Thread(target=receiver.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield receiver
    finally:
        receiver.let_go.set()
        receiver.shutdown()
        receiver.server_close()
        thread.join(10)


def attributes(holder: Any) -> dict[str, Any]:
    """Of a span, event, resource or data point, as Python values."""
    return {item.key: _value(item.value) for item in holder.attributes}


def _value(value: Any) -> Any:
    kind = value.WhichOneof("value")
    return [_value(item) for item in value.array_value.values] if kind == "array_value" else getattr(value, kind)
