"""Snapshots: the folded state of a run at some of its events, kept in the user's own cache folder.

They are a cache and nothing else: whatever cannot be read, is another version's, or does not fit the log is left
out, and the fold starts over. A state says what a run did and must be believed without a look at the log before it, so
it is read only from files that belong to the user and that nobody else may write, with a digest over every byte.
Nothing of it lies in the folder of a run, which may be somebody else's; and it is no pickle: reading it runs nothing.
"""

from __future__ import annotations

import os
import re
import stat
import sys
from collections.abc import Iterator
from contextlib import suppress
from hashlib import blake2b
from pathlib import Path
from typing import NamedTuple

import pydantic

from ... import events
from ...core import projections
from ...events.codec import encode
from ...events.reader import Mark
from ...events.record import Record
from ...events.segment import read_frames, segment_name
from .run_facts import RunFacts
from .state_codec import decode_state, encode_state

EVERY = 20_000
"""Events between snapshots at first ..."""
SHARE = 64
"""... and later this share of the log so far, so that a long one has a few hundred of them."""
SIZE_MAX = 256 * 2**20
"""Bytes of all snapshots of all runs together; the ones not used for longest are dropped."""
_MAGIC = b"eventrain snapshot 1\n"
_DIGEST_BYTES = 32
_SUFFIX = ".snapshot"
_NAME = re.compile(r"(\d{15,})-(\d+)\.snapshot")


class Snapshot(NamedTuple):
    """A state, and how to see whether the log still leads to it."""

    facts: RunFacts
    mark: Mark
    """Of the frame that holds the record at `seq`."""
    digest: bytes
    """Of that record."""

    @property
    def seq(self) -> int:
        """Return the seq of the last record folded."""
        return self.facts.view.last_seq

    def fits(self, record: Record) -> bool:
        """Return whether `record` is the one that was folded last."""
        return record.seq == self.seq and record_digest(record) == self.digest


class Snapshots:
    """The snapshots of one run."""

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder
        self._last = -1
        self._written = False

    @classmethod
    def of(cls, log: Path, first: Record) -> Snapshots:
        """Return those of the run whose log is in `log` and begins with `first`; none where there is no safe place."""
        try:
            cache = _private(cache_folder())
            with (log / segment_name(1)).open("rb") as file:
                header = next(read_frames(file))[1]
            identity = blake2b(header, digest_size=16)
            identity.update(record_digest(first) + code_digest())
            return cls(_private(cache / identity.hexdigest()))
        except (OSError, RuntimeError):
            return cls(None)  # no home, or one that cannot be written: every fold begins at the beginning

    def begin(self, seq: int) -> None:
        """Take note that a fold goes on from `seq`; -1 is the beginning."""
        self._last = seq

    def due(self, seq: int) -> bool:
        """Return whether a fold that has come to `seq` should leave a snapshot."""
        return seq - self._last >= EVERY and seq - self._last >= seq // SHARE

    def worth(self, seq: int) -> bool:
        """Return whether a fold that ends at `seq` has come far enough to be kept."""
        return seq - self._last >= EVERY // 4

    def save(self, facts: RunFacts, mark: Mark, last: Record) -> None:
        """Keep the state after `last`. A full disk or the like only costs time later."""
        self._last = last.seq
        if self._folder is None:
            return
        with suppress(OSError, OverflowError):
            body = encode_state((facts, mark, record_digest(last)))
            self._written = True
            place = self._folder / f"{last.seq:015d}-{facts.newest_ts}{_SUFFIX}"
            beside = place.with_name(f".{place.name}.{os.getpid()}")
            descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
            with os.fdopen(descriptor, "wb") as file:
                file.write(_MAGIC + blake2b(body, digest_size=_DIGEST_BYTES).digest() + body)
            beside.replace(place)

    def newest_first(self, upto: int | None, upto_ts: int | None) -> Iterator[Snapshot]:
        """Yield the snapshots that can be read, backwards from seq `upto` and without any record after `upto_ts`."""
        if self._folder is None:
            return
        for path in sorted(self._folder.glob(f"*{_SUFFIX}"), reverse=True):
            name = _NAME.fullmatch(path.name)
            if name is None or (upto is not None and int(name[1]) > upto):
                continue
            if upto_ts is None or int(name[2]) <= upto_ts:
                found = _read(path)
                if found is not None:
                    yield found

    def trim(self) -> None:
        """Drop the snapshots that were not used for longest until all of them together are small enough."""
        if self._folder is None or not self._written:
            return
        self._written = False
        with suppress(OSError):
            found = [(path, path.stat()) for path in self._folder.parent.glob(f"*/*{_SUFFIX}")]
            total = sum(about.st_size for _, about in found)
            for path, about in sorted(found, key=lambda one: one[1].st_mtime_ns):
                if total <= SIZE_MAX:
                    break
                path.unlink(missing_ok=True)
                total -= about.st_size


def cache_folder() -> Path:
    """Return where this user's snapshots lie."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(base) if Path(base).is_absolute() else Path.home() / ".cache") / "eventrain" / "snapshots"


def code_digest() -> bytes:
    """Return a digest of the code that folds: another version's snapshots are never read."""
    found = blake2b(f"{sys.version} {pydantic.VERSION}".encode(), digest_size=16)
    own = Path(__file__).parent
    paths = [own / name for name in ("run_facts.py", "snapshots.py", "state_codec.py")]
    for package in (projections, events):
        paths += [path for part in package.__path__ for path in sorted(Path(part).glob("*.py"))]
    for path in paths:
        found.update(path.name.encode() + b"\0" + path.read_bytes())
    return found.digest()


def record_digest(record: Record) -> bytes:
    """Return the digest of a record, time included."""
    return blake2b(encode(record), digest_size=16).digest()


def _read(path: Path) -> Snapshot | None:
    """Return the snapshot in file `path`, None if it is not whole, not the user's own, or nothing of ours."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        with os.fdopen(descriptor, "rb") as file:
            about = os.fstat(descriptor)
            if not stat.S_ISREG(about.st_mode) or about.st_uid != os.geteuid() or about.st_mode & 0o022:
                return None
            data = file.read()
            os.utime(descriptor)
    except OSError:
        return None
    head, body = data[: len(_MAGIC) + _DIGEST_BYTES], data[len(_MAGIC) + _DIGEST_BYTES :]
    if head != _MAGIC + blake2b(body, digest_size=_DIGEST_BYTES).digest():
        return None
    with suppress(ValueError):  # whole, and yet nothing that this code wrote
        return Snapshot(*decode_state(body))
    return None


def _private(folder: Path) -> Path:
    """Make `folder` if need be. Raises OSError where it is not the user's alone."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    about = folder.lstat()
    if not stat.S_ISDIR(about.st_mode) or about.st_uid != os.geteuid():
        raise PermissionError(f"{folder} belongs to somebody else")
    if about.st_mode & 0o077:
        folder.chmod(0o700)
    return folder
