"""The files of the log: numbered segments of zstd frames over JSON lines.

A segment is an ordinary ``.zst`` file, and ``zstdcat 000001.jsonl.zst | jq`` reads it. Every frame carries
its content's size and checksum. The first holds the segment's header line, each further one the lines of one
group commit, and the last one, when the segment was left in good order, a line that says so. What a crash
leaves behind is at most one incomplete frame at the end.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import msgspec
import zstandard

FORMAT = 1
FRAME_BYTES_MAX = 256 * 2**20
"""Content of one frame at most: a bound on the memory that a foreign or damaged log can make a reader take."""

_MAGIC = b"\x28\xb5\x2f\xfd"
_NAME = re.compile(r"(\d{6,})\.jsonl\.zst")


class Header(msgspec.Struct, tag_field="kind", tag="segment"):
    """First line of a segment."""

    format: int
    run: str
    epoch: int
    """Number of the writer: it grows with every process that opens the run for writing."""
    first_seq: int
    code: str
    """Version of the code that wrote it."""


class Seal(msgspec.Struct, tag_field="kind", tag="segment_sealed"):
    """Last line of a segment that was left in good order."""

    last_seq: int


class FrameBad(Exception):
    """The bytes at this place are no good frame; `torn` when they only stop too early."""

    def __init__(self, reason: str, *, torn: bool = False) -> None:
        super().__init__(reason)
        self.torn = torn


def segment_name(number: int) -> str:
    """Return the file name of segment `number`, counted from 1."""
    return f"{number:06d}.jsonl.zst"


def segment_numbers(folder: Path) -> list[int]:
    """Return the numbers of the segments in `folder`, in order."""
    return sorted(int(match[1]) for path in folder.iterdir() if (match := _NAME.fullmatch(path.name)))


def marker_line(marker: Header | Seal) -> bytes:
    """Return a header or seal as a line."""
    return msgspec.json.encode(marker) + b"\n"


def parse_header(content: bytes) -> Header:
    """Read the content of a segment's first frame. Raises ValueError when it is foreign."""
    try:
        header = msgspec.json.decode(content, type=Header)
    except msgspec.DecodeError as error:
        raise ValueError(f"no header of an eventrain log ({error})") from None
    if header.format != FORMAT:
        raise ValueError(f"the log has format {header.format}; this version reads {FORMAT}")
    return header


def parse_seal(content: bytes) -> Seal | None:
    """Return the seal that a frame's content is, or None if it holds records."""
    if not content.startswith(b'{"kind":"segment_sealed"'):
        return None
    return msgspec.json.decode(content, type=Seal)


class FrameWriter:
    """Makes frames: one zstd context, used again and again by one thread."""

    def __init__(self, level: int) -> None:
        self._compressor = zstandard.ZstdCompressor(
            level=level, write_checksum=True, write_content_size=True
        )

    def frame(self, content: bytes | bytearray) -> bytes:
        """Return `content` as one frame."""
        return self._compressor.compress(content)


def read_frames(file: BinaryIO) -> Iterator[tuple[int, bytes]]:
    """Yield ``(offset of its end, content)`` of each frame from the file's position on.

    Ends at the end of the file. Raises `FrameBad` at the first frame that is not whole and good; the position
    after the last good one is the last offset that was yielded.
    """
    decompressor = zstandard.ZstdDecompressor()
    end = file.tell()
    while frame := _read_frame(file):
        end += len(frame)
        yield end, _content(decompressor, frame)


def find_good_frame(data: bytes) -> int:
    """Return where in `data` the first whole, good frame begins; -1 if there is none."""
    decompressor = zstandard.ZstdDecompressor()
    start = data.find(_MAGIC)
    while start >= 0:
        try:
            length = _frame_length(data, start)
            _content(decompressor, data[start : start + length])
        except FrameBad:
            start = data.find(_MAGIC, start + 1)
        else:
            return start
    return -1


def _content(decompressor: zstandard.ZstdDecompressor, frame: bytes) -> bytes:
    try:
        size = zstandard.get_frame_parameters(frame).content_size
        if size > FRAME_BYTES_MAX:
            raise FrameBad(f"a frame of {size} bytes")
        content = decompressor.decompress(frame)
    except zstandard.ZstdError:
        raise FrameBad("a frame whose content does not match its checksum") from None
    if len(content) != size:
        raise FrameBad("a frame that is longer or shorter than it says")
    return content


# The walk over the blocks of a frame (RFC 8878, section 3.1.1): the only way to learn where a frame ends
# without decompressing it, and to tell one that was cut short from one that is wrong.


def _read_frame(file: BinaryIO) -> bytes:
    """Return the next frame as it lies in the file, ``b""`` at its end."""
    start = file.tell()
    first = file.read(18)
    if not first:
        return b""
    length = _header_length(first)
    while True:
        file.seek(start + length)
        block = file.read(3)
        if len(block) < 3:
            raise FrameBad("an incomplete frame", torn=True)
        size, last = _block(block)
        length += 3 + size
        if last:
            break
    file.seek(start)
    length += 4  # the checksum
    frame = file.read(length)
    if len(frame) < length:
        raise FrameBad("an incomplete frame", torn=True)
    return frame


def _frame_length(data: bytes, start: int) -> int:
    """Return the length of the frame at `start`, all in memory. Raises `FrameBad`."""
    position = start + _header_length(data[start : start + 18])
    while True:
        if position + 3 > len(data):
            raise FrameBad("an incomplete frame", torn=True)
        size, last = _block(data[position : position + 3])
        position += 3 + size
        if last:
            break
    if position + 4 > len(data):
        raise FrameBad("an incomplete frame", torn=True)
    return position + 4 - start


def _header_length(first: bytes) -> int:
    """Return the length of a frame's header, from its first bytes."""
    if first[:4] != _MAGIC[: len(first)]:
        raise FrameBad("no zstd frame")
    if len(first) < 5:
        raise FrameBad("an incomplete frame", torn=True)
    descriptor = first[4]
    single_segment = descriptor >> 5 & 1
    has_checksum = descriptor >> 2 & 1
    if descriptor & 0b11 or descriptor >> 3 & 1 or not has_checksum:
        raise FrameBad("a zstd frame that no event log holds (dictionary, or no checksum)")
    size_flag = descriptor >> 6
    content_size_bytes = single_segment if size_flag == 0 else 1 << size_flag
    return 5 + (1 - single_segment) + content_size_bytes


def _block(header: bytes) -> tuple[int, bool]:
    """Return how many bytes a block takes behind its header, and whether it is the last one."""
    value = int.from_bytes(header, "little")
    kind, size = value >> 1 & 0b11, value >> 3
    if kind == 3 or size > 128 * 1024:
        raise FrameBad("a zstd frame with an impossible block")
    return (1 if kind == 1 else size), bool(value & 1)
