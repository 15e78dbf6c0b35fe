"""The events of a run as Parquet: a folder with one file per kind, each with columns of its own.

One file for all kinds would have some 170 columns, nearly all of them empty in every row, and names that mean other
types in other kinds. By kind, every column is what the event says it is: numbers, texts, lists, structs, maps.
"""

from __future__ import annotations

import types
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import msgspec
from pydantic import BaseModel

from ...events.record import Record
from ...events.types import Event
from ..wording import require

ROWS_PER_GROUP = 65_536
"""Rows of one kind that are written together."""
ROWS_WAITING_MAX = 131_072
"""Of all kinds: what is the most is written when there are more, so memory is bounded however long the log is."""


@dataclass
class _Table:
    """One kind's file."""

    writer: Any
    schema: Any
    names: list[str]
    as_json: frozenset[str]
    rows: list[Record] = field(default_factory=list)


class ParquetExport:
    """Writes records to ``<folder>/<kind>.parquet``. Raises `MissingExtra` without pyarrow."""

    def __init__(self, folder: Path) -> None:
        self._pa = require("pyarrow", "data")
        self._parquet = require("pyarrow.parquet", "data")
        self._folder = folder
        self._tables: dict[str, _Table] = {}
        self._waiting = 0
        self.events = 0

    @property
    def kinds(self) -> int:
        """Files that were written."""
        return len(self._tables)

    def write(self, records: Iterable[Record]) -> None:
        """Write all `records` and close the files, also those of what came before an exception."""
        try:
            for record in records:
                self._add(record)
        finally:
            for table in self._tables.values():
                self._flush(table)
                table.writer.close()

    def _add(self, record: Record) -> None:
        kind: str = record.event.kind  # type: ignore[attr-defined]
        table = self._tables.get(kind)
        if table is None:
            table = self._tables[kind] = self._open(kind, type(record.event))
        table.rows.append(record)
        self._waiting += 1
        self.events += 1
        if len(table.rows) == ROWS_PER_GROUP:
            self._flush(table)
        elif self._waiting > ROWS_WAITING_MAX:
            self._flush(max(self._tables.values(), key=lambda one: len(one.rows)))

    def _open(self, kind: str, event: type[Event]) -> _Table:
        pa = self._pa
        columns = {
            "seq": pa.int64(),
            "ts": pa.timestamp("us", tz="UTC"),
            "mono": pa.int64(),
            "actor": pa.string(),
            "cause": pa.int64(),
            "corr": pa.string(),
            "kind": pa.string(),
        }
        names = [name for name in event.model_fields if name != "kind"]
        types_of = {name: arrow_type(pa, event.model_fields[name].annotation) for name in names}
        schema = pa.schema({**columns, **{name: made or pa.string() for name, made in types_of.items()}})
        as_json = frozenset(name for name, made in types_of.items() if made is None)
        path = self._folder / f"{kind}.parquet"
        return _Table(self._parquet.ParquetWriter(path, schema, compression="zstd"), schema, names, as_json)

    def _flush(self, table: _Table) -> None:
        if not table.rows:
            return
        pa, rows = self._pa, table.rows
        columns: list[list[Any]] = [
            [row.seq for row in rows],
            [row.ts // 1000 for row in rows],
            [row.mono for row in rows],
            [row.actor for row in rows],
            [row.cause for row in rows],
            [row.corr or None for row in rows],
            [row.event.kind for row in rows],  # type: ignore[attr-defined]
        ]
        for name in table.names:
            values = [getattr(row.event, name) for row in rows]
            columns.append([_json(one) if name in table.as_json else plain(one) for one in values])
        arrays = [pa.array(column, kind) for column, kind in zip(columns, table.schema.types, strict=True)]
        table.writer.write_batch(pa.record_batch(arrays, schema=table.schema))
        self._waiting -= len(rows)
        rows.clear()


def arrow_type(pa: Any, annotation: Any) -> Any:
    """Return the Arrow type of a field of an event; None for a value of any shape, which is written as JSON."""
    if annotation in _PLAIN:
        return getattr(pa, _PLAIN[annotation])()
    origin, inner = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return arrow_type(pa, inner[0])
    if origin is Literal:
        return pa.string()
    if origin in (Union, types.UnionType):
        (only,) = [one for one in inner if one is not type(None)]
        return arrow_type(pa, only)
    if origin is tuple:  # of one type throughout, with or without a length
        return pa.list_(arrow_type(pa, inner[0]))
    if origin is dict:
        values = None if inner[1] is Any else arrow_type(pa, inner[1])
        return None if values is None else pa.map_(pa.string(), values)
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        fields = annotation.model_fields.items()
        return pa.struct({name: arrow_type(pa, one.annotation) for name, one in fields})
    raise TypeError(f"no Arrow type for {annotation}")


_PLAIN: dict[Any, str] = {str: "string", int: "int64", float: "float64", bool: "bool_"}


def plain(value: Any) -> Any:
    """Return a field's value as Arrow takes it."""
    if isinstance(value, BaseModel):
        return {name: plain(one) for name, one in value}
    if isinstance(value, tuple):
        return [plain(one) for one in value]
    if isinstance(value, dict):
        return list(value.items())
    return value


def _json(value: Any) -> str | None:
    return None if value is None else msgspec.json.encode(value).decode()
