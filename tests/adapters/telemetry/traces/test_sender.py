"""Sending to receivers that work, fail, hang or are gone: what arrives, what is counted, and that nobody is held up."""

from __future__ import annotations

import socket
import threading
import time

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTracePartialSuccess,
    ExportTraceServiceResponse,
)
from otlp_receiver import OK, receiving
from trace_logs import Told, spans_of

from eventrain.adapters.telemetry.traces.delivery import Delivery, headers_of
from eventrain.adapters.telemetry.traces.sender import SpanSender
from eventrain.adapters.telemetry.traces.spans import Span

BUSY = (503, b"", {})
BROKEN = (500, b"", {})
NEVER = threading.Event()


def some() -> list[Span]:
    """Return a few spans."""
    told = Told()
    told.group(1, 0.1, 0.1)
    told.step(0, 1)
    return spans_of(told.records)


def closed_port() -> str:
    """Return the URL of a port where nobody listens."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    return f"http://127.0.0.1:{port}"


def test_what_is_offered_arrives_once_and_in_order() -> None:
    """Batches are cut as configured, and closing sends what still waits."""
    spans = some()
    with receiving() as receiver:
        sender = SpanSender(Delivery(receiver.url), batch_max=5)
        sender.offer(spans)
        sender.close(20)
    assert [span.span_id for span in receiver.spans()] == [span.span_id for span in spans]
    assert len(receiver.requests) >= len(spans) // 5
    assert sender.sent == len(spans)
    assert sender.take_drops() == {}
    assert sender.first_failure == ""


@pytest.mark.parametrize("answer", [OK, (200, b"", {"Connection": "close"})], ids=["HTTP/1.0", "close"])
def test_a_receiver_that_closes_behind_every_answer_gets_all(answer) -> None:
    """Each batch then has a connection of its own."""
    spans = some()
    protocol = "HTTP/1.0" if answer is OK else "HTTP/1.1"
    with receiving(then=answer, protocol=protocol) as receiver:
        sender = SpanSender(Delivery(receiver.url), batch_max=5)
        sender.offer(spans)
        sender.close(20)
    assert sender.take_drops() == {}
    assert len(receiver.spans()) == len(spans)
    assert len(receiver.requests) > 2


def test_a_defect_costs_its_batch_and_not_the_sender() -> None:
    """What a batch raises is counted as failed and told, and the next one is sent."""

    class Defective(Delivery):
        broken = True

        def deliver(self, *args: object, **kwargs: object) -> object:
            if self.broken:
                self.broken = False
                raise ZeroDivisionError("by nothing")
            return super().deliver(*args, **kwargs)  # type: ignore[arg-type]

    spans = some()
    with receiving() as receiver:
        sender = SpanSender(Defective(receiver.url), batch_max=5)
        sender.offer(spans)
        sender.close(20)
    assert sender.take_drops() == {"failed": 5}
    assert sender.first_failure == "ZeroDivisionError: by nothing"
    assert len(receiver.spans()) == len(spans) - 5


@pytest.mark.parametrize("status", [429, 502, 503, 504])
def test_a_receiver_that_is_busy_is_asked_again(status: int) -> None:
    """The same request is sent again until it is taken, and nothing is dropped."""
    spans = some()
    answers = (status, b"", {}), (status, b"", {"Retry-After": "0"})
    with receiving(*answers) as receiver, SpanSender(Delivery(receiver.url)) as sender:
        sender.offer(spans)
        receiver.wait_for(3)
        sender.close(10)
    assert len(receiver.spans()) == sender.sent == len(spans)
    assert sender.take_drops() == {}


def test_a_receiver_that_stays_busy_is_given_up() -> None:
    """After the time for one request the batch is dropped, counted as failed, and the reason is kept."""
    with receiving(then=BUSY) as receiver:
        sender = SpanSender(Delivery(receiver.url, retry_s=0.4))
        sender.offer(some())
        receiver.wait_for(2)
        sender.close(5)
    assert sender.take_drops() == {"failed": len(some())}
    assert sender.first_failure == f"{receiver.url}: 503 Service Unavailable"


@pytest.mark.parametrize(("answer", "reason"), [(BROKEN, "failed"), ((400, b"", {}), "refused")])
def test_an_answer_that_is_final_is_not_asked_for_again(answer, reason: str) -> None:
    """A defect of the receiver, or a request that it does not want, costs one batch and no time."""
    with receiving(answer, then=OK) as receiver:
        sender = SpanSender(Delivery(receiver.url))
        sender.offer(some())
        receiver.wait_for(1)
        sender.close(10)
    assert receiver.seen == 1
    assert sender.take_drops() == {reason: len(some())}


def test_spans_that_the_receiver_rejects_are_counted_as_refused() -> None:
    """A partial success counts what was left out."""
    partial = ExportTracePartialSuccess(rejected_spans=3, error_message="too old")
    content = ExportTraceServiceResponse(partial_success=partial).SerializeToString()
    with receiving((200, content, {})) as receiver:
        sender = SpanSender(Delivery(receiver.url))
        sender.offer(some())
        receiver.wait_for(1)
        sender.close(10)
    assert sender.take_drops() == {"refused": 3}
    assert sender.sent == len(some()) - 3
    assert sender.first_failure.endswith("too old")


def test_a_receiver_that_is_gone_costs_its_spans_and_nothing_else() -> None:
    """Offering returns at once, what does not fit is counted apart, and closing takes as long as it may."""
    sender = SpanSender(Delivery(closed_port()), queue_max=10, batch_max=10)
    began = time.monotonic()
    for _ in range(100):
        sender.offer(some())
    assert time.monotonic() - began < 2
    sender.close(0.3)
    assert time.monotonic() - began < 5
    drops = sender.take_drops()
    assert set(drops) == {"queue_full", "unreachable"}
    assert sum(drops.values()) == 100 * len(some())
    assert "connection refused" in sender.first_failure


def test_a_receiver_that_hangs_holds_nobody_up() -> None:
    """Its request ends at the deadline, closing does not wait longer than it may, and all is counted."""
    with receiving() as receiver:
        receiver.silent.set()
        sender = SpanSender(Delivery(receiver.url, timeout_s=0.2, retry_s=0.1), batch_max=5)
        began = time.monotonic()
        sender.offer(some())
        receiver.wait_for(1)
        sender.close(0.5)
        assert time.monotonic() - began < 5
    assert sender.take_drops() == {"timed_out": len(some())}
    assert "no answer within" in sender.first_failure


def test_a_receiver_that_trickles_is_cut_off_at_the_deadline() -> None:
    """One byte now and then keeps a socket's own timeout from ever ending; the deadline counts all of it."""
    over = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as server:

        def trickle() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(65536)
                while not over.wait(0.05):
                    try:
                        connection.sendall(b"H")
                    except OSError:
                        return

        serving = threading.Thread(target=trickle)
        serving.start()
        delivery = Delivery(f"http://127.0.0.1:{server.getsockname()[1]}", timeout_s=0.4, retry_s=0)
        began = time.monotonic()
        outcome = delivery.deliver(b"", NEVER)
        took_s = time.monotonic() - began
        over.set()
        serving.join()
        delivery.close()
    assert outcome.reason == "timed_out"
    assert 0.3 < took_s < 3


def test_a_kept_connection_that_was_closed_meanwhile_is_no_trouble() -> None:
    """The request goes again over a new one, at once; who hangs up on that too has failed."""
    taken = []
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            for _ in range(3):
                connection, _address = server.accept()
                with connection:
                    taken.append(connection.recv(65536))
                    if len(taken) < 3:
                        connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")

        serving = threading.Thread(target=serve)
        serving.start()
        delivery = Delivery(f"http://127.0.0.1:{server.getsockname()[1]}", retry_s=0)
        for _ in range(2):
            assert delivery.deliver(b"", NEVER).reason is None
            assert delivery.trouble == ""
        assert delivery.deliver(b"", NEVER).reason == "unreachable"
        assert delivery.trouble
        serving.join()
        delivery.close()
    assert len(taken) == 3


def test_what_is_no_receiver_is_told_apart() -> None:
    """A server that does not speak HTTP is a failure, not an outage."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def shout() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(65536)
                connection.sendall(b"SSH-2.0-thing\r\n")

        serving = threading.Thread(target=shout)
        serving.start()
        delivery = Delivery(f"http://127.0.0.1:{server.getsockname()[1]}", timeout_s=5)
        outcome = delivery.deliver(b"", NEVER)
        serving.join()
        delivery.close()
    assert outcome.reason == "failed"
    assert "is no OTLP receiver" in outcome.message


def test_whoever_can_wait_waits_for_room_while_the_receiver_works() -> None:
    """A slow receiver is waited for; one that fails is not."""
    with receiving() as receiver, SpanSender(Delivery(receiver.url), queue_max=30, batch_max=5) as sender:
        for _ in range(10):
            spans = some()
            assert sender.wait_for_room(len(spans), 20)
            sender.offer(spans)
        sender.close(20)
        assert sender.take_drops() == {}
        assert sender.sent == 10 * len(some())
    with SpanSender(Delivery(closed_port(), retry_s=0), queue_max=1) as gone:
        gone.offer(some()[:1])
        gone.close(1)
        assert gone.failing


def test_headers_come_from_the_environment_variable_of_opentelemetry() -> None:
    """A token for the receiver is given as to any other OpenTelemetry exporter."""
    given = {"OTEL_EXPORTER_OTLP_HEADERS": "Authorization=Bearer%20abc, x-team = rl,nonsense"}
    assert headers_of(given) == {"Authorization": "Bearer abc", "x-team": "rl"}
    assert headers_of({}) == {}


def test_the_path_of_the_signal_is_added_once() -> None:
    """A base URL, one with a path, and the full URL lead to the right place."""
    for given, path in (
        ("http://h:4318", "/v1/traces"),
        ("http://h:4318/", "/v1/traces"),
        ("http://h/otlp", "/otlp/v1/traces"),
        ("http://h/v1/traces", "/v1/traces"),
    ):
        assert Delivery(given).path == path
