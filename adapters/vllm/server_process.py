"""A vLLM server as a child process: started, waited for, and killed with everything that it has started.

It is started through this module (``python -m eventrain.adapters.vllm.server_process PARENT_PID ARGUMENTS``), which has
the kernel kill it when the controller dies, and then becomes the server.
"""

from __future__ import annotations

import asyncio
import dataclasses
import os
import runpy
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import IO

from ..worker import last_lines
from ..worker_serve import bind_to_parent
from .arguments import require_known
from .versions import require_supported

MODULE = "vllm.entrypoints.openai.api_server"
OF_THE_SERVER = ("enable_scale_out", "host", "port", "uvicorn_log_level")
"""Arguments that are not the engine's."""
HOST = "127.0.0.1"
POLL_S = 0.05


class ServerProcess:
    """One server, at `url`. Its output is appended to a file."""

    def __init__(self, name: str, url: str, process: subprocess.Popen[bytes], output: IO[bytes]) -> None:
        self.name = name
        self.url = url
        self.pid = process.pid
        self._process = process
        self._output = output

    @classmethod
    def start(
        cls, name: str, python: str, arguments: list[str], env: Mapping[str, str], log_path: Path
    ) -> ServerProcess:
        """Start a server at a free port of this machine. Raises OSError if there is no such interpreter."""
        port = _free_port()
        log_path.parent.mkdir(parents=True, exist_ok=True)
        output = log_path.open("a+b")
        try:
            process = subprocess.Popen(
                [
                    python, "-P", "-m", __name__, str(os.getpid()),
                    *arguments, "--enable-scale-out", "--host", HOST, "--port", str(port),
                    "--uvicorn-log-level", "warning",
                ],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env={**os.environ, "PYTHONUNBUFFERED": "1", "VLLM_SERVER_DEV_MODE": "1", **env},
                start_new_session=True,
            )  # fmt: skip
        except OSError:
            output.close()
            raise
        return cls(name, f"http://{HOST}:{port}", process, output)

    def ended(self) -> str | None:
        """Return how it ended, in one line, or None while it runs."""
        code = self._process.poll()
        if code is None:
            return None
        how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
        tail = last_lines(self._output)
        return f"{self.name} (pid {self.pid}) {how}" + (f": {tail}" if tail else "")

    async def close(self, deadline_s: float) -> None:
        """End the server: SIGTERM, and SIGKILL for its whole group. Idempotent. Cancelling kills it at once."""
        try:
            if self._process.poll() is None:
                self._process.terminate()
                await self._exited(deadline_s)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)  # it leads its group; vLLM's engine may be left in it
            self._process.wait()
            self._output.close()

    async def _exited(self, seconds: float) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while self._process.poll() is None:  # noqa: ASYNC110 - reaping has no event
                    await asyncio.sleep(POLL_S)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        port: int = probe.getsockname()[1]
        return port


def main() -> None:
    """Become vLLM's server, bound to the parent named on the command line."""
    bind_to_parent(int(sys.argv[1]))
    import vllm
    from vllm.engine.arg_utils import AsyncEngineArgs

    options = [flag[2:].replace("-", "_") for flag in sys.argv[2:] if flag.startswith("--")]
    options = [name.removeprefix("no_") for name in options if name not in OF_THE_SERVER]
    try:
        require_supported(vllm.__version__, "the installed vLLM")
        require_known(options, [field.name for field in dataclasses.fields(AsyncEngineArgs)])
    except ValueError as error:
        sys.exit(str(error))  # vLLM would take an abbreviation for the whole name
    sys.argv = [MODULE, *sys.argv[2:]]
    runpy.run_module(MODULE, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
