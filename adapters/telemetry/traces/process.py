"""The process that sends a run's traces, seen from the run.

Nothing heavy is imported here: the libraries are the child's. It has a session of its own, so a terminal's Ctrl-C
reaches the run alone, and its output goes to a file in the run's logs folder. POSIX only.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from ....core.config_sections import TelemetrySection
from ....events.types import TelemetryDegraded, TelemetryDropped
from . import WORKS

LOG_NAME = "traces.log"
DRAIN_SHARE = 0.6
"""Of the time to close, for sending what waits; the rest is for reading the log's end and for ending."""
CLOSE_S = 10.0
TAIL_BYTES = 2048

Report = TelemetryDropped | TelemetryDegraded


class TraceFollower:
    """The child that follows a run's log. Made by `start`, read by `reports`, ended by `close`."""

    def __init__(self, process: asyncio.subprocess.Process, log_path: Path) -> None:
        self.pid = process.pid
        self._process = process
        self._log_path = log_path
        self._closing = False

    @classmethod
    async def start(
        cls,
        run_folder: Path,
        section: TelemetrySection,
        *,
        since_seq: int = 0,
        close_s: float = CLOSE_S,
    ) -> TraceFollower:
        """Start to follow the run in `run_folder`, sending to ``section.otlp_endpoint``.

        Spans that ended before `since_seq` are not sent: for a run that goes on, whose earlier life sent them.
        `close_s` is how long `close` will be given. Raises OSError if no process can be started. Cancelled, it leaves
        none behind.
        """
        assert section.otlp_endpoint is not None, "only where traces are sent somewhere"
        log_path = run_folder / "logs" / LOG_NAME
        log_path.parent.mkdir(parents=True, exist_ok=True)
        command = [
            sys.executable,
            "-P",  # the folder one happens to stand in offers no modules
            "-m",
            "eventrain.adapters.telemetry.traces",
            os.fspath(run_folder),
            "--otlp",
            section.otlp_endpoint,
            f"--timeout={section.otlp_timeout_s}",
            f"--drain={close_s * DRAIN_SHARE}",
            f"--share={section.trace_share}",
            f"--slowest={section.trace_slowest}",
            f"--since-seq={since_seq}",
        ]
        with log_path.open("ab") as log:
            process = await asyncio.create_subprocess_exec(
                *command,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=log,
                start_new_session=True,
            )
        return cls(process, log_path)

    async def reports(self) -> AsyncIterator[Report]:
        """Yield what the child could not send, and its first failure, as events for the log; end when it has ended.

        Cancelling ends the reading and leaves the child as it is.
        """
        assert self._process.stdout is not None
        async for line in self._process.stdout:
            report = parsed(line)
            if report is not None:
                yield report
        code = await self._process.wait()
        if code and not self._closing:
            why = f"the process that sends traces ended with {_how(code)}{self._last_line()}"
            yield TelemetryDegraded(part="traces", missing=why, works=WORKS)

    async def close(self, deadline_s: float = CLOSE_S) -> None:
        """Have the child read and send the rest, and end; kill it if that takes longer than `deadline_s`. Idempotent.

        Cancelling kills the child at once.
        """
        if self._process.stdin is not None:
            self._process.stdin.close()
        try:
            async with asyncio.timeout(deadline_s):
                await self._process.wait()
        except TimeoutError:
            return
        finally:
            if self._process.returncode is None:
                self._closing = True
                with suppress(ProcessLookupError):  # it ended in this instant
                    os.killpg(self.pid, signal.SIGKILL)  # the child leads its own group
                await self._process.wait()

    def _last_line(self) -> str:
        with suppress(OSError), self._log_path.open("rb") as log:
            size = log.seek(0, os.SEEK_END)
            log.seek(max(0, size - TAIL_BYTES))
            lines = log.read().decode("utf-8", "replace").split("\n")
            said = [line.strip() for line in lines if line.strip()]
            if said:
                return f": {said[-1]}"
        return ""


def parsed(line: bytes) -> Report | None:
    """Return what one line of the child says; None for what it does not say in this language."""
    try:
        said: Any = json.loads(line)
        if "degraded" in said:
            return TelemetryDegraded(part="traces", missing=said["degraded"], works=said["works"])
        return TelemetryDropped(signal="traces", reason=said["reason"], count=said["count"])
    except (ValueError, KeyError, TypeError):
        return None


def _how(code: int) -> str:
    return signal.Signals(-code).name if code < 0 else f"exit code {code}"
