"""The /metrics page for Prometheus: a small HTTP server in threads of its own."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterable
from socketserver import ThreadingMixIn
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from prometheus_client import CollectorRegistry, make_wsgi_app

REQUEST_S = 10
"""Seconds that a client may take to send its request or to read the answer."""


class PortTaken(Exception):
    """The page cannot be served where it was asked for; the message says where and why, in one line."""


class _Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True
    allow_reuse_address = True

    def server_bind(self) -> None:
        """Bind without asking the name service for the host's name, which may take its time."""
        socket_, (host, port) = self.socket, self.server_address[:2]
        socket_.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        socket_.bind((host, port))
        self.server_address = socket_.getsockname()
        self.server_name, self.server_port = str(host), self.server_address[1]
        self.setup_environ()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing of a client that went away."""


class _ServerV6(_Server):
    address_family = socket.AF_INET6


class _Handler(WSGIRequestHandler):
    timeout = REQUEST_S

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the name is the library's
        """Say nothing of requests."""


class Endpoint:
    """Serves what `registry` collects at ``http://host:port/metrics``; any other path answers 404.

    `port` 0 takes any free one. Raises `PortTaken` when it cannot listen there. Requests are answered while the event
    loop hangs, one after the other: a collection is taken apart while it is written.
    """

    def __init__(self, registry: CollectorRegistry, host: str, port: int) -> None:
        page: Callable[..., Iterable[bytes]] = make_wsgi_app(registry)
        one_at_a_time = threading.Lock()

        def answer(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
            if environ["PATH_INFO"] != "/metrics":
                start_response("404 Not Found", [("Content-Type", "text/plain; charset=utf-8")])
                return [b"the metrics are at /metrics\n"]
            with one_at_a_time:
                return page(environ, start_response)

        server_class = _ServerV6 if ":" in host else _Server
        try:
            self._server = make_server(host, port, answer, server_class, handler_class=_Handler)
        except OSError as error:
            reason = (error.strerror or str(error)).lower()
            raise PortTaken(f"no /metrics page at {host}:{port}: {reason}") from error
        self.port: int = self._server.server_port
        """Where it listens."""
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(0.1,), name="eventrain-metrics-page", daemon=True
        )
        self._thread.start()

    def close(self, deadline_s: float = 2.0) -> None:
        """Stop to listen; requests that are being answered end by themselves."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(deadline_s)
