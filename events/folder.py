"""The folder of a run: where what lies, and who may write.

::

    events/         the log; with payloads/ all that is needed to replay
    payloads/       tokens, log-probs and texts that events refer to
    weights/        weights on their way to the engines
    checkpoints/    what a resume starts from
    logs/           text logs of the processes
    lock            who writes, while somebody does

Nothing in it is pickled: reading a foreign run folder never executes code.
"""

from __future__ import annotations

import fcntl
import json
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from .errors import RunFolderError
from .log import sync_folder
from .segment import FrameBad, parse_header, read_frames, segment_name, segment_numbers


@dataclass(frozen=True, slots=True)
class Holder:
    """Who holds the lock of a run."""

    host: str
    pid: int
    started: str
    """When the process started, in the kernel's count; a reused pid has another one."""
    epoch: int


class RunFolder:
    """One run's folder. Make it with `create` or `open`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.events = path / "events"
        self.payloads = path / "payloads"
        self.weights = path / "weights"
        self.checkpoints = path / "checkpoints"
        self.logs = path / "logs"
        self.lock_file = path / "lock"
        self.epoch = 0
        """Number of this writer, larger than that of any before; 0 until `lock` is held."""

    @classmethod
    def create(cls, path: Path) -> RunFolder:
        """Make the folder of a new run. Raises `RunFolderError` if it already holds one or cannot be made."""
        folder = cls(path)
        if folder.events.exists():
            raise RunFolderError(f"{path} already holds a run; choose another folder")
        try:
            path.mkdir(parents=True, exist_ok=True)
            for part in (folder.payloads, folder.weights, folder.checkpoints, folder.logs):
                part.mkdir(exist_ok=True)
            folder.events.mkdir()  # last: from here on it is a run
            sync_folder(path)
            sync_folder(path.parent)
        except FileExistsError as error:
            raise RunFolderError(f"{error.filename} is in the way of a run folder") from None
        except OSError as error:
            raise RunFolderError(f"{path} cannot be made a run folder: {error.strerror}") from error
        return folder

    @classmethod
    def open(cls, path: Path) -> RunFolder:
        """Return the folder of an existing run. Raises `RunFolderError` if it is none."""
        folder = cls(path)
        if not folder.events.is_dir():
            missing = "does not exist" if not path.exists() else "holds no run (it has no events/ folder)"
            raise RunFolderError(f"{path} {missing}")
        return folder

    @contextmanager
    def lock(self) -> Iterator[int]:
        """Be the run's only writer inside the block, and yield the writer's `epoch`.

        Raises `RunFolderError`, naming the holder, while another process writes. A holder on this host that
        is dead is replaced; one on another host cannot be judged from here and never is.
        """
        with _one_at_a_time(self.path):
            stale = self._stale_holder()
            epoch = max(self._last_epoch(), stale.epoch if stale else 0) + 1
            if stale is not None:
                self.lock_file.unlink()
            mine = Holder(socket.gethostname(), os.getpid(), _start_of(os.getpid()), epoch)
            self._write_lock(mine)
        self.epoch = epoch
        try:
            yield epoch
        finally:
            if self.holder() == mine:
                self.lock_file.unlink()

    def holder(self) -> Holder | None:
        """Return who holds the lock, dead or alive; None if nobody does. Raises `RunFolderError` if unreadable."""
        try:
            return _parsed(self.lock_file.read_bytes())
        except FileNotFoundError:
            return None
        except (ValueError, TypeError):
            raise RunFolderError(
                f"{self.lock_file} names no holder; delete it if no process writes this run"
            ) from None

    def is_held(self) -> bool:
        """Say whether a process may be writing this run: not if its holder is gone, or the lock names none."""
        try:
            holder = self.holder()
        except RunFolderError:
            return False
        return holder is not None and not _is_dead(holder)

    def _stale_holder(self) -> Holder | None:
        holder = self.holder()
        if holder is None or _is_dead(holder):
            return holder
        where = f"process {holder.pid} on {holder.host}"
        hint = ""
        if holder.host != socket.gethostname():
            hint = f"; if that process is gone, delete {self.lock_file}"
        raise RunFolderError(f"{self.path} is being written by {where}{hint}")

    def _last_epoch(self) -> int:
        for number in reversed(segment_numbers(self.events)):
            # A torn last segment tells nothing; damage is the reader's to report.
            with (
                suppress(FrameBad, StopIteration, ValueError),
                (self.events / segment_name(number)).open("rb") as file,
            ):
                return parse_header(next(read_frames(file))[1]).epoch
        return 0

    def _write_lock(self, holder: Holder) -> None:
        try:
            descriptor = os.open(self.lock_file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
        except FileExistsError:
            raise RunFolderError(f"{self.path} has just been locked by another process") from None
        except OSError as error:
            raise RunFolderError(f"{self.path} cannot be locked: {error.strerror}") from error
        try:
            os.write(descriptor, json.dumps(asdict(holder)).encode())
            os.fsync(descriptor)
        except OSError as error:
            self.lock_file.unlink()
            raise RunFolderError(f"{self.path} cannot be locked: {error.strerror}") from error
        finally:
            os.close(descriptor)
        sync_folder(self.path)


@contextmanager
def _one_at_a_time(path: Path) -> Iterator[None]:
    """Let one process of this host at a time judge and replace a dead holder.

    Without it, two could find the same dead holder and the slower one delete the lock of the faster. The
    kernel frees this one with its process. Where a file system has no such locks, only that narrow case is
    open.
    """
    descriptor = os.open(path, os.O_RDONLY)
    try:
        with suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _parsed(content: bytes) -> Holder:
    """Return the holder that a lock file names. Raises ValueError or TypeError for what can name no process."""
    holder = Holder(**json.loads(content))
    texts = isinstance(holder.host, str) and isinstance(holder.started, str)
    numbers = isinstance(holder.pid, int) and isinstance(holder.epoch, int)
    if not (texts and numbers and 0 < holder.pid < 2**31):
        raise ValueError(f"{holder} names no process")
    return holder


def _is_dead(holder: Holder) -> bool:
    """Say whether the holder is certainly gone."""
    if holder.host != socket.gethostname():
        return False
    try:
        os.kill(holder.pid, 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        return False  # alive, and somebody else's
    return _start_of(holder.pid) != holder.started


def _start_of(pid: int) -> str:
    """Return the start time of a process in the kernel's ticks since boot; "" where there is no /proc.

    A process that has ended and whose parent has not yet asked how (a zombie) has none: it writes nothing any more.
    """
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return ""
    fields = stat.rpartition(")")[2].split()
    return "" if fields[0] in "ZX" else fields[19]
