"""JSON Lines: one object per line, read from the file whenever it is drawn."""

from __future__ import annotations

import os
from array import array
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from .errors import DataError

_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


class JsonlRows:
    """The lines of a file, indexed once; memory holds 8 bytes per line and never the file.

    Every line is checked when the file is opened, so that a broken one ends the run before it starts. Blank lines
    are skipped. Raises `DataError`.
    """

    def __init__(self, path: Path, limit: int | None = None) -> None:
        self._path = path
        self._starts = array("Q")
        try:
            with path.open("rb") as file:
                self._identity = _identity(file.fileno())
                self._index(file, limit)
        except OSError as error:
            raise DataError(f"{path}: {error.strerror or error}") from error
        if not self._starts:
            raise DataError(f"{path}: no line holds an item")

    def _index(self, file: Any, limit: int | None) -> None:
        start = 0
        for number, line in enumerate(file, start=1):
            skipped = len(_BYTE_ORDER_MARK) if number == 1 and line.startswith(_BYTE_ORDER_MARK) else 0
            if line[skipped:].strip():
                _parse(line[skipped:], f"{self._path}:{number}")
                self._starts.append(start + skipped)
            start += len(line)
            if limit is not None and len(self._starts) == limit:
                return

    def __len__(self) -> int:
        """Return the number of items."""
        return len(self._starts)

    def row(self, index: int) -> Mapping[str, Any]:
        """Read the item at `index`. Raises `DataError` when the file is no longer the one that was indexed."""
        try:
            with self._path.open("rb") as file:
                if _identity(file.fileno()) != self._identity:
                    raise DataError(f"{self._path}: changed since the run began to read it")
                file.seek(self._starts[index])
                line = file.readline()
        except OSError as error:
            raise DataError(f"{self._path}: {error.strerror or error}") from error
        return _parse(line, f"{self._path}, item {index}")


def _parse(line: bytes, place: str) -> dict[str, Any]:
    try:
        item = msgspec.json.decode(line)
    except msgspec.DecodeError as error:
        raise DataError(f"{place}: not valid JSON: {error}") from error
    if not isinstance(item, dict):
        raise DataError(f"{place}: each line must be a JSON object, found {_json_name(item)}")
    return item


def _json_name(value: object) -> str:
    names = {list: "an array", str: "a string", bool: "true or false", type(None): "null"}
    return names.get(type(value), "a number")


def _identity(descriptor: int) -> tuple[int, int]:
    """Return what tells that a file is still the same one."""
    status = os.fstat(descriptor)
    return status.st_size, status.st_mtime_ns
