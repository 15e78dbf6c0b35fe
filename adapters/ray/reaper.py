"""Ends what is left of a Ray of our own once the controller is gone: ``python reaper.py MARK``, run as a file.

Linux kills what the controller started when that dies, and Ray's workers notice within a second, but Ray's agents try
for a minute to report their loss, and what an actor has started may never know. All of them have inherited an
environment variable, by which they, or their parents, are found here. Nothing but the standard library is imported.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import time
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path

MARK = "EVENTRAIN_RAY_OF"
LIMIT_S = 10.0
LOOK_S = 0.05


def ours(mark: str, known: Collection[int] = ()) -> dict[int, int]:
    """Return a handle by pid of each process that bears `mark`, and of all below those, but for those `known`.

    The children are looked for as well because one that has renamed itself has written over its environment.
    """
    parents: dict[int, int] = {}
    found: set[int] = set()
    wanted = f"{MARK}={mark}".encode()
    for folder in Path("/proc").iterdir():
        if folder.name.isdecimal() and int(folder.name) != os.getpid():
            with suppress(OSError):  # it has ended, or is somebody else's
                pid = int(folder.name)
                parents[pid] = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
                if wanted in (folder / "environ").read_bytes().split(b"\0"):
                    found.add(pid)
    while more := {pid for pid, parent in parents.items() if parent in found and pid not in found}:
        found |= more
    handles = {}
    for pid in found.difference(known):
        with suppress(OSError):
            handles[pid] = os.pidfd_open(pid)
    return handles


def main() -> None:
    """Wait until the controller has closed its end of our standard input, and kill what is its Ray's.

    A line before that says that Ray is up: what it has started by then is remembered.
    """
    mark = sys.argv[1]
    handles = ours(mark) if sys.stdin.buffer.readline() else {}
    sys.stdin.buffer.read()
    ends = time.monotonic() + LIMIT_S
    while time.monotonic() < ends:
        handles |= ours(mark, handles)
        for pid, handle in list(handles.items()):
            if select.select([handle], [], [], 0)[0]:  # it has ended
                os.close(handles.pop(pid))
            else:
                signal.pidfd_send_signal(handle, signal.SIGKILL)
        if not handles:
            break
        time.sleep(LOOK_S)


if __name__ == "__main__":
    main()
