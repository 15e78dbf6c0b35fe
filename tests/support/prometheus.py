"""A real Prometheus for tests and benchmarks: loaded from OpenMetrics text, asked over HTTP, always stopped.

    with Prometheus(tmp_path) as server:
        server.load_openmetrics(text)
        server.query("sum by (phase) (rl_trainer_phase)", time=1_767_268_900)

It lives in a folder of its own, on a free port of 127.0.0.1, and starts with the first question.
"""

from __future__ import annotations

import json
import socket
import subprocess
import time as clock
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self

from programs import find

START_DEADLINE_S = 30.0
STOP_DEADLINE_S = 15.0
QUERY_DEADLINE_S = 20.0
LOAD_DEADLINE_S = 60.0
_OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))


class PrometheusFailed(Exception):
    """Prometheus or promtool did not do what was asked; the message is its own."""


class Sample(NamedTuple):
    """One series at one moment."""

    labels: Mapping[str, str]
    value: float


class Series(NamedTuple):
    """One series over a range: pairs of unix seconds and value."""

    labels: Mapping[str, str]
    points: Sequence[tuple[float, float]]


def promtool(*arguments: str | Path, deadline_s: float = LOAD_DEADLINE_S, given: str | None = None) -> str:
    """Run promtool, `given` as its input, and return what it printed.

    Raises `PrometheusFailed` with its words when it is not content.
    """
    found = find("promtool")
    if found is None:
        raise PrometheusFailed("promtool is not installed")
    done = subprocess.run(
        [found, *map(str, arguments)],
        input=given,
        capture_output=True,
        text=True,
        timeout=deadline_s,
        check=False,
    )
    if done.returncode != 0:
        raise PrometheusFailed(f"{done.stdout}{done.stderr}".strip())
    return done.stdout + done.stderr


class Prometheus:
    """One server with its own folder; leaving the block stops it, whatever happened inside."""

    def __init__(self, folder: Path, config: Path | None = None) -> None:
        """Keep everything in `folder`; scrape and record what `config` says, or nothing without one."""
        self._folder = folder
        self._data = folder / "data"
        self._data.mkdir(parents=True)
        self._config = config or folder / "prometheus.yml"
        if config is None:
            self._config.write_text("global: {}\n", encoding="utf-8")
        self._words = folder / "prometheus.log"
        self._texts = 0
        self._process: subprocess.Popen[bytes] | None = None
        self._url = ""

    def __enter__(self) -> Self:
        """Begin; nothing runs before the first question."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop the server."""
        self.stop()

    def load_openmetrics(self, text: str) -> None:
        """Add the samples of `text`, which carry their times. Raises `PrometheusFailed` where promtool refuses it."""
        self.stop()  # a server that runs would see new blocks only within a minute
        self._texts += 1
        source = self._folder / f"loaded-{self._texts}.om"
        source.write_text(text, encoding="utf-8")
        promtool("tsdb", "create-blocks-from", "openmetrics", source, self._data)

    def query(self, expr: str, time: float | None = None) -> list[Sample]:
        """Return what `expr` is at unix second `time`, or now."""
        moment = {} if time is None else {"time": f"{time:.3f}"}
        result = self._ask("query", {"query": expr, **moment})
        if result["resultType"] == "scalar":
            return [Sample({}, float(result["result"][1]))]
        return [Sample(one["metric"], float(one["value"][1])) for one in result["result"]]

    def query_range(self, expr: str, start: float, end: float, step: float = 15.0) -> list[Series]:
        """Return what `expr` is from `start` to `end`, each `step` seconds."""
        asked = {"query": expr, "start": f"{start:.3f}", "end": f"{end:.3f}", "step": f"{step:.3f}"}
        result = self._ask("query_range", asked)
        return [
            Series(one["metric"], [(at, float(value)) for at, value in one["values"]])
            for one in result["result"]
        ]

    def await_query(self, expr: str, deadline_s: float) -> list[Sample]:
        """Return what `expr` finds as soon as that is something. Raises `TimeoutError` at the deadline."""
        deadline = clock.monotonic() + deadline_s
        while clock.monotonic() < deadline:
            found = self.query(expr)
            if found:
                return found
            self._pause(0.1)
        raise TimeoutError(f"nothing for {expr} within {deadline_s:.0f} s")

    def stop(self) -> None:
        """End the server, if it runs."""
        process, self._process = self._process, None
        if process is None:
            return
        process.terminate()
        try:
            process.wait(STOP_DEADLINE_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(STOP_DEADLINE_S)

    def _ask(self, what: str, fields: Mapping[str, str]) -> Any:
        if self._process is None:
            self._start()
        body = urllib.parse.urlencode(fields).encode()
        try:
            with _OPENER.open(f"{self._url}/api/v1/{what}", data=body, timeout=QUERY_DEADLINE_S) as answer:
                return json.load(answer)["data"]
        except urllib.error.HTTPError as error:
            with closing(error):
                words = error.read().decode(errors="replace")
            raise PrometheusFailed(f"{fields['query']}: {words}") from error

    def _start(self) -> None:
        found = find("prometheus")
        if found is None:
            raise PrometheusFailed("prometheus is not installed")
        port = _free_port()
        self._url = f"http://127.0.0.1:{port}"
        with self._words.open("ab") as words:
            self._process = subprocess.Popen(
                [
                    found,
                    f"--config.file={self._config}",
                    f"--storage.tsdb.path={self._data}",
                    "--storage.tsdb.retention.time=20y",
                    f"--web.listen-address=127.0.0.1:{port}",
                    "--log.level=warn",
                ],
                stdout=words,
                stderr=words,
                stdin=subprocess.DEVNULL,
            )
        try:
            self._await_ready()
        except BaseException:
            self.stop()
            raise

    def _pause(self, seconds: float) -> None:
        """Let `seconds` pass. Raises `PrometheusFailed` when the server ends meanwhile."""
        assert self._process is not None
        try:
            self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            return
        raise PrometheusFailed(f"prometheus ended: {self._said()}")

    def _await_ready(self) -> None:
        deadline = clock.monotonic() + START_DEADLINE_S
        while clock.monotonic() < deadline:
            try:
                with _OPENER.open(f"{self._url}/-/ready", timeout=1.0):
                    return
            except urllib.error.HTTPError as error:
                error.close()  # it answers, and is not ready yet
            except OSError:
                pass  # it does not listen yet
            self._pause(0.05)
        raise PrometheusFailed(f"prometheus was not ready within {START_DEADLINE_S:.0f} s: {self._said()}")

    def _said(self) -> str:
        return self._words.read_text(encoding="utf-8", errors="replace")[-2000:].strip()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
