"""The file in which weights travel: safetensors, cut into buckets that are read and verified one at a time.

Any reader of safetensors can load it. What is ours stands in its metadata, under ``eventrain.buckets``: a JSON list of
``[tensors, checksum]``, in the order of the file. A bucket is so many tensors that lie one after the other, and its
checksum is the BLAKE3 hash of their bytes, cut to 16 bytes. The digest of the whole is the same hash of the header
without that entry and of all checksums. Hashing takes less than the copy that it protects.

Neither writer nor reader holds more than one bucket. Nothing here imports torch: what is written and read are bytes.
"""

from __future__ import annotations

import json
import math
import mmap
import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, TypeAlias

from blake3 import blake3

Bytes: TypeAlias = bytes | bytearray | memoryview

METADATA = "__metadata__"
BUCKETS = "eventrain.buckets"
LENGTH_BYTES = 8
HEADER_BYTES_MAX = 100 * 2**20
"""As safetensors has it."""
DIGEST_BYTES = 16
PENDING = "0" * 2 * DIGEST_BYTES
"""Stands for a checksum while its bucket is not written yet."""

TYPE_BYTES = {
    "F64": 8, "I64": 8, "U64": 8,
    "F32": 4, "I32": 4, "U32": 4,
    "F16": 2, "BF16": 2, "I16": 2, "U16": 2,
    "I8": 1, "U8": 1, "BOOL": 1, "F8_E4M3": 1, "F8_E5M2": 1,
}  # fmt: skip
"""Bytes of an element, by the type's name in safetensors."""


class WeightsDamaged(Exception):
    """A weights file is missing, cut short, or does not hold what it says."""


class TensorSpec(NamedTuple):
    """What a tensor is."""

    name: str
    dtype: str
    """As safetensors names it: ``F32``, ``BF16``, ..."""
    shape: tuple[int, ...]

    @property
    def size_bytes(self) -> int:
        """Bytes of all elements."""
        return TYPE_BYTES[self.dtype] * math.prod(self.shape)


class Bucket(NamedTuple):
    """Tensors that travel together."""

    number: int
    tensors: tuple[TensorSpec, ...]
    start: int
    """Where its first byte lies in the file."""
    size_bytes: int
    checksum: str

    def split(self, data: Bytes) -> Iterator[tuple[TensorSpec, memoryview]]:
        """Yield each tensor with its part of `data`, the bytes of the bucket."""
        view, start = memoryview(data), 0
        for spec in self.tensors:
            yield spec, view[start : start + spec.size_bytes]
            start += spec.size_bytes


def arranged(specs: Sequence[TensorSpec]) -> list[TensorSpec]:
    """Return `specs` in the order of a file: large elements first, so that each tensor lies where its type may lie."""
    return sorted(specs, key=lambda spec: -TYPE_BYTES[spec.dtype])


def cut(specs: Sequence[TensorSpec], bucket_bytes: int) -> list[list[TensorSpec]]:
    """Return `specs`, arranged, as buckets of at most `bucket_bytes`; a tensor that is larger has one for itself."""
    buckets: list[list[TensorSpec]] = []
    room = 0
    for spec in arranged(specs):
        if not buckets or spec.size_bytes > room:
            buckets.append([])
            room = bucket_bytes
        buckets[-1].append(spec)
        room -= spec.size_bytes
    return buckets


class WeightsWriter:
    """Writes one file, bucket by bucket; it has its name only once it is whole.

    To be used as a context manager: a block that fails leaves nothing of the file behind. Raises OSError.
    """

    def __init__(self, path: Path, specs: Sequence[TensorSpec], bucket_bytes: int) -> None:
        self.path = path
        self.buckets = cut(specs, bucket_bytes)
        """Tensors in the order in which they have to be written."""
        self._partial = path.with_name(path.name + ".partial")
        self._checksums = [PENDING] * len(self.buckets)
        self._written = 0

    def __enter__(self) -> WeightsWriter:
        self._file = self._partial.open("wb")
        try:
            self._file.write(self._header())
        except BaseException:
            self._discard()
            raise
        return self

    def write(self, parts: Sequence[Bytes]) -> None:
        """Write the next bucket: the bytes of each of its tensors, in order."""
        hasher = blake3(max_threads=blake3.AUTO)
        wanted = self.buckets[self._written]
        for spec, part in zip(wanted, parts, strict=True):
            view = memoryview(part).cast("B")
            if len(view) != spec.size_bytes:
                raise ValueError(f"{spec.name} has {spec.size_bytes} bytes, not {len(view)}")
            hasher.update(view)
            self._file.write(view)
        self._checksums[self._written] = hasher.hexdigest(DIGEST_BYTES)
        self._written += 1

    @property
    def digest(self) -> str:
        """Digest of the whole, once every bucket is written."""
        return digest_of([spec for bucket in self.buckets for spec in bucket], self._checksums)

    def finish(self, *, durable: bool = False) -> int:
        """Give the file its name, and return its bytes. `durable` waits for the disk."""
        if self._written != len(self.buckets):
            raise ValueError(f"{len(self.buckets)} buckets are to be written, {self._written} are")
        self._file.seek(0)
        self._file.write(self._header())
        self._file.flush()
        size = os.fstat(self._file.fileno()).st_size
        if durable:
            os.fsync(self._file.fileno())
        self._file.close()
        self._partial.replace(self.path)
        return size

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None:
            self._discard()

    def _discard(self) -> None:
        with suppress(OSError):  # on a full disk closing writes, and fails, once more
            self._file.close()
        with suppress(OSError):
            self._partial.unlink()

    def _header(self) -> bytes:
        counts = [
            [len(bucket), checksum] for bucket, checksum in zip(self.buckets, self._checksums, strict=True)
        ]
        header: dict[str, Any] = {METADATA: {BUCKETS: json.dumps(counts, separators=(",", ":"))}}
        start = 0
        for spec in (spec for bucket in self.buckets for spec in bucket):
            end = start + spec.size_bytes
            header[spec.name] = {"dtype": spec.dtype, "shape": spec.shape, "data_offsets": [start, end]}
            start = end
        text = json.dumps(header, separators=(",", ":")).encode()
        text += b" " * (-len(text) % LENGTH_BYTES)  # the format lets spaces follow, and tensors lie aligned behind
        return len(text).to_bytes(LENGTH_BYTES, "little") + text


class WeightsFile:
    """A file of weights, open for reading. To be closed, or used as a context manager.

    It is mapped into memory and not read: bytes that are copied to a model at once need no memory of their own, and the
    pages of a file that several engines map are there once. An error of the file system on the way ends the process.

    Raises `WeightsDamaged` when it is missing or its header is not usable.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._verified: set[int] = set()
        try:
            self._descriptor = os.open(path, os.O_RDONLY)
        except OSError as error:
            raise WeightsDamaged(f"{path} cannot be read: {error}") from error
        try:
            self.buckets = self._read_header()
            self._map = self._mapped()
        except BaseException:
            os.close(self._descriptor)
            raise

    @property
    def specs(self) -> list[TensorSpec]:
        """All tensors, in the order of the file."""
        return [spec for bucket in self.buckets for spec in bucket.tensors]

    def digest_of(self, checksums: Sequence[str]) -> str:
        """Return the digest of the file if its buckets have these checksums."""
        return digest_of(self.specs, checksums)

    def read(self, number: int) -> tuple[memoryview, str]:
        """Return the bytes of bucket `number` and their checksum, as they are. They outlive the closing of the file.

        Writing to them changes the file for nobody. Raises `WeightsDamaged` if there are too few.
        """
        data = self._bytes(number)
        return data, blake3(data, max_threads=blake3.AUTO).hexdigest(DIGEST_BYTES)

    def verified(self, number: int) -> memoryview:
        """Return the bytes of bucket `number`; the first time, hash them.

        Raises `WeightsDamaged` unless they have the checksum that is said.
        """
        if number in self._verified:
            return self._bytes(number)
        data, checksum = self.read(number)
        if checksum != self.buckets[number].checksum:
            said = self.buckets[number].checksum
            raise WeightsDamaged(f"{self.path}: bucket {number} has checksum {checksum}, it was written with {said}")
        self._verified.add(number)
        return data

    def close(self) -> None:
        """Close the file. What was read of it stays, as long as somebody holds it."""
        os.close(self._descriptor)

    def __enter__(self) -> WeightsFile:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _bytes(self, number: int) -> memoryview:
        bucket = self.buckets[number]
        data = memoryview(self._map)[bucket.start : bucket.start + bucket.size_bytes]
        if len(data) < bucket.size_bytes:
            raise WeightsDamaged(f"{self.path} ends within bucket {number}")
        return data

    def _mapped(self) -> mmap.mmap:
        try:
            return mmap.mmap(self._descriptor, 0, access=mmap.ACCESS_COPY)
        except OSError as error:
            raise WeightsDamaged(f"{self.path} cannot be mapped into memory: {error}") from error

    def _read_header(self) -> tuple[Bucket, ...]:
        length = int.from_bytes(os.pread(self._descriptor, LENGTH_BYTES, 0), "little")
        text = os.pread(self._descriptor, length, LENGTH_BYTES) if length <= HEADER_BYTES_MAX else b""
        if not text or len(text) != length:
            raise WeightsDamaged(f"{self.path} is no weights file of a learner: its header is cut short")
        try:
            return tuple(_buckets(json.loads(text), LENGTH_BYTES + length))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise WeightsDamaged(f"{self.path} is no weights file of a learner: {error}") from error


def _buckets(header: dict[str, Any], data_start: int) -> Iterator[Bucket]:
    counts = json.loads(header.pop(METADATA)[BUCKETS])
    ordered = sorted(header.items(), key=lambda item: item[1]["data_offsets"][0])
    specs = [TensorSpec(name, said["dtype"], tuple(said["shape"])) for name, said in ordered]
    if sum(count for count, _ in counts) != len(specs):
        raise ValueError(f"its buckets have {sum(count for count, _ in counts)} tensors, there are {len(specs)}")
    start, first = data_start, 0
    for number, (count, checksum) in enumerate(counts):
        tensors = tuple(specs[first : first + count])
        size = sum(spec.size_bytes for spec in tensors)
        yield Bucket(number, tensors, start, size, checksum)
        start, first = start + size, first + count


def digest_of(specs: Sequence[TensorSpec], checksums: Sequence[str]) -> str:
    """Return the digest of weights: of names, types and shapes in the order of the file, and all buckets' checksums."""
    said = json.dumps([[list(spec) for spec in specs], list(checksums)], separators=(",", ":"))
    return blake3(said.encode()).hexdigest(DIGEST_BYTES)
