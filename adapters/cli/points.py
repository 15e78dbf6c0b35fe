"""Points of a run as a person names them: a seq, a time, the end of a step, the end of the log."""

from __future__ import annotations

import datetime
import re
from typing import NamedTuple

MS = 1_000_000
_SINCE = re.compile(r"(?:(\d+):)?(\d{1,3}):(\d{2})(?:\.(\d{1,9}))?")


class Seq(NamedTuple):
    """Right after the event with this seq."""

    seq: int

    def __str__(self) -> str:
        return f"seq {self.seq}"


class Time(NamedTuple):
    """At a time: after all events that come no later. Exactly one of the two is set."""

    text: str
    since_start_ns: int | None
    utc_ns: int | None

    def __str__(self) -> str:
        return self.text


class Step(NamedTuple):
    """Right after a step was completed, in the history that counts."""

    step: int

    def __str__(self) -> str:
        return f"step {self.step}"


class End(NamedTuple):
    """After the last event there is."""

    def __str__(self) -> str:
        return "the end"


Point = Seq | Time | Step | End


def parse_point(text: str) -> Point:
    """Return the point that `text` names. Raises ValueError with what would be right."""
    text = text.strip()
    if text == "end":
        return End()
    if re.fullmatch(r"\d{1,18}", text):
        return Seq(int(text))
    if step := re.fullmatch(r"step:(\d{1,18})", text):
        return Step(int(step[1]))
    if since := _SINCE.fullmatch(text):
        hours, minutes, secs, part = since.groups()
        whole = int(hours or 0) * 3600 + int(minutes) * 60 + int(secs)
        return Time(text, _to_its_end(whole * 10**9, part), None)
    if utc := re.fullmatch(
        r"(\d{4}-\d\d-\d\d[T ]\d\d:\d\d(?::\d\d)?)(?:\.(\d{1,9}))?(?:Z| ?UTC|\+00:00)?", text
    ):
        try:
            moment = datetime.datetime.fromisoformat(utc[1]).replace(tzinfo=datetime.UTC)
        except ValueError:
            pass
        else:
            return Time(text, None, _to_its_end(int(moment.timestamp()) * 10**9, utc[2]))
    raise ValueError(
        f"'{text}' names no point of a run; give a seq (978), a time since the start (0:12:03.5), "
        "a UTC time (2026-11-30T23:12:03Z), step:K, or end"
    )


def _to_its_end(ns: int, digits: str | None) -> int:
    """Return the last nanosecond of the millisecond that is named: times are printed without what is smaller."""
    return ns + int((digits or "").ljust(9, "0")) // MS * MS + MS - 1
