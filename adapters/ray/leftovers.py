"""The controller's side of `reaper`: what a Ray of our own leaves behind is ended, however this process ends."""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
from contextlib import suppress

from . import reaper

REAP_S = 15.0


class Reaper:
    """A process that outlives this one, to end what this one's Ray leaves behind. It does nothing but on Linux.

    What is started within its block, by this process or by what that starts, is ended.
    """

    def __init__(self) -> None:
        self._mark = f"{os.getpid()}-{secrets.token_hex(8)}"
        self._process: subprocess.Popen[bytes] | None = None
        if sys.platform == "linux":
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", reaper.__file__, self._mark],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                start_new_session=True,
            )

    def __enter__(self) -> None:
        os.environ[reaper.MARK] = self._mark

    def __exit__(self, *_: object) -> None:
        os.environ.pop(reaper.MARK, None)
        if self._process is not None and self._process.stdin is not None:
            with suppress(OSError):  # it was killed; then there is nobody to tell
                self._process.stdin.write(b"up\n")
                self._process.stdin.flush()

    def reap(self) -> None:
        """End it all now, and wait for that at most `REAP_S`."""
        if self._process is not None:
            with suppress(subprocess.TimeoutExpired):
                self._process.communicate(timeout=REAP_S)
