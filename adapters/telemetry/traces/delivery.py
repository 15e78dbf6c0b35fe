"""One OTLP receiver over HTTP: requests with a deadline, tried again where the protocol says so.

It blocks; `sender` puts it into a thread of its own. Nothing is raised for what a receiver does or does not do: the
answer says what became of the request.
"""

from __future__ import annotations

import gzip
import http.client
import os
import socket
import ssl
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Literal, NamedTuple
from urllib.parse import unquote, urlsplit

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse

Reason = Literal["queue_full", "unreachable", "refused", "timed_out", "failed"]
"""As in TelemetryDropped: the queue was full; nobody listens; the receiver does not want it (4xx, or rejected spans);
it took longer than the deadline; it says that it failed (5xx, or no HTTP)."""

TRY_AGAIN = frozenset({429, 502, 503, 504})
"""Statuses after which a client is to try again (OTLP 1.x, "Retryable response codes")."""
HUNG_UP = (ConnectionResetError, BrokenPipeError)
"""How one notices that a receiver has closed a kept connection meanwhile, as it may at any time (RFC 9112, section
9.3.1). To send again is safe: spans have ids of their own."""
PATH = "/v1/traces"
BACKOFF_S = 0.25
BACKOFF_MAX_S = 5.0
ANSWER_BYTES_MAX = 64 * 1024
GZIP_LEVEL = 1
"""Half the time of level 6 for a tenth more bytes."""


class Outcome(NamedTuple):
    """What became of a request."""

    reason: Reason | None = None
    """None: it arrived."""
    message: str = ""
    """Why not, for a person."""
    again: bool = False
    """Whether the same request may succeed later."""
    retry_after_s: float = 0.0
    rejected: int = 0
    """Spans that the receiver did not take from a request that arrived."""


class Delivery:
    """Sends requests to one receiver, over one connection that is kept. Close it with `close`."""

    def __init__(self, endpoint: str, *, timeout_s: float = 5.0, retry_s: float = 60.0) -> None:
        """Take the base URL of a receiver; the path of the signal is added. Connects at the first request."""
        parts = urlsplit(endpoint)
        self.endpoint = endpoint
        self.timeout_s = timeout_s
        self.retry_s = retry_s
        """How long one request is tried."""
        path = parts.path.rstrip("/")
        self.path = path if path.endswith(PATH) else path + PATH
        self._host, self._port, self._secure = parts.hostname or "", parts.port, parts.scheme == "https"
        self._headers = {
            "Content-Type": "application/x-protobuf",
            "Content-Encoding": "gzip",
            "User-Agent": "eventrain",
            **headers_of(os.environ),
        }
        self._connection: http.client.HTTPConnection | None = None
        self.trouble = ""
        """Why the last try failed, while the same body is tried again; empty once one has arrived."""

    def deliver(self, body: bytes, stop: threading.Event, until: float | None = None) -> Outcome:
        """Send `body`, again and again if need be, for `retry_s`; end early, with the last outcome, when `stop` is set.

        `until` bounds it also in absolute time, of the monotonic clock.
        """
        packed = gzip.compress(body, GZIP_LEVEL, mtime=0)
        end = time.monotonic() + self.retry_s
        backoff_s = BACKOFF_S
        while True:
            end = min(end, until) if until is not None else end
            outcome = self.once(packed, until)
            self.trouble = outcome.message if outcome.reason is not None else ""
            pause_s = max(backoff_s, outcome.retry_after_s)
            if not outcome.again or time.monotonic() + pause_s >= end or stop.wait(pause_s):
                return outcome
            backoff_s = min(2 * backoff_s, BACKOFF_MAX_S)

    def once(self, packed: bytes, until: float | None = None) -> Outcome:
        """Send a gzipped body once; a second time at once if that was over a connection which had been closed."""
        limit_s = self.timeout_s if until is None else min(self.timeout_s, until - time.monotonic())
        if limit_s <= 0:
            return Outcome("timed_out", f"{self.endpoint}: no time was left")
        kept, late = self._is_connected, threading.Event()
        try:
            answer, content = self._answer(packed, limit_s, late)
        except (OSError, http.client.HTTPException) as error:
            self.close()
            if kept and isinstance(error, HUNG_UP) and not late.is_set():
                return self.once(packed, until)  # over a new connection, so not a third time
            return self._broken(error, limit_s, late=late.is_set())
        return self._judged(answer, content)

    def _answer(
        self, packed: bytes, limit_s: float, late: threading.Event
    ) -> tuple[http.client.HTTPResponse, bytes]:
        connection = self._connected(limit_s)
        timer = threading.Timer(limit_s, self._too_late, (connection, late))
        timer.daemon = True
        timer.start()  # a socket's own timeout begins anew with each byte that trickles in
        try:
            connection.request("POST", self.path, packed, self._headers)
            answer = connection.getresponse()
            content = answer.read(ANSWER_BYTES_MAX)
            if not answer.isclosed():
                self.close()
        finally:
            timer.cancel()
        return answer, content

    def close(self) -> None:
        """Close the connection. The next request makes another one."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    @property
    def _is_connected(self) -> bool:
        """Whether the next request goes over a connection that has served one before."""
        return self._connection is not None and self._connection.sock is not None

    def _connected(self, limit_s: float) -> http.client.HTTPConnection:
        made = self._connection
        if made is None:
            if self._secure:
                context = ssl.create_default_context()
                made = http.client.HTTPSConnection(self._host, self._port, timeout=limit_s, context=context)
            else:
                made = http.client.HTTPConnection(self._host, self._port, timeout=limit_s)
            self._connection = made
        if made.sock is None:  # new, or the receiver closed it behind its last answer
            made.timeout = limit_s
            made.connect()
        made.sock.settimeout(limit_s)
        return made

    def _too_late(self, connection: http.client.HTTPConnection, late: threading.Event) -> None:
        late.set()
        with suppress(OSError, AttributeError):  # it has just been closed
            connection.sock.shutdown(socket.SHUT_RDWR)

    def _broken(self, error: Exception, limit_s: float, *, late: bool) -> Outcome:
        if late or isinstance(error, TimeoutError):
            message = f"{self.endpoint}: no answer within {limit_s:.3g} s"
            return Outcome("timed_out", message, again=True)
        text = " ".join(str(error).split()) or type(error).__name__
        if isinstance(error, http.client.HTTPException) and not isinstance(error, ConnectionError):
            return Outcome("failed", f"{self.endpoint}: is no OTLP receiver over HTTP ({text})")
        if isinstance(error, OSError) and error.strerror and not isinstance(error, socket.gaierror):
            text = error.strerror.lower()
        return Outcome("unreachable", f"{self.endpoint}: {text}", again=True)

    def _judged(self, answer: http.client.HTTPResponse, content: bytes) -> Outcome:
        status = answer.status
        if 200 <= status < 300:
            return self._accepted(content)
        message = f"{self.endpoint}: {status} {answer.reason}".rstrip()
        if status in TRY_AGAIN:
            after = answer.headers.get("Retry-After", "")
            after_s = float(after) if after.isdecimal() else 0.0
            return Outcome("failed", message, again=True, retry_after_s=after_s)
        return Outcome("failed" if status >= 500 else "refused", message)

    def _accepted(self, content: bytes) -> Outcome:
        with suppress(Exception):  # an answer in a form of its own; it was a success
            partial = ExportTraceServiceResponse.FromString(content).partial_success
            if partial.rejected_spans:
                why = f"{self.endpoint}: {partial.error_message or 'rejected some spans'}"
                return Outcome(None, why, rejected=partial.rejected_spans)
        return Outcome()


def headers_of(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the headers that OTEL_EXPORTER_OTLP_HEADERS asks for (``key=value,key=value``), such as a token."""
    found = {}
    for pair in environment.get("OTEL_EXPORTER_OTLP_HEADERS", "").split(","):
        key, equals, value = pair.partition("=")
        if equals:
            found[key.strip()] = unquote(value.strip())
    return found
