"""Copies of a log and of its payloads: up to a place in it, or event by event with something changed.

Files that nobody writes any more are linked where the file system can, so that a copy costs little.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path

from .codec import decode_envelope, encode
from .log import GROUP_RECORDS_MAX, LEVEL, Segments, sync_folder
from .payload import PACK_BYTES_MAX, pack_name
from .record import Record
from .segment import FrameWriter, Seal, marker_line, parse_header, read_frames, segment_name, segment_numbers

CHUNK_BYTES = 2**20


def copy_log(source: Path, target: Path, last_seq: int) -> None:
    """Copy the log in `source` up to and including `last_seq` to the empty folder `target`, durably.

    Expects that a reader has found it whole up to there. Segments behind `last_seq` are not opened.
    """
    numbers = segment_numbers(source)
    for number, following in zip(numbers, [*numbers[1:], None], strict=True):
        if following is not None and _first_seq(source / segment_name(following)) <= last_seq + 1:
            link_or_copy(source / segment_name(number), target / segment_name(number))
            if _first_seq(source / segment_name(following)) == last_seq + 1:
                break
            continue
        _copy_part(source / segment_name(number), target / segment_name(number), last_seq)
        break
    sync_folder(target)


def copy_payloads(source: Path, target: Path, ends: Mapping[int, int]) -> None:
    """Copy the payload packs to the empty folder `target`, durably: of pack `n` the first ``ends[n]`` bytes.

    Packs that are full are linked or copied whole. One that is missing is left out: its payloads cannot be read here
    either.
    """
    for pack, end in sorted(ends.items()):
        old, new = source / pack_name(pack), target / pack_name(pack)
        if not old.is_file():
            continue
        if old.stat().st_size >= PACK_BYTES_MAX:
            link_or_copy(old, new)
            continue
        with old.open("rb") as reading, new.open("xb") as writing:
            left = end
            while left and (chunk := reading.read(min(left, CHUNK_BYTES))):
                writing.write(chunk)
                left -= len(chunk)
            writing.flush()
            os.fsync(writing.fileno())
    sync_folder(target)


def write_copy(folder: Path, run: str, records: Iterable[Record], segment_bytes: int) -> int:
    """Write `records`, dense from seq 0, as the log of writer 1 to the empty `folder`; return how many there were.

    An exception that `records` raises goes on after what came before it is written and sealed. Raises OSError.
    """
    segments, frames = Segments(folder, run, 1, segment_bytes), bytearray()
    first = count = 0
    try:
        for record in records:
            frames += encode(record)
            count += 1
            if count - first == GROUP_RECORDS_MAX:
                segments.write(frames, first_seq=first, last_seq=count - 1)
                frames, first = bytearray(), count
    finally:
        if frames:
            segments.write(frames, first_seq=first, last_seq=count - 1)
        segments.seal(count - 1)
    return count


def link_or_copy(source: str | Path, target: str | Path) -> None:
    """Give the file a second name, or copy it where the file system has no such names or is another one."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)
        with Path(target).open("rb") as file:
            os.fsync(file.fileno())


def _first_seq(path: Path) -> int:
    with path.open("rb") as file:
        return parse_header(next(read_frames(file))[1]).first_seq


def _copy_part(source: Path, target: Path, last_seq: int) -> None:
    """Copy a segment up to `last_seq`: whole frames as they lie, the one that holds it cut, and a seal."""
    frames = FrameWriter(LEVEL)
    with source.open("rb") as reading, source.open("rb") as raw, target.open("xb") as writing:
        for end, content in read_frames(reading):
            frame = raw.read(end - raw.tell())
            lines = content.splitlines(keepends=True)
            if writing.tell() == 0:  # the header
                writing.write(frame)
                continue
            if content.startswith(b'{"kind":"segment_sealed"'):
                break
            keep = last_seq - decode_envelope(lines[0]).seq + 1
            if keep <= 0:
                break
            writing.write(frame if keep >= len(lines) else frames.frame(b"".join(lines[:keep])))
            if keep <= len(lines):
                break
        writing.write(frames.frame(marker_line(Seal(last_seq))))
        writing.flush()
        os.fsync(writing.fileno())
