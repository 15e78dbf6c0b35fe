"""`eventrain replay --follow`: step through the interesting events of a run, with the keyboard or at its own pace."""

from __future__ import annotations

import os
import select
import sys
import termios
import time
import tty
from collections.abc import Iterator
from types import TracebackType

import click
from rich.console import Console
from rich.text import Text

from ...events.record import Record
from ...events.types import (
    TELEMETRY,
    Blocked,
    EnvStepFinished,
    EnvStepStarted,
    Event,
    LlmCallFinished,
    LlmCallStarted,
    PromptDrawn,
    RewardScored,
    TrajectoryCompleted,
    TrajectoryStarted,
    Unblocked,
)
from .event_line import event_line
from .moment_report import moment_lines
from .points import Point, Seq
from .timeline import Moment, Timeline

DULL: tuple[type[Event], ...] = (
    *TELEMETRY,
    EnvStepFinished,
    EnvStepStarted,
    LlmCallFinished,
    LlmCallStarted,
    PromptDrawn,
    RewardScored,
    TrajectoryCompleted,
    TrajectoryStarted,
)
"""Events that are most of a log and one of which alone says little."""
TICK_S = 0.2
SPEED_STEP = 2.0
LOOK_BACK = 1000
"""Events that are searched backwards first; four times as many each time none of them is interesting."""
_KEYS = {
    "\x1b[C": "next",
    "\x1bOC": "next",
    " ": "next",
    "\x1b[D": "back",
    "\x1bOD": "back",
    "+": "faster",
    "=": "faster",
    "-": "slower",
    "q": "quit",
    "Q": "quit",
    "\x03": "quit",
    "\x04": "quit",
}


def interesting(record: Record) -> bool:
    """Return whether to stop at this event: what decides or changes the run, not each call in it."""
    event = record.event
    if isinstance(event, Blocked | Unblocked):
        return event.edge != "durable"
    return not isinstance(event, DULL)


def on_terminal() -> bool:
    """Return whether a person with a keyboard sees the output."""
    return sys.stdin.isatty() and sys.stdout.isatty() and os.environ.get("TERM") != "dumb"


def follow_lines(timeline: Timeline, at: Point, speed: float | None) -> Iterator[str]:
    """Yield a line for each interesting event from the point on, the point's own first; `speed` paces them."""
    moment = timeline.moment(at)
    yield event_line(moment.last, timeline.first.ts)
    last_ts = moment.last.ts
    for record in timeline.records(moment.seq):
        if interesting(record):
            if speed is not None:
                time.sleep(max(0.0, (record.ts - last_ts) / 1e9 / speed))
            last_ts = record.ts
            yield event_line(record, timeline.first.ts)


def follow_on_terminal(timeline: Timeline, at: Point, speed: float | None) -> None:
    """Show the state at the point and let the keys move it, until one of them quits."""
    walk = Walk(timeline, at)
    console = Console(highlight=False)
    with Keys() as keys, console.screen() as screen:
        playing = speed
        while True:
            shown = walk.lines()[: max(1, console.height - 2)]
            text = "\n".join([*shown, "", _footer(playing, walk.note)])
            screen.update(Text.from_ansi(text, no_wrap=True, overflow="ellipsis"))
            key = keys.read(walk.seconds_ahead() / playing if playing else None)
            if key == "quit":
                return
            if key in ("faster", "slower"):
                factor = SPEED_STEP if key == "faster" else 1 / SPEED_STEP
                playing = 1.0 if playing is None else playing * factor
            elif key == "back":
                playing = None
                walk.back()
            elif key in ("next", ""):
                playing = playing if key == "" else None
                if not walk.on():
                    playing = None


class Walk:
    """A state that goes along the interesting events of a log, in both directions."""

    def __init__(self, timeline: Timeline, at: Point) -> None:
        self.note = ""
        """What the last step could not do."""
        self._timeline = timeline
        self._moment: Moment = timeline.moment(at)
        self._ahead: list[Record] = []

    @property
    def seq(self) -> int:
        """Return the seq after whose event the state is."""
        return self._moment.seq

    def lines(self) -> list[str]:
        """Return the state as lines."""
        return moment_lines(self._moment)

    def seconds_ahead(self) -> float:
        """Return the seconds from here to the next interesting event; 0 at the end."""
        ahead = self._look()
        return max(0.0, (ahead[-1].ts - self._moment.last.ts) / 1e9) if ahead else 0.0

    def on(self) -> bool:
        """Go to the next interesting event; return False, and stay, where the log has none behind this yet."""
        ahead = self._look()
        self.note = "" if ahead else "this is the end of the log"
        for record in ahead:
            self._timeline.apply(self._moment, record)
        self._ahead = []
        return bool(ahead)

    def back(self) -> None:
        """Go to the interesting event before this one, or stay at the first."""
        self._ahead, self.note = [], ""
        before = self._before()
        if before is None:
            self.note = "this is the beginning of the log"
        else:
            self._moment = self._timeline.moment(Seq(before))

    def _look(self) -> list[Record]:
        """Return the records from here to the next interesting one; none where no interesting one follows."""
        if not self._ahead:
            found: list[Record] = []
            for record in self._timeline.records(self.seq):
                found.append(record)
                if interesting(record):
                    self._ahead = found
                    break
        return self._ahead

    def _before(self) -> int | None:
        span, end = LOOK_BACK, self.seq - 1
        while end >= 0:
            begin = max(0, end - span + 1)
            found = [r.seq for r in self._timeline.records(begin - 1, end) if interesting(r)]
            if found:
                return found[-1]
            span, end = span * 4, begin - 1
        return None


class Keys:
    """The keyboard, key by key and without echo; a context manager that puts the terminal back as it was."""

    def __enter__(self) -> Keys:
        self._descriptor = sys.stdin.fileno()
        self._before = termios.tcgetattr(self._descriptor)
        tty.setcbreak(self._descriptor)
        self._typed = ""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        termios.tcsetattr(self._descriptor, termios.TCSADRAIN, self._before)

    def read(self, limit_s: float | None) -> str:
        """Return what the next known key means; "" if none came within `limit_s` seconds."""
        while True:
            key = self._take()
            if key:
                return key
            ready, _, _ = select.select([self._descriptor], [], [], limit_s)
            if not ready:
                return ""
            typed = os.read(self._descriptor, 64)
            if not typed:
                return "quit"  # the terminal is gone
            self._typed += typed.decode(errors="replace")

    def _take(self) -> str:
        """Return the meaning of the first known key among those typed, and drop what comes before it."""
        while self._typed:
            for sequence, meaning in _KEYS.items():
                if self._typed.startswith(sequence):
                    self._typed = self._typed[len(sequence) :]
                    return meaning
            if any(sequence.startswith(self._typed) for sequence in _KEYS):
                return ""  # the beginning of a sequence
            self._typed = self._typed[1:]
        return ""


def _footer(speed: float | None, note: str) -> str:
    pace = f"playing at {speed:g}x" if speed else "stopped"
    said = f"{note}; " if note else ""
    return click.style(
        f"{said}{pace}   right/space: next   left: back   + -: play, faster, slower   q: quit", dim=True
    )
