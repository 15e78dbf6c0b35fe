"""CPU use of the run's own processes: every engine, the learner and the controller, each with its children.

A process that a worker started belongs to that worker, and one that nobody of them started to the controller. What a
child used between the last sample and its end is not counted: nobody can ask any more.
"""

from __future__ import annotations

import importlib
import math
import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from .source import Pool, Reading, SourceAbsent

TICK_S = 0.01
"""The kernel counts CPU time in steps of this size, so a short window may seem to have more of it than there was."""

SCAN_S = 5.0
"""Seconds between two looks at the machine's table of processes, which costs more than all else of a sample. What a new
child used until it is found counts in the window in which it is."""

Owner = tuple[int, float]
"""Process id and time of creation: together they are never used twice."""


@runtime_checkable
class HasProcess(Protocol):
    """An engine or learner that works in a process of this machine. Those that do not need not have it."""

    @property
    def pid(self) -> int | None:
        """The process id; None while there is none."""
        ...


@runtime_checkable
class HasProcesses(Protocol):
    """A learner whose ranks work in processes of this machine."""

    @property
    def pids(self) -> Sequence[int | None]:
        """The process id of each rank; None for one of another machine, empty while there are none."""
        ...


@dataclass(frozen=True, slots=True)
class Watched:
    """One process to be measured, which may be replaced by another while it is watched."""

    device: str
    pool: Pool
    threads: int
    """CPU threads that it is to use: all of them busy is a utilisation of 1."""
    pid: Callable[[], int | None]


class ProcessSource:
    """CPU seconds and memory of processes, by psutil. `watched` includes the controller, for what it started itself."""

    name = "processes"
    exact = True

    def __init__(self, watched: Sequence[Watched], now: Callable[[], float] = time.monotonic) -> None:
        self._watched = watched
        self._now = now
        self._psutil: Any = None
        self._since = 0.0
        self._used_s: dict[Owner, float] = {}
        self._used_before_s: dict[Owner, float] = {}  # a sample earlier: a look at a process may fail
        self._carried_s: dict[str, float] = {}  # by device: what the last window could not hold
        self._opened = False
        self._total_bytes = 0
        self._trees: dict[str, list[Any]] = {}
        self._roots: dict[int, str] = {}
        self._scanned_at = -math.inf

    def open(self) -> None:
        """Begin the first window. Raises `SourceAbsent` without psutil."""
        try:
            self._psutil = importlib.import_module("psutil")
        except ModuleNotFoundError as error:
            raise SourceAbsent("psutil is not installed") from error
        self._total_bytes = self._psutil.virtual_memory().total
        self.sample()
        self._opened = True

    def sample(self) -> list[Reading]:
        """Return a reading of each watched process that is there."""
        now = self._now()
        trees = self._known_trees(now)
        window_s, self._since = now - self._since, now
        used: dict[Owner, float] = {}
        readings: list[Reading] = []
        for watched in self._watched:
            measured = [
                found for process in trees.get(watched.device, ()) for found in self._measured(process)
            ]
            busy_s = sum(seconds - self._used_until(owner, seconds) for owner, seconds, _ in measured)
            used |= {owner: seconds for owner, seconds, _ in measured}
            if not measured or window_s <= 0:
                continue
            memory = sum(resident for _, _, resident in measured)
            share = self._share(watched, busy_s, window_s, TICK_S * len(measured))
            readings.append(
                Reading(
                    watched.device,
                    watched.pool,
                    share,
                    memory,
                    window_s,
                    "psutil",
                    memory_total_bytes=self._total_bytes,
                )
            )
        self._used_before_s, self._used_s = self._used_s, used
        return readings

    def close(self) -> None:
        """Hold nothing."""

    def _share(self, watched: Watched, busy_s: float, window_s: float, carried_max_s: float) -> float:
        """Return the busy share of the window; what is above 1 by the size of the kernel's steps is the next one's."""
        busy_s += self._carried_s.get(watched.device, 0.0)
        room_s = window_s * watched.threads
        self._carried_s[watched.device] = min(max(0.0, busy_s - room_s), carried_max_s)
        return min(1.0, busy_s / room_s)

    def _used_until(self, owner: Owner, seconds: float) -> float:
        """Return what a process had used when the window began: nothing, if it has begun since."""
        known = self._used_s.get(owner, self._used_before_s.get(owner))
        return known if known is not None else 0.0 if self._opened else seconds

    def _known_trees(self, now: float) -> dict[str, list[Any]]:
        """Return the processes by the device that they belong to, as of the last look that is recent enough."""
        roots = {pid: watched.device for watched in self._watched if (pid := watched.pid()) is not None}
        if roots != self._roots or now - self._scanned_at >= SCAN_S:
            self._trees, self._roots, self._scanned_at = self._scanned(roots), roots, now
        return self._trees

    def _scanned(self, roots: dict[int, str]) -> dict[str, list[Any]]:
        """Look at the machine's table of processes once."""
        found: dict[int, Any] = {}
        ours_first = sorted(roots, key=lambda pid: pid != os.getpid())  # it mostly has all others below it
        for pid in ours_first:
            if pid not in found:
                found |= {process.pid: process for process in self._with_children(pid)}
        trees: dict[str, list[Any]] = {}
        for process in found.values():
            root = self._root(process.pid, found, roots)
            if root is not None:
                trees.setdefault(roots[root], []).append(process)
        return trees

    def _with_children(self, pid: int) -> list[Any]:
        try:
            process = self._psutil.Process(pid)
            return [process, *process.children(recursive=True)]
        except self._psutil.Error:
            return []

    def _root(self, pid: int, found: dict[int, Any], roots: dict[int, str]) -> int | None:
        """Return the nearest watched process at or above `pid`."""
        while pid not in roots:
            try:
                pid = found[pid].ppid()
            except (KeyError, self._psutil.Error):
                return None
        return pid

    def _measured(self, process: Any) -> Iterator[tuple[Owner, float, int]]:
        """Yield identity, CPU seconds since its creation, and resident bytes; nothing if it is gone."""
        try:
            with process.oneshot():
                times = process.cpu_times()
                yield (
                    (process.pid, process.create_time()),
                    times.user + times.system,
                    process.memory_info().rss,
                )
        except self._psutil.Error:
            return
