"""The inside of a courier: an actor that reads files of its machine, and keeps copies of other machines' files.

A copy lies in memory without a name in any file system, and is opened as a file by way of the courier's own
descriptor. So it needs no folder, and is gone with the courier, however that ends. Linux only.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import Any


class Courier:
    """Reads here and writes there, part by part; Ray carries the parts. Its methods run one after another."""

    def __init__(self) -> None:
        self._copies: dict[str, int] = {}
        """Descriptors, by the path of what they are a copy of."""
        self._whole: set[str] = set()

    def size(self, path: str) -> int:
        """Return the bytes of a file of this machine. Raises OSError."""
        return Path(path).stat().st_size

    def read(self, path: str, start: int, count: int) -> Any:
        """Return `count` bytes of a file of this machine as a NumPy array, which Ray moves without a copy.

        Raises OSError, and ValueError where the file ends before.
        """
        import numpy

        data = numpy.fromfile(path, dtype=numpy.uint8, count=count, offset=start)
        if len(data) != count:
            raise ValueError(f"{path} ends within bytes {start} to {start + count}")
        return data

    def begin(self, path: str, size: int) -> None:
        """Make room for a copy of `path`, in the place of one that is here. Raises OSError."""
        self.drop(path)
        copy = os.memfd_create(f"eventrain {Path(path).name}", os.MFD_CLOEXEC)
        self._copies[path] = copy
        os.ftruncate(copy, size)

    def write(self, path: str, start: int, data: Any) -> None:
        """Write a part of the copy. Raises OSError, and KeyError for one that was dropped."""
        copy, view = self._copies[path], memoryview(data)
        while view:
            written = os.pwrite(copy, view, start)
            start, view = start + written, view[written:]

    def finish(self, path: str) -> str:
        """Take the copy for whole, and return what `opened` does from now on.

        Raises KeyError for one that was dropped.
        """
        self._whole.add(path)
        return f"/proc/{os.getpid()}/fd/{self._copies[path]}"

    def opened(self, path: str) -> str | None:
        """Return the path at which any process of this user can open the copy; None while there is no whole one."""
        return self.finish(path) if path in self._whole else None

    def drop(self, path: str) -> None:
        """Let go of a copy, if there is one. Whoever has it open or mapped keeps it until then."""
        self._whole.discard(path)
        copy = self._copies.pop(path, None)
        if copy is not None:
            with suppress(OSError):
                os.close(copy)


def as_remote(**options: Any) -> Any:
    """Return `Courier` for Ray, with these options."""
    import ray

    return ray.remote(**options)(Courier)
