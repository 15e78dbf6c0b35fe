"""An OTLP receiver in this process, which takes nothing that is not exactly OTLP."""

from __future__ import annotations

import gzip
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from google.protobuf.message import Message
from google.protobuf.unknown_fields import UnknownFieldSet
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

Answer = tuple[int, bytes, dict[str, str]]
OK: Answer = (200, b"", {})


class Receiver:
    """What arrived, and what is answered: `answers` first, one each, then `then`."""

    def __init__(self, answers: list[Answer], then: Answer) -> None:
        self.requests: list[ExportTraceServiceRequest] = []
        self.problems: list[str] = []
        self.seen = 0
        self.changed = threading.Condition()
        self.silent = threading.Event()
        """Set while it never answers; `released` lets go of who waits."""
        self.released = threading.Event()
        self.url = ""
        self._answers = answers
        self._then = then

    def spans(self) -> list[Any]:
        """Return all spans that arrived, in their order."""
        return [
            span
            for request in self.requests
            for of_resource in request.resource_spans
            for of_scope in of_resource.scope_spans
            for span in of_scope.spans
        ]

    def wait_for(self, count: int) -> None:
        """Wait until `count` requests were seen."""
        with self.changed:
            assert self.changed.wait_for(lambda: self.seen >= count, 30), f"{self.seen} of {count} requests"

    def take(self, path: str, headers: Any, body: bytes) -> Answer:
        """Note one request and return what is answered."""
        try:
            assert path == "/v1/traces", path
            assert headers["Content-Type"] == "application/x-protobuf"
            assert headers["Content-Encoding"] == "gzip"
            request = ExportTraceServiceRequest.FromString(gzip.decompress(body))
            check(request)
        except Exception as error:  # noqa: BLE001 - told to the test
            self.problems.append(repr(error))
            request = None
        with self.changed:
            answer = self._answers.pop(0) if self._answers else self._then
            if request is not None and answer[0] == 200:
                self.requests.append(request)
            self.seen += 1
            self.changed.notify_all()
        return answer


def check(message: Message) -> None:
    """Assert that no part of `message` has a field that OTLP does not know, and that every span is well formed."""
    assert len(UnknownFieldSet(message)) == 0, message
    if message.DESCRIPTOR.full_name == "opentelemetry.proto.trace.v1.Span":
        assert len(message.trace_id) == 16
        assert len(message.span_id) == 8
        assert len(message.parent_span_id) in (0, 8)
        assert 0 < message.start_time_unix_nano <= message.end_time_unix_nano
        assert message.name
        keys = [attribute.key for attribute in message.attributes]
        assert len(keys) == len(set(keys)), keys
    for field, value in message.ListFields():
        if field.message_type is not None:
            for one in value if not isinstance(value, Message) else [value]:
                check(one)


@contextmanager
def receiving(
    *answers: Answer, then: Answer = OK, protocol: str = "HTTP/1.1"
) -> Iterator[Receiver]:
    """Give a receiver for the length of a block; what it could not accept fails the test.

    With ``HTTP/1.0`` it closes the connection behind every answer.
    """
    receiver = Receiver(list(answers), then)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = protocol

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            status, content, headers = receiver.take(self.path, self.headers, body)
            if receiver.silent.is_set():
                receiver.released.wait(60)
                self.close_connection = True
                return
            self.send_response(status)
            for key, value in headers.items():
                self.send_header(key, value)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the library's name
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    receiver.url = f"http://127.0.0.1:{server.server_address[1]}"
    serving = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    serving.start()
    try:
        yield receiver
    finally:
        receiver.released.set()
        server.shutdown()
        serving.join()
        server.server_close()
    assert receiver.problems == []
