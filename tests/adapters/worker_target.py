"""What the worker tests run in the child: an object with a method for every way to answer."""

from __future__ import annotations

import asyncio
import logging
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any


class Refused(Exception):
    """A typed error of the child."""


class Panic(BaseException):
    """What a library of Rust raises where it gives up."""


class Target:
    """Answers, waits, raises or dies, as it is asked."""

    def __init__(self, settings: dict[str, Any]) -> None:
        self.settings = settings
        self.cancelled = 0
        self.hanging = 0

    def echo(self, **values: Any) -> dict[str, Any]:
        return {"settings": self.settings, **values}

    def size_of(self, path: str) -> int:
        return Path(path).stat().st_size

    def block(self, seconds: float) -> str:
        time.sleep(seconds)
        return threading.current_thread().name

    async def hang(self) -> None:
        self.hanging += 1
        try:
            await asyncio.Event().wait()
        finally:
            self.hanging -= 1
            self.cancelled += 1

    async def cancellations(self) -> int:
        return self.cancelled

    async def under_way(self) -> int:
        return self.hanging

    async def refuse(self) -> None:
        raise Refused("not\nthis one")

    async def panic(self) -> None:
        raise Panic("not an Exception")

    def start_other(self) -> int:
        return subprocess.Popen(["sleep", "600"]).pid

    def unsendable(self) -> object:
        return object()

    async def die(self, words: str) -> None:
        print(words, file=sys.stderr, flush=True)
        os._exit(7)

    async def ids(self) -> dict[str, int]:
        return {
            "session": os.getsid(0),
            "parent": os.getppid(),
            "variable": int(os.environ["WORKER_VARIABLE"]),
        }

    def visible(self) -> str | None:
        return os.environ.get("CUDA_VISIBLE_DEVICES")

    def pid(self) -> int:
        return os.getpid()

    def prefix(self) -> str:
        return sys.prefix

    def warn(self, text: str) -> None:
        logging.getLogger("target").warning(text)

    def _secret(self) -> None: ...


def make(settings: dict[str, Any]) -> Target:
    if "fail" in settings:
        raise FileNotFoundError(settings["fail"])
    return Target(settings)


def make_slowly(settings: dict[str, Any]) -> Target:
    time.sleep(settings["seconds"])
    return Target(settings)


class Stubborn(Target):
    """Does not close when asked."""

    async def close(self) -> None:
        await asyncio.Event().wait()


def make_stubborn(settings: dict[str, Any]) -> Stubborn:
    return Stubborn(settings)
