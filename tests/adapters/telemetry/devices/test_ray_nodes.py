"""Pages of Ray nodes: a real one of Ray 2.60, with GPUs added, served by a server of this machine."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from eventrain.adapters.telemetry.devices.ray_nodes import RaySource
from eventrain.adapters.telemetry.devices.source import SourceFailed

PAGE = (Path(__file__).parent.parent / "golden" / "ray_node_2_60.txt").read_text()
"""What `ray.init` served on a machine without a GPU, the families of the node itself."""


def with_gpus(page: str) -> str:
    """Return the page with two GPUs, whose lines have the node's labels and the three that Ray adds for a GPU."""
    labels = re.search(r"ray_node_cpu_utilization\{(.*)\}", page).group(1)  # type: ignore[union-attr]
    for name, values in (
        ("ray_node_gpus_utilization", (87.0, 0.0)),
        ("ray_node_gram_used", (1024.0, 3.0)),
        ("ray_node_gram_available", (3072.0, 4093.0)),
    ):
        page += f"# HELP {name} of a GPU\n# TYPE {name} gauge\n"
        for index, value in enumerate(values):
            page += (
                f'{name}{{GpuDeviceName="H200",GpuIndex="{index}",GpuUuid="GPU-{index}",{labels}}} {value}\n'
            )
    return page


Serve = Callable[[Callable[[BaseHTTPRequestHandler], None]], str]


@pytest.fixture
def serve() -> Iterator[Serve]:
    """Return the URL of a server that answers with what it is given."""
    servers: list[tuple[ThreadingHTTPServer, threading.Thread]] = []

    def start(answer: Callable[[BaseHTTPRequestHandler], None]) -> str:
        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                answer(self)

            def log_message(self, *_: object) -> None: ...

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        servers.append((server, thread))
        return f"http://127.0.0.1:{server.server_port}/metrics"

    yield start
    for server, thread in servers:
        server.shutdown()
        server.server_close()
        thread.join()


def saying(page: str) -> Callable[[BaseHTTPRequestHandler], None]:
    def answer(request: BaseHTTPRequestHandler) -> None:
        request.send_response(200)
        request.end_headers()
        request.wfile.write(page.encode())

    return answer


def test_a_node_without_a_gpu_is_its_cpus(serve: Serve) -> None:
    """The page as Ray 2.60 serves it gives one reading, over the time since the source was opened."""
    times = iter([10.0, 15.0])
    source = RaySource(serve(saying(PAGE)), now=lambda: next(times))
    source.open()
    (reading,) = source.sample()
    assert reading.device == "192.0.2.2/cpu"
    assert (reading.utilization, reading.window_s, reading.source, reading.pool) == (
        0.0,
        5.0,
        "ray",
        "shared",
    )
    assert (reading.memory_bytes, reading.memory_total_bytes) == (689_328_128, 25_275_990_016)


def test_every_gpu_of_a_node_is_a_device(serve: Serve) -> None:
    """Percent become shares, and Ray's MiB become bytes."""
    source = RaySource(serve(saying(with_gpus(PAGE))))
    source.open()
    found = {reading.device: reading for reading in source.sample()}
    assert set(found) == {"192.0.2.2/cpu", "192.0.2.2/gpu0", "192.0.2.2/gpu1"}
    first = found["192.0.2.2/gpu0"]
    assert (first.utilization, first.memory_bytes, first.memory_total_bytes) == (0.87, 2**30, 4 * 2**30)


@pytest.mark.parametrize("page", ["", "hello", "up 1\n", "ray_node_cpu_utilization{ip= 1\n"])
def test_another_page_is_refused(page: str, serve: Serve) -> None:
    """A page that is no Ray node's, or no page for Prometheus at all, is said to be that."""
    source = RaySource(serve(saying(page)))
    source.open()
    with pytest.raises(SourceFailed, match="/metrics"):
        source.sample()


def test_a_page_that_does_not_end_has_a_deadline(serve: Serve) -> None:
    """A server that sends a little now and then does not hold anybody up for longer than allowed."""
    done = threading.Event()

    def drip(request: BaseHTTPRequestHandler) -> None:
        request.send_response(200)
        request.end_headers()
        while not done.wait(0.02):
            try:
                request.wfile.write(b"# more\n")
            except OSError:
                return

    source = RaySource(serve(drip), timeout_s=0.2)
    source.open()
    try:
        with pytest.raises(SourceFailed, match=r"no page within 0\.2 s"):
            source.sample()
    finally:
        done.set()


def test_a_node_that_is_gone_is_one_line(serve: Serve) -> None:
    """Nobody listens: the line says where and why."""
    source = RaySource("http://127.0.0.1:9/metrics")
    source.open()
    with pytest.raises(SourceFailed, match=r"http://127\.0\.0\.1:9/metrics: .*refused"):
        source.sample()


def test_another_kind_of_address_is_refused() -> None:
    """Files are not read."""
    with pytest.raises(SourceFailed, match="no http:// or https:// URL"):
        RaySource("file:///etc/passwd").open()
