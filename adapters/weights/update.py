"""The receiving side of an update: which lease holds, which buckets have come, and what they add up to.

Whoever holds the weights asks it what to read, and takes over what was read once `finish` has counted it. It knows
nothing of tensors, devices or transports, so every engine keeps the same rules; see `core.ports.Engine`.
"""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from threading import Lock
from typing import NamedTuple

from ...core.ports import EngineError, Receipt
from .file import Bucket, WeightsDamaged, WeightsFile


class Arrived(NamedTuple):
    """A bucket and its bytes."""

    bucket: Bucket
    data: memoryview


class Updates:
    """The updates of one engine, one after another. Not for several threads at once, but for `fetch`."""

    def __init__(self) -> None:
        self._lease: int | None = None
        self._version = -1
        self._file: WeightsFile | None = None
        self._checksums: dict[int, str] = {}
        self._receipt: Receipt | None = None
        self._lock = Lock()
        self._fetched: WeightsFile | None = None
        self._closed = False

    @property
    def buckets(self) -> int:
        """Buckets of the update that has begun."""
        return len(self._begun().buckets)

    def fetch(self, path: Path) -> None:
        """Open and verify a file ahead of `begin`, for which the buckets are then at hand; may run in any thread.

        It does so for one attempt: whoever begins again reads again. Raises `EngineError` as `transfer` does.
        """
        with ExitStack() as stack:
            file = stack.enter_context(_opened(path))
            for bucket in file.buckets:
                _verified(file, bucket.number)
            stack.pop_all()
        with self._lock:
            old, self._fetched = (file, None) if self._closed else (self._fetched, file)
        if old is not None:
            old.close()

    def begin(self, path: Path, version: int, lease: int) -> None:
        """Open the file of the weights `version`, and forget what was transferred before.

        Raises `EngineError` for an older lease, and for a file that cannot be read.
        """
        self._require(lease)
        self._lease, self._version = lease, version
        self._forget()
        with self._lock:
            fetched, self._fetched = self._fetched, None
        if fetched is not None and fetched.path != path:
            fetched.close()
            fetched = None
        self._file = fetched or _opened(path)

    def transfer(self, number: int, lease: int) -> Arrived | None:
        """Read bucket `number`; None if it has been read already. Raises `EngineError` also for a damaged one."""
        self._require(lease)
        if number in self._checksums:
            return None
        file = self._begun()
        if not 0 <= number < len(file.buckets):
            raise EngineError(f"{file.path} has buckets 0 to {len(file.buckets) - 1}, and no bucket {number}")
        data = _verified(file, number)
        self._checksums[number] = file.buckets[number].checksum
        return Arrived(file.buckets[number], data)

    def finish(self, lease: int) -> tuple[Receipt, bool]:
        """Return the receipt, and whether the update was not finished before. Raises `EngineError` for missing buckets.

        The caller takes the weights over before it hands out the receipt.
        """
        self._require(lease)
        if self._receipt is not None:
            return self._receipt, False
        file = self._begun()
        missing = [bucket.number for bucket in file.buckets if bucket.number not in self._checksums]
        if missing:
            raise EngineError(f"{file.path}: bucket {missing[0]} of {len(file.buckets)} has not been transferred")
        checksums = [self._checksums[bucket.number] for bucket in file.buckets]
        tensors = sum(len(bucket.tensors) for bucket in file.buckets)
        receipt = Receipt(self._version, tensors, file.digest_of(checksums))
        self._receipt = receipt
        return receipt, True

    def fail(self) -> None:
        """Forget an update that could not be taken over: it has to be made again from its beginning."""
        self._forget()

    def close(self) -> None:
        """Let go of the file of an update that is over."""
        self._close_file()

    def shut(self) -> None:
        """Let go of every file, for good: what is fetched afterwards is let go of at once."""
        self._close_file()
        with self._lock:
            fetched, self._fetched, self._closed = self._fetched, None, True
        if fetched is not None:
            fetched.close()

    def _close_file(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def _forget(self) -> None:
        self._close_file()
        self._checksums.clear()
        self._receipt = None

    def _begun(self) -> WeightsFile:
        if self._file is None:
            raise EngineError("no update has begun")
        return self._file

    def _require(self, lease: int) -> None:
        if self._lease is not None and lease < self._lease:
            raise EngineError(f"lease {lease} is over: the newest one is {self._lease}")
        if self._lease is not None and lease > self._lease:
            self._lease = lease
            self._forget()


def _opened(path: Path) -> WeightsFile:
    try:
        return WeightsFile(path)
    except WeightsDamaged as error:
        raise EngineError(str(error)) from error


def _verified(file: WeightsFile, number: int) -> memoryview:
    try:
        return file.verified(number)
    except WeightsDamaged as error:
        raise EngineError(str(error)) from error
