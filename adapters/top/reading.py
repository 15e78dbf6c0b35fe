"""A thread that reads the log of a run, and tells what to show of it: where it stands now, or stood at some point.

The thread owns every folded state. What it hands out is plain data, so that whoever draws never waits for a fold, and
a fold never for who draws. It takes no lock and writes nothing into the folder of the run.
"""

from __future__ import annotations

import copy
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from ...events.errors import LogDamaged, LogTooNew
from ...events.folder import RunFolder
from ...events.reader import Mark
from ...events.segment import segment_name, segment_numbers
from ..cli.failures import BadInput, CommandFailed, expected_failure
from ..cli.opening import reader_of
from ..cli.points import End, Point, Seq
from ..cli.run_facts import RunFacts
from ..cli.timeline import Moment, Timeline
from .model import Shown, shown
from .recent import EVENTS, Recent

PROGRESS_S = 0.2
"""Time between two words of how far a long fold has come."""
PLAY_S = 0.25
"""Longest time between two pictures while the past is played."""
NEAR = 4000
"""Events behind a kept state for which it is gone on from, rather than from a snapshot."""
EMPTY = "the log is empty: the run has not begun yet; waiting for its first event"


@dataclass(frozen=True, slots=True)
class Folding:
    """A long fold goes on; `share` (0 to 1) of the log's bytes is read."""

    share: float


@dataclass(frozen=True, slots=True)
class Waiting:
    """There is nothing to show yet; `why` is one line."""

    why: str


@dataclass(frozen=True, slots=True)
class Picture:
    """What is to be shown."""

    shown: Shown
    last_seq: int
    """Of the log, as far as it is read."""
    end_ns: int
    """Time from the start of the run to that event."""
    following: bool
    """Whether this is the log's end, and goes along with it."""
    playing: float | None
    """How many times as fast as it was the past is played; None while it stands."""
    notice: str
    """What is wrong with the log or the last request, in one line; or ''."""


@dataclass(frozen=True, slots=True)
class Broken:
    """The log cannot be read at all; the thread has ended."""

    failure: CommandFailed


News = Folding | Waiting | Picture | Broken


@dataclass(frozen=True, slots=True)
class StepFrom:
    """The end of the `by`-th training step before (negative) or after seq `seq`, or the first or last event."""

    seq: int
    by: int


class _Stopped(BaseException):
    """Somebody asked for something else while a fold went on."""


class Reading:
    """The reader of one run. Construct it, run `run` in a thread, and ask from any other; `stop` ends it.

    `tell` is called in that thread. `at` is the point to begin with, None the log's end.
    """

    def __init__(
        self,
        folder: RunFolder,
        tell: Callable[[News], None],
        *,
        at: Point | None = None,
        interval_s: float = 0.5,
        now_ts: Callable[[], int] = time.time_ns,
    ) -> None:
        self._folder, self._tell, self._interval_s, self._now_ts = folder, tell, interval_s, now_ts
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._stopping = False
        self._wanted: Point | StepFrom | None = at
        self._speed: float | None = None
        self._speed_wanted: float | None = None
        self._told_s = 0.0
        self._notice = ""
        self._past: Moment | None = None
        self._past_recent = Recent()
        self._cursor_ts = 0
        self._kept: tuple[Moment, Recent] | None = None
        self._torn_of, self._torn_text = -1, ""

    # What others ask for; from any thread

    def stop(self) -> None:
        """End the thread soon, also in the middle of a fold."""
        self._stopping = True
        self._wake.set()

    def go(self, point: Point | StepFrom) -> None:
        """Show the state at `point`; the log's end is followed. A request that was not met yet is dropped."""
        with self._lock:
            self._wanted, self._speed_wanted = point, None
        self._wake.set()

    def play(self, speed: float | None) -> None:
        """Let the past go on, `speed` times as fast as it was; None stops it."""
        with self._lock:
            self._speed_wanted = speed
        self._wake.set()

    # The thread

    def run(self) -> None:
        """Read, and tell, until `stop`. Raises nothing: what cannot be gone on from is told as `Broken`."""
        try:
            self._run()
        except _Stopped:
            pass
        except Exception as error:  # noqa: BLE001 - told in one line; a thread has nobody to raise to
            self._tell(Broken(_failure(error)))

    def _run(self) -> None:
        timeline = self._timeline()
        timeline.on_frame = self._folding
        self._live = Timeline(self._folder)
        self._live.on_frame = self._folding
        self._recent = Recent()
        self._end = self._live.moment(End())
        self._fill(self._live, self._end, self._recent)
        self._past_line = timeline
        told: object = None
        while not self._stopping:
            self._wake.clear()
            began = time.monotonic()
            trouble = self._follow()
            self._answer()
            picture = self._picture(trouble)
            if picture != told:
                self._tell(picture)
                told = picture
            playing = self._speed is not None and self._past is not None
            interval_s = min(self._interval_s, PLAY_S) if playing else self._interval_s
            self._wake.wait(max(0.0, interval_s - (time.monotonic() - began)))

    def _timeline(self) -> Timeline:
        """Return the log, once it has a first event."""
        told = ""
        while not self._stopping:
            if self._is_gone():
                raise BadInput([f"{self._folder.path}: the run's folder was deleted"])
            if next(reader_of(self._folder).records(), None) is not None:
                return Timeline(self._folder)
            if not told:
                self._tell(Waiting(told := EMPTY))
            self._wake.wait(self._interval_s)
            self._wake.clear()
        raise _Stopped

    def _folding(self, mark: Mark) -> None:
        if self._stopping:
            raise _Stopped
        now_s = time.monotonic()
        if now_s - self._told_s >= PROGRESS_S:
            if self._told_s:
                self._tell(Folding(_share(self._folder, mark)))
            self._told_s = now_s

    def _fill(self, timeline: Timeline, moment: Moment, recent: Recent) -> None:
        """Fold the records that still count as recent at `moment`."""
        self._told_s = 0.0
        for record in timeline.records(max(-1, moment.seq - EVENTS), moment.seq):
            recent.apply(record)
            if record.seq == moment.seq:
                return  # what lies behind it may be damaged

    def _follow(self) -> str:
        """Fold what the log has behind what is folded; return what is wrong with it, or ''."""
        self._told_s = 0.0
        facts = self._end.facts
        # The lock first: a run that ends between the two looks has its last event in the log by then.
        self._alive = _is_held(self._folder)
        try:
            for record in self._live.go_on(self._end):
                self._recent.apply(record)
        except (LogDamaged, LogTooNew) as error:
            self._end.unreadable = error
        except OSError:
            if not self._is_gone():
                raise
        self._alive = self._alive and facts.ended is None
        facts.later_ns = 0
        if self._alive:
            facts.later_ns = max(0, self._now_ts() - facts.view.last_ts)
        if self._is_gone():
            return f"{self._folder.path} was deleted; this is the last that was read of it"
        if self._end.unreadable is not None:
            return f"{self._end.unreadable}; this is the state at seq {self._end.seq}"
        return self._torn() if not self._alive and facts.ended is None else ""

    def _is_gone(self) -> bool:
        return not self._folder.events.is_dir()

    def _torn(self) -> str:
        """Return what a crash left of the last write; it costs a reading of the last segment, so it is done once."""
        if self._torn_of != self._end.seq:
            self._torn_of = self._end.seq
            torn = self._live.reader.torn_tail
            text = "" if torn is None else f"the log ends in {torn.cut_bytes} bytes of a torn write"
            self._torn_text = text
        return self._torn_text

    def _answer(self) -> None:
        """Do what was asked for meanwhile, and let the past go on if it is played."""
        with self._lock:
            wanted, speed = self._wanted, self._speed_wanted
            self._wanted = None
        if wanted is not None:
            self._notice = ""
            try:
                self._stand(self._step_end(wanted) if isinstance(wanted, StepFrom) else wanted)
            except CommandFailed as error:
                self._notice = error.lines[0]
        if speed != self._speed:
            self._speed, self._played_s = speed, time.monotonic()
        if self._past is not None and self._speed is not None:
            self._play_on(self._past, self._speed)

    def _stand(self, point: Point) -> None:
        if isinstance(point, End) or (isinstance(point, Seq) and point.seq >= self._end.seq):
            self._past = None
            return
        if isinstance(point, Seq):
            moment, recent = self._near(point.seq)
        else:
            moment, recent = self._past_line.moment(point), Recent()
            self._fill(self._past_line, moment, recent)
        self._past, self._past_recent = moment, recent
        self._cursor_ts = moment.last.ts + moment.facts.later_ns

    def _near(self, seq: int) -> tuple[Moment, Recent]:
        """Return the state at `seq`, from one kept shortly before it: who goes one event back will go another."""
        if self._kept is None or not 0 <= seq - self._kept[0].seq <= NEAR:
            before = self._past_line.moment(Seq(max(0, seq - NEAR // 2)))
            kept = Recent()
            self._fill(self._past_line, before, kept)
            self._kept = before, kept
        moment, recent = copy.deepcopy(self._kept)
        if moment.seq < seq:
            for record in self._past_line.records(moment.seq, seq):
                self._past_line.apply(moment, record)
                recent.apply(record)
                if record.seq == seq:
                    break  # what lies behind it may be damaged
        return moment, recent

    def _step_end(self, wanted: StepFrom) -> Point:
        ends = sorted(self._end.facts.trained_at.values())
        if wanted.by < 0:
            before = [seq for seq in ends if seq < wanted.seq]
            return Seq(before[wanted.by] if len(before) >= -wanted.by else 0)
        after = [seq for seq in ends if seq > wanted.seq]
        return Seq(after[wanted.by - 1]) if len(after) >= wanted.by else End()

    def _play_on(self, past: Moment, speed: float) -> None:
        now_s = time.monotonic()
        self._cursor_ts += round((now_s - self._played_s) * speed * 1e9)
        self._played_s = now_s
        for record in self._past_line.go_on(past, self._cursor_ts):
            self._past_recent.apply(record)
        past.facts.later_ns = max(0, self._cursor_ts - past.last.ts)
        if past.seq >= self._end.seq:
            with self._lock:
                self._past = self._speed = self._speed_wanted = None

    def _picture(self, trouble: str) -> Picture:
        facts: RunFacts = self._end.facts
        if self._past is None:
            picture = shown(facts, self._recent, alive=self._alive)
        else:
            picture = shown(self._past.facts, self._past_recent)
        return Picture(
            picture,
            self._end.seq,
            facts.view.last_ts - facts.started_ts,
            self._past is None,
            self._speed if self._past is not None else None,
            self._notice or trouble,
        )


def _is_held(folder: RunFolder) -> bool:
    try:
        return folder.is_held()
    except OSError:
        return False


def _share(folder: RunFolder, mark: Mark) -> float:
    """Return the share of the log's bytes that lies before `mark`."""
    before = total = 0
    for number in segment_numbers(folder.events):
        size = (folder.events / segment_name(number)).stat().st_size
        total += size
        before += size if number < mark.segment else mark.offset if number == mark.segment else 0
    return before / total if total else 1.0


def _failure(error: Exception) -> CommandFailed:
    expected = expected_failure(error)
    if expected is not None:
        return expected
    return CommandFailed([f"eventrain: {type(error).__name__}: {' '.join(str(error).split())} (a defect)"])
