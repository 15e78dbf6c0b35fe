"""Devices of Ray nodes, from the page that each node serves for Prometheus.

Ray looks at its devices every few seconds and says the last value, over a window that nobody knows; so do not expect
these figures to follow a phase that is shorter. GPU memory is in MiB there, whatever the page says.
"""

from __future__ import annotations

import http.client
import time
import urllib.request
from collections.abc import Callable
from typing import Any
from urllib.error import URLError
from urllib.parse import urlsplit

from ...wording import require
from .source import Reading, SourceFailed, share_of

PAGE_BYTES_MAX = 16 * 2**20
CHUNK_BYTES = 2**16
MEBIBYTE = 2**20

GPU_BUSY, GPU_USED, GPU_FREE = "ray_node_gpus_utilization", "ray_node_gram_used", "ray_node_gram_available"
CPU_BUSY, MEMORY_USED, MEMORY_TOTAL = "ray_node_cpu_utilization", "ray_node_mem_used", "ray_node_mem_total"
READ = {GPU_BUSY, GPU_USED, GPU_FREE, CPU_BUSY, MEMORY_USED, MEMORY_TOTAL}


class RaySource:
    """The node whose page is at `url`; one look takes at most `timeout_s`."""

    exact = False

    def __init__(self, url: str, timeout_s: float = 1.0, now: Callable[[], float] = time.monotonic) -> None:
        self.name = f"ray {urlsplit(url).netloc or url}"
        self._url = url
        self._timeout_s = timeout_s
        self._now = now
        self._since = 0.0
        self._parser: Any = None

    def open(self) -> None:
        """Begin the first window. Raises `MissingExtra` without prometheus_client, `SourceFailed` for another URL."""
        if not self._url.startswith(("http://", "https://")):
            raise SourceFailed(f"telemetry.ray_metrics: {self._url} is no http:// or https:// URL")
        self._parser = require("prometheus_client.parser", "telemetry")
        self._since = self._now()

    def sample(self) -> list[Reading]:
        """Return a reading of the node's CPUs, and one of each of its GPUs. Raises `SourceFailed`."""
        figures = self._figures(self._page())
        now = self._now()
        window_s, self._since = now - self._since, now
        readings = [
            Reading(
                f"{ip}/cpu",
                "shared",
                share_of(figures[CPU_BUSY, ip, ""]),
                int(figures.get((MEMORY_USED, ip, ""), 0)),
                window_s,
                "ray",
                memory_total_bytes=_whole(figures.get((MEMORY_TOTAL, ip, ""))),
            )
            for name, ip, _ in figures
            if name == CPU_BUSY
        ]
        for name, ip, gpu in figures:
            if name == GPU_BUSY:
                used, free = figures.get((GPU_USED, ip, gpu), 0.0), figures.get((GPU_FREE, ip, gpu))
                readings.append(
                    Reading(
                        f"{ip}/gpu{gpu}",
                        "shared",
                        share_of(figures[name, ip, gpu]),
                        int(used * MEBIBYTE),
                        window_s,
                        "ray",
                        memory_total_bytes=None if free is None else int((used + free) * MEBIBYTE),
                    )
                )
        if not readings:
            raise SourceFailed(
                f"{self._url} is no page of a Ray node: it has neither {CPU_BUSY} nor {GPU_BUSY}"
            )
        return readings

    def close(self) -> None:
        """Hold nothing: every look is a connection of its own."""

    def _page(self) -> str:
        """Return the page. Raises `SourceFailed` when it is not there in time."""
        ends = time.monotonic() + self._timeout_s
        page = bytearray()
        try:
            with urllib.request.urlopen(self._url, timeout=self._timeout_s) as answer:
                while chunk := answer.read1(CHUNK_BYTES):
                    page += chunk
                    if len(page) > PAGE_BYTES_MAX:
                        raise SourceFailed(f"{self._url}: more than {PAGE_BYTES_MAX:,} bytes")
                    if time.monotonic() > ends:
                        raise SourceFailed(f"{self._url}: no page within {self._timeout_s:g} s")
        except TimeoutError as error:
            raise SourceFailed(f"{self._url}: no page within {self._timeout_s:g} s") from error
        except (OSError, http.client.HTTPException) as error:
            why = error.reason if isinstance(error, URLError) else error
            raise SourceFailed(f"{self._url}: {' '.join(str(why).split())}") from error
        return page.decode("utf-8", "replace")

    def _figures(self, page: str) -> dict[tuple[str, str, str], float]:
        """Return the values that count by (name, address, GPU index). Raises `SourceFailed` for another format."""
        lines = [line for line in page.splitlines() if line.partition("{")[0] in READ]
        try:
            return {
                (one.name, one.labels.get("ip", ""), one.labels.get("GpuIndex", "")): one.value
                for family in self._parser.text_string_to_metric_families("\n".join(lines) + "\n")
                for one in family.samples
            }
        except ValueError as error:
            raise SourceFailed(f"{self._url}: not Prometheus' text format: {error}") from error


def _whole(value: float | None) -> int | None:
    return None if value is None else int(value)
