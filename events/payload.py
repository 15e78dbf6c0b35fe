"""Where the bytes lie that are too large for events: token ids, log-probs, texts.

Pack files in the run's ``payloads/`` folder, one payload behind the other with nothing between them; an
event's `PayloadRef` says where and carries the digest, and reading checks it. A payload is written when it is
put, before the event that names it exists, and made durable by the log writer's thread before that event is.

What is put twice within the last `RECENT_MAX` payloads is stored once.
"""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from hashlib import sha256
from pathlib import Path

from .errors import LogWriteError, PayloadDamaged, PayloadMissing
from .log import sync_folder
from .types import PayloadRef

PACK_BYTES_MAX = 2**30
"""A pack that has reached this size is followed by a new one."""
PAYLOAD_BYTES_MAX = 2**28
"""One payload at most: a bound on the memory that a foreign reference can make a reader take."""
RECENT_MAX = 65_536
"""Payloads remembered to store repetitions once; about 20 MB."""
OPEN_PACKS_MAX = 64


class PayloadStore:
    """The payloads of one run: one process puts, any number get (with `read_only`).

    `put` and `get` belong to one thread, `sync` may be called from another one.
    """

    def __init__(self, folder: Path, *, read_only: bool = False) -> None:
        self._folder = folder
        self._read_only = read_only
        self._readers: dict[int, int] = {}  # pack -> descriptor
        self._recent: OrderedDict[str, PayloadRef] = OrderedDict()
        self._lock = threading.Lock()  # guards the three below, held for no longer than a swap
        self._dirty = False
        self._full: list[int] = []  # packs that are full and not yet synced
        self._new_pack = False
        self._pack = max(_pack_numbers(folder), default=0)
        self._file = -1  # opened by the first put
        self._size = 0

    def put(self, data: bytes) -> PayloadRef:
        """Store `data` and return its reference, to be published in an event.

        Raises `LogWriteError` when the disk does not take it, and ValueError above `PAYLOAD_BYTES_MAX`.
        """
        if self._read_only:
            raise RuntimeError("the payload store was opened to read only")
        if len(data) > PAYLOAD_BYTES_MAX:
            raise ValueError(f"a payload of {len(data)} bytes; at most {PAYLOAD_BYTES_MAX} are allowed")
        digest = _digest(data)
        known = self._recent.get(digest)
        if known is not None:
            return known
        try:
            if self._file < 0 or self._size >= PACK_BYTES_MAX:
                self._open_pack()
            offset = self._size
            # At its own offset: what an earlier failed write left there is written over.
            written = os.pwrite(self._file, data, offset)
            while written < len(data):
                written += os.pwrite(self._file, memoryview(data)[written:], offset + written)
        except OSError as error:
            raise LogWriteError(f"a payload in {self._folder} could not be written: {error.strerror}") from error
        self._size = offset + len(data)
        self._dirty = True
        ref = PayloadRef(digest=digest, length=len(data), pack=self._pack, offset=offset)
        self._recent[digest] = ref
        if len(self._recent) > RECENT_MAX:
            self._recent.popitem(last=False)
        return ref

    def get(self, ref: PayloadRef) -> bytes:
        """Return the bytes that `ref` names. Raises `PayloadMissing` or `PayloadDamaged`."""
        length, pack = ref.length, ref.pack
        if length < 0 or length > PAYLOAD_BYTES_MAX or ref.offset < 0:
            raise PayloadDamaged(f"{_say(ref)} is no possible place")
        descriptor = self._readers.get(pack)
        if descriptor is None:
            descriptor = self._open_reader(ref)
        data = os.pread(descriptor, length, ref.offset)
        if len(data) < length:
            raise PayloadMissing(f"{_say(ref)} lies beyond the end of its pack")
        if _digest(data) != ref.digest:
            raise PayloadDamaged(f"{_say(ref)} does not match its digest")
        return data

    def sync(self) -> None:
        """Make everything put so far durable. Thread-safe. Raises OSError, after which nothing may be relied on."""
        with self._lock:
            # Cleared before the sync: what is put meanwhile makes it dirty again.
            dirty, self._dirty = self._dirty, False
            full, self._full = self._full, []
            new_pack, self._new_pack = self._new_pack, False
            current = os.dup(self._file) if dirty and self._file >= 0 else -1
        try:
            for descriptor in (*full, current):
                if descriptor >= 0:
                    os.fdatasync(descriptor)
        finally:
            for descriptor in (*full, current):
                if descriptor >= 0:
                    os.close(descriptor)
        if new_pack:
            sync_folder(self._folder)

    def close(self) -> None:
        """Make everything durable and close the files. Idempotent. Raises OSError as `sync` does."""
        try:
            self.sync()
        finally:
            for descriptor in (*self._readers.values(), self._file):
                if descriptor >= 0:
                    os.close(descriptor)
            self._readers.clear()
            self._file = -1

    def _open_pack(self) -> None:
        """Go on with the last pack if it has room, else begin the next one."""
        flags = os.O_WRONLY | os.O_CREAT
        if self._file < 0 and self._pack > 0:
            descriptor = os.open(self._folder / pack_name(self._pack), flags)
            size = os.fstat(descriptor).st_size
            if size < PACK_BYTES_MAX:
                with self._lock:
                    self._file = descriptor
                self._size = size
                return
            os.close(descriptor)
        descriptor = os.open(self._folder / pack_name(self._pack + 1), flags | os.O_EXCL, 0o644)
        with self._lock:
            if self._file >= 0:
                self._full.append(self._file)
            self._file = descriptor
            self._new_pack = True
        self._pack += 1
        self._size = 0

    def _open_reader(self, ref: PayloadRef) -> int:
        if len(self._readers) >= OPEN_PACKS_MAX:
            oldest = next(iter(self._readers))
            os.close(self._readers.pop(oldest))
        try:
            descriptor = os.open(self._folder / pack_name(ref.pack), os.O_RDONLY)
        except FileNotFoundError:
            raise PayloadMissing(f"{_say(ref)}: there is no such pack") from None
        self._readers[ref.pack] = descriptor
        return descriptor


def _digest(data: bytes) -> str:
    """Return 128 bits of SHA-256: they would have to collide by accident, and stand in every event as text."""
    return sha256(data).hexdigest()[:32]


def pack_name(pack: int) -> str:
    """Return the file name of pack `pack`."""
    return f"{pack:06d}.pack"


def _pack_numbers(folder: Path) -> list[int]:
    return [int(path.stem) for path in folder.glob("*.pack") if path.stem.isdigit()]


def _say(ref: PayloadRef) -> str:
    return f"payload {ref.digest} (pack {ref.pack}, offset {ref.offset}, {ref.length} bytes)"
