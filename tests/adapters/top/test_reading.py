"""The reader follows a log that grows, goes to any point of its past, and says in one line what is wrong with it."""

from __future__ import annotations

import queue
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from eventrain.adapters.cli import snapshots
from eventrain.adapters.cli.points import End, Point, Seq, Step
from eventrain.adapters.cli.run_facts import RunFacts
from eventrain.adapters.top import reading as reading_module
from eventrain.adapters.top.model import shown
from eventrain.adapters.top.reading import Broken, Folding, News, Picture, Reading, StepFrom, Waiting
from eventrain.adapters.top.recent import Recent
from eventrain.events.folder import RunFolder
from eventrain.events.record import Record
from eventrain.events.types import StepCompleted

DEADLINE_S = 8


class Ear:
    """A reading in a thread, and what it told."""

    def __init__(self, reading: Reading, news: queue.Queue[News]) -> None:
        self.reading, self._news = reading, news
        self.heard: list[News] = []

    def until(self, holds: Callable[[News], bool]) -> News:
        deadline = time.monotonic() + DEADLINE_S
        while True:
            try:
                news = self._news.get(timeout=max(0.0, deadline - time.monotonic()))
            except queue.Empty:
                raise AssertionError(f"not heard; last: {self.heard[-3:]}") from None
            self.heard.append(news)
            if holds(news):
                return news

    def picture(self, holds: Callable[[Picture], bool]) -> Picture:
        found = self.until(lambda news: isinstance(news, Picture) and holds(news))
        assert isinstance(found, Picture)
        return found

    def at(self, seq: int) -> Picture:
        return self.picture(lambda picture: picture.shown.seq == seq)


@contextmanager
def heard(folder: RunFolder, **options: object) -> Iterator[Ear]:
    news: queue.Queue[News] = queue.Queue()
    reading = Reading(folder, news.put, interval_s=0.02, **options)  # type: ignore[arg-type]
    thread = threading.Thread(target=reading.run)
    thread.start()
    try:
        yield Ear(reading, news)
    finally:
        reading.stop()
        thread.join(DEADLINE_S)
        assert not thread.is_alive()


def state(records: list[Record]):
    facts, recent = RunFacts(), Recent()
    for record in records:
        facts.apply(record)
        recent.apply(record)
    return shown(facts, recent)


def test_a_growing_log_is_followed_to_its_end(busy, growing) -> None:
    """Each part that a real writer adds is shown, over several segments, until the run has ended."""
    log = growing()
    log.append(busy[:300])
    with log.folder.lock(), heard(log.folder) as ear:
        for part in (300, 301, 700, len(busy)):
            log.append(busy[:part][log.count :])
            picture = ear.at(part - 1)
            assert picture.following
            assert picture.last_seq == part - 1
        assert picture.shown.life == "completed"
        log.close()


def test_any_point_of_the_past_is_the_fold_up_to_there(busy, write_log) -> None:
    """Forwards, backwards and by step: the same state as a fold from the first event."""
    steps = {r.event.step: r.seq for r in busy if isinstance(r.event, StepCompleted)}
    wanted: list[tuple[Point, int]] = [(Seq(seq), seq) for seq in (400, 399, 0, len(busy) - 2, 120)]
    wanted.append((Step(1), steps[1]))
    with heard(write_log(busy)) as ear:
        ear.at(len(busy) - 1)
        for point, seq in wanted:
            ear.reading.go(point)
            picture = ear.at(seq)
            assert picture.shown == state(busy[: seq + 1])
            assert not picture.following
        ear.reading.go(End())
        assert ear.picture(lambda picture: picture.following).shown.seq == len(busy) - 1


def test_the_ends_of_steps_are_found_from_anywhere(busy, write_log) -> None:
    """Back and on go to the nearest end of a step, and to the first and last event beyond them."""
    ends = [r.seq for r in busy if isinstance(r.event, StepCompleted)]
    with heard(write_log(busy)) as ear:
        ear.at(len(busy) - 1)
        for wanted, seq in (
            (StepFrom(ends[2], -1), ends[1]),
            (StepFrom(ends[2] + 1, -1), ends[2]),
            (StepFrom(ends[2], 1), ends[3]),
            (StepFrom(ends[0], -1), 0),
            (StepFrom(ends[-1], 1), len(busy) - 1),
        ):
            ear.reading.go(wanted)
            ear.at(seq)


def test_one_step_back_reads_no_more_than_to_the_nearest_snapshot(busy, write_log, monkeypatch) -> None:
    """A log is folded from its beginning once, however often its past is looked at."""
    monkeypatch.setattr(snapshots, "EVERY", 100)
    monkeypatch.setattr(snapshots, "SHARE", 10**6)
    monkeypatch.setattr(reading_module, "NEAR", 100)
    last = len(busy) - 1
    folded: list[int] = []
    apply = RunFacts.apply

    def counted(facts: RunFacts, record: Record) -> None:
        folded.append(record.seq)
        apply(facts, record)

    with heard(write_log(busy)) as ear:
        ear.at(last)
        monkeypatch.setattr(RunFacts, "apply", counted)
        for seq in range(last - 1, last - 20, -1):
            folded.clear()
            ear.reading.go(Seq(seq))
            ear.at(seq)
            assert len(folded) <= 300


def test_the_past_is_played_and_arrives_at_the_end(busy, write_log) -> None:
    """Played fast it goes on by itself, never backwards, and ends up following the log."""
    with heard(write_log(busy), at=Seq(50)) as ear:
        ear.at(50)
        ear.reading.play(40.0)
        seqs = [ear.picture(lambda picture: picture.playing is not None).shown.seq]
        while not (picture := ear.picture(lambda _: True)).following:
            seqs.append(picture.shown.seq)
        assert seqs == sorted(seqs)
        assert picture.playing is None


def test_a_log_without_an_event_is_waited_for(tmp_path: Path, busy, growing) -> None:
    """It says so, and shows the run as soon as it has begun."""
    folder = RunFolder.create(tmp_path / "run")
    with heard(folder) as ear:
        told = ear.until(lambda news: isinstance(news, Waiting))
        assert told == Waiting("the log is empty: the run has not begun yet; waiting for its first event")
        log = growing(folder)
        log.append(busy[:10])
        ear.at(9)
        log.close()


def test_a_long_fold_says_how_far_it_has_come(busy, write_log, monkeypatch) -> None:
    """Shares of the log between 0 and 1, that grow."""
    monkeypatch.setattr("eventrain.adapters.top.reading.PROGRESS_S", 0.0)
    with heard(write_log(busy)) as ear:
        ear.at(len(busy) - 1)
        shares = [news.share for news in ear.heard if isinstance(news, Folding)]
    assert all(0 <= share <= 1 for share in shares)


def test_a_log_deleted_while_it_is_watched_is_said(busy, growing) -> None:
    """The last state stays, with one line."""
    log = growing()
    log.append(busy[:200])
    with heard(log.folder) as ear:
        ear.at(199)
        log.close()
        shutil.rmtree(log.folder.path)
        picture = ear.picture(lambda picture: picture.notice != "")
        assert picture.notice == f"{log.folder.path} was deleted; this is the last that was read of it"
        assert picture.shown.seq == 199


def test_a_damaged_log_shows_what_lies_before_the_damage(busy, write_log) -> None:
    """One line says where it is damaged, and which state this is."""
    folder = write_log(busy)
    segment = sorted(folder.events.glob("*.zst"))[1]
    data = bytearray(segment.read_bytes())
    data[len(data) // 2] ^= 0xFF
    segment.write_bytes(data)
    with heard(folder) as ear:
        picture = ear.picture(lambda picture: picture.notice != "")
        assert segment.name in picture.notice
        assert picture.notice.endswith(f"this is the state at seq {picture.shown.seq}")
        assert picture.shown == replace(state(busy[: picture.shown.seq + 1]), life="gone", eta_s=None)


def test_a_torn_write_of_a_dead_run_is_said(busy, write_log) -> None:
    """A run without an end and without a process is gone, and the bytes of its last write are counted."""
    folder = write_log(busy[:200])
    segment = max(folder.events.glob("*.zst"))
    segment.write_bytes(segment.read_bytes() + b"\x28\xb5\x2f\xfd1234567")
    with heard(folder) as ear:
        picture = ear.picture(lambda _: True)
        assert picture.shown.life == "gone"
        assert picture.notice == "the log ends in 11 bytes of a torn write"


def test_a_log_that_cannot_be_read_at_all_ends_the_reading(busy, write_log) -> None:
    """Damaged in its first frame, it has no state to show."""
    folder = write_log(busy[:200])
    segment = max(folder.events.glob("*.zst"))
    segment.write_bytes(b"something else")
    with heard(folder) as ear:
        told = ear.until(lambda news: isinstance(news, Broken))
        assert isinstance(told, Broken)
        assert "000001.jsonl.zst" in told.failure.lines[0]


def test_a_point_outside_the_log_is_refused_in_one_line(busy, write_log) -> None:
    """The state stays as it is."""
    with heard(write_log(busy), at=Step(77)) as ear:
        picture = ear.picture(lambda _: True)
        assert "step 77 was never trained" in picture.notice
        assert picture.following


def test_nothing_in_the_folder_of_the_run_is_changed(busy, write_log) -> None:
    """No lock, no file, no time of change."""
    folder = write_log(busy)
    before = {path: path.stat().st_mtime_ns for path in folder.path.rglob("*")}
    with heard(folder) as ear:
        ear.at(len(busy) - 1)
        ear.reading.go(Seq(100))
        ear.at(100)
    assert {path: path.stat().st_mtime_ns for path in folder.path.rglob("*")} == before
