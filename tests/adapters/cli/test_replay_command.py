"""replay, as its users see it: on a run that stalled and on one that was resumed, with snapshots and without."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import select
import shutil
import struct
import subprocess
import sys
import termios
import time
from pathlib import Path

import pytest
from legacy import hole_behind_the_window

from eventrain.adapters.cli import snapshots, state_codec
from eventrain.adapters.cli.following import interesting
from eventrain.adapters.cli.moment_diff import Diff, counters, diff_table
from eventrain.adapters.cli.points import Seq, Step, Time, parse_point
from eventrain.adapters.cli.run_facts import RunFacts
from eventrain.adapters.cli.timeline import Timeline
from eventrain.adapters.simulated.faults import Fault
from eventrain.adapters.simulated.scenario import Scenario, Surroundings
from eventrain.adapters.simulated.simulation import simulate
from eventrain.adapters.simulated.tape import Tape
from eventrain.core.projections import View
from eventrain.events.codec import encode
from eventrain.events.folder import RunFolder
from eventrain.events.log import LogWriter
from eventrain.events.record import Record
from eventrain.events.segment import FrameWriter, Header, marker_line, segment_name
from eventrain.events.types import RunResumed, StallDetected, StepCompleted

EVERY = 50
"""Events between snapshots in these tests."""


@pytest.fixture(autouse=True, name="cache")
def _cache(tmp_path: Path, monkeypatch) -> Path:
    """Give each test a cache folder of its own, and snapshots at short distances."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(snapshots, "EVERY", EVERY)
    return tmp_path / "cache" / "eventrain" / "snapshots"


@pytest.fixture(scope="module", name="stalled")
def _stalled() -> list[Record]:
    """Return the log of the over-long prompt: a deadlock at seq 982, two hours before its end at seq 988."""
    return hole_behind_the_window(legacy=True).go().log


@pytest.fixture(scope="module", name="resumed")
def _resumed() -> list[Record]:
    """Return the log of a run that was killed and resumed, and trained a step twice."""
    for at_event in range(200, 500, 10):
        scenario = Scenario(
            config={
                "run": {"steps": 4},
                "data": {"size": 12},
                "scheduler": {"groups_per_step": 2, "max_staleness": 1},
                "rollout": {"group_size": 2, "max_turns": 1},
                "checkpoint": {"every_steps": 2},
            },
            world=Surroundings(engines=2, spread=4.0),
            fault=(Fault(where="run", what="kill", at_event=at_event),),
        )
        records = simulate(scenario, Tape(0)).records
        if len(completions(records)) > len({step for step, _ in completions(records)}):
            return records
    raise AssertionError("no kill made a step be trained twice")


def completions(records: list[Record]) -> list[tuple[int, int]]:
    return [(r.event.step, r.seq) for r in records if isinstance(r.event, StepCompleted)]


def write_log(path: Path, records: list[Record], segment_bytes: int = 2048) -> RunFolder:
    """Write `records` as the log of a new run folder, in frames and segments of a few dozen events."""
    folder = RunFolder.create(path)
    lines = [encode(record) for record in records]
    frames = FrameWriter(3)
    number, begin = 0, 0
    while begin < len(lines):
        number += 1
        header = Header(format=1, run="run", epoch=1, first_seq=begin, code="0")
        content = frames.frame(marker_line(header))
        while begin < len(lines):
            content += frames.frame(b"".join(lines[begin : begin + 16]))
            begin += 16
            if len(content) >= segment_bytes:
                break
        (folder.events / segment_name(number)).write_bytes(content)
    return folder


def folded(records: list[Record]) -> RunFacts:
    facts = RunFacts()
    for record in records:
        facts.apply(record)
    return facts


def files(cache: Path) -> list[Path]:
    return sorted(cache.rglob("*.snapshot"))


# Points


def test_points_are_what_people_type() -> None:
    """A seq, a time since the start, a UTC time in its usual forms, and a step."""
    assert parse_point("978") == Seq(978)
    assert parse_point("step:12") == Step(12)
    assert parse_point("0:12:03.5") == Time("0:12:03.5", 723_500_999_999, None)
    assert parse_point("12:03") == Time("12:03", 723_000_999_999, None)
    utc = 1_767_268_800_000_999_999
    for text in ("2026-01-01T12:00:00Z", "2026-01-01 12:00:00 UTC", "2026-01-01T12:00", "2026-01-01 12:00:00.000"):
        assert parse_point(text) == Time(text, None, utc)


@pytest.mark.parametrize("text", ["", "foo", "-1", "step:x", "step:-1", "1.5", "2026-13-01T00:00:00Z", "1:2:3:4"])
def test_what_is_no_point_is_one_line(tmp_path: Path, stalled, command, text: str) -> None:
    """Exit code 2, with what a point may be."""
    write_log(tmp_path / "run", stalled)
    result = command("replay", tmp_path / "run", f"--at={text}")
    assert result.exit_code == 2
    assert result.stderr.startswith(f"--at '{text}' names no point of a run; give a seq (978), ")
    assert len(result.stderr.splitlines()) == 1


# States


@pytest.mark.parametrize("log", ["stalled", "resumed"])
def test_the_state_at_every_seq_is_that_of_a_fresh_fold(tmp_path: Path, request, cache: Path, log: str) -> None:
    """In any order, from whatever snapshot is nearest, across a resume too."""
    records = request.getfixturevalue(log)
    timeline = Timeline(write_log(tmp_path / "run", records))
    seqs = [*range(len(records) - 1, 0, -53), *range(0, len(records), 37)]
    for seq in seqs:
        moment = timeline.moment(Seq(seq))
        assert moment.last == records[seq]
        assert moment.facts == folded(records[: seq + 1]), f"at seq {seq}"
    assert len(files(cache)) > len(records) // EVERY - 2


@pytest.mark.parametrize("log", ["stalled", "resumed"])
def test_snapshots_change_nothing_that_is_said(tmp_path: Path, request, command, cache: Path, log: str) -> None:
    """The same points, first with no snapshot, then with all: the same output to the last byte."""
    records = request.getfixturevalue(log)
    write_log(tmp_path / "run", records)
    middle = (records[len(records) // 2].ts - records[0].ts) / 1e9
    points = ["0", "130", str(len(records) // 2), f"0:00:{middle:06.3f}", "step:1", "end"]
    asked = [("--at", point, *form) for point in points for form in ((), ("--json",))]
    asked += [("--diff", "100", "300"), ("--diff", "step:1", "end", "--json")]
    said = []
    for arguments in asked:
        shutil.rmtree(cache, ignore_errors=True)
        said.append(command("replay", tmp_path / "run", *arguments).output)
    command("replay", tmp_path / "run")
    assert files(cache)
    assert [command("replay", tmp_path / "run", *arguments).output for arguments in asked] == said
    assert all(said)


def test_a_stalled_run_shows_why_at_the_time_of_the_stall(tmp_path: Path, stalled, command) -> None:
    """Short target, buffer, engine, waits with age, the chain, the quarantined item and the standing stall."""
    write_log(tmp_path / "run", stalled)
    result = command("replay", tmp_path / "run", "--at", "0:05:00")
    assert result.exit_code == 0
    text = result.output
    assert text.startswith("run  step 3 of 8, version 3, waiting_for_buffer for 4:49, since 0:00:11.100\n")
    assert re.search(r"^after +982  0:00:18.100  watchdog +stall_detected", text, re.MULTILINE)
    assert "nothing happened in the 4:42 after that" in text
    assert re.search(r"^ +3 +3 +0 +4  short by 1$", text, re.MULTILINE)
    assert re.search(r"^buffer +7 of 8: groups 14, 15, 12, 19, 16, 18, 17$", text, re.MULTILINE)
    assert "trainer for buffer_ready: needs step 3: 4 groups, has 3 buffered, 1 in flight (4:49)" in text
    assert re.search(r"^quarantine +item 13: the prompt has 4,000 tokens", text, re.MULTILINE)
    chain = "trainer waits buffer_ready(3) <- target 3 short by 1 <- prompt 13 failed, permanent: prompt too long"
    assert re.search(rf"^chain +{re.escape(chain)}", text, re.MULTILINE)
    assert re.search(r"^stall +deadlock, told at seq 982; first cause: seq 979$", text, re.MULTILINE)


def test_what_is_outstanding_has_its_age_and_deadline_oldest_first(tmp_path: Path, stalled, command) -> None:
    """While prompt 13 hangs, its four calls come before the younger effects."""
    write_log(tmp_path / "run", stalled)
    table = json.loads(command("replay", tmp_path / "run", "--at", "step:2", "--json").output)
    ages = [effect["age_s"] for effect in table["outstanding"]]
    assert ages == sorted(ages, reverse=True)
    oldest = table["outstanding"][0]
    assert (oldest["kind"], oldest["subject"], oldest["deadline_s"]) == ("llm_call", "13/0", 600)
    assert oldest["age_s"] == pytest.approx(3.0, abs=0.01)
    assert [group["group"] for group in table["in_flight"]] == [13]
    assert table["stalls"] == []


def test_a_step_is_the_last_time_that_it_was_trained(tmp_path: Path, resumed) -> None:
    """A resumed run may train a step twice; the history that counts has the second time."""
    timeline = Timeline(write_log(tmp_path / "run", resumed))
    assert len(completions(resumed)) > 4
    for step, seq in dict(completions(resumed)).items():
        moment = timeline.moment(Step(step))
        assert (moment.seq, moment.facts.view.trainer.version) == (seq, step + 1)


def test_a_step_that_was_undone_is_none(tmp_path: Path, resumed, command) -> None:
    """Between the resume and the second training the step is not in the history that counts, and that is said."""
    resume = next(record.seq for record in resumed if isinstance(record.event, RunResumed))
    before = dict(completions(resumed[:resume]))
    undone = max(before)
    again = dict(completions(resumed))[undone]
    assert again > resume > before[undone]
    write_log(tmp_path / "run", resumed[:again])
    result = command("replay", tmp_path / "run", "--at", f"step:{undone}")
    assert result.exit_code == 2
    assert f"step {undone} was undone by the resume of seq {resume}" in result.stderr


def test_a_time_is_after_all_events_that_come_no_later(tmp_path: Path, stalled) -> None:
    """Also for the time as it is printed, which is cut to the millisecond."""
    later = [stalled[0], *(record._replace(ts=record.ts + 400_000) for record in stalled[1:])]
    timeline = Timeline(write_log(tmp_path / "run", later))
    assert timeline.moment(parse_point("0:00:18.1")).seq == 982
    assert timeline.moment(parse_point("0:00:18.099")).seq == 969
    utc = "2023-11-14T22:13:38.1Z"
    assert timeline.moment(parse_point(utc)).seq == 982
    assert timeline.moment(parse_point("2:00:11.100")).seq == 988


# Differences


@pytest.mark.parametrize("log", ["stalled", "resumed"])
def test_a_difference_leads_from_the_first_state_to_the_second(tmp_path: Path, request, log: str) -> None:
    """Groups, counters, phases and waits of the first point, changed as the difference says, are the second's."""
    records = request.getfixturevalue(log)
    timeline = Timeline(write_log(tmp_path / "run", records))
    points = [*range(0, len(records), 71), len(records) - 1]
    for a in points[::2]:
        for b in (point for point in points[1::2] if point >= a):
            diff = Diff.between(timeline, Seq(a), Seq(b))
            first, second = folded(records[: a + 1]), folded(records[: b + 1])
            went, came = {group.group for group, _ in diff.went}, {group.group for group in diff.came}
            assert (set(first.view.groups.live) - went) | came == set(second.view.groups.live)
            assert all(how != "?" for _, how in diff.went)
            changed = {**counters(first), **{name: new for name, (_, new) in diff.counters.items()}}
            assert {k: n for k, n in changed.items() if n} == {k: n for k, n in counters(second).items() if n}
            span_s = (records[b].ts - records[a].ts) / 1e9
            if not second.ended:
                assert sum(diff.phase_s.values()) + diff.down_s == pytest.approx(span_s, abs=1e-6)
                assert diff.down_s == pytest.approx(5.0 * (second.resumed - first.resumed), abs=1e-6)
            begun = sum(sign == "+" for sign, _ in diff.waits)
            ended = sum(sign == "-" for sign, _ in diff.waits)
            assert len(first.view.waits.open) - ended + begun == len(second.view.waits.open)


def test_a_difference_says_how_groups_ended(tmp_path: Path, stalled, command) -> None:
    """Trained ones went in their step, and the failed one came and went."""
    write_log(tmp_path / "run", stalled)
    result = command("replay", tmp_path / "run", "--diff", "step:1", "0:00:18.100")
    assert result.exit_code == 0
    assert re.search(r"^prompts quarantined +0  ->  1$", result.output, re.MULTILINE)
    assert "  group 8, for step 2: trained in step 2\n" in result.output
    assert "groups that came and went\n  1 failed: prompt too long\n" in result.output
    assert "  waiting_for_buffer 7.0 s\n  training 3.0 s\n" in result.output
    table = diff_table(Diff.between(Timeline(RunFolder.open(tmp_path / "run")), Seq(597), Seq(982)))
    assert table["counters"]["version"] == [2, 3]
    assert {row["how"] for row in table["went"]} == {"trained in step 2"}


def test_points_of_a_difference_in_the_wrong_order_are_refused(tmp_path: Path, stalled, command) -> None:
    """One line with both seqs."""
    write_log(tmp_path / "run", stalled)
    result = command("replay", tmp_path / "run", "--diff", "600", "step:0")
    assert result.exit_code == 2
    assert re.fullmatch(r"--diff: seq 600 .* comes after step 0 \(seq \d+\); give the earlier .*\n", result.stderr)


# Following


def test_following_in_a_pipe_prints_a_line_per_interesting_event(tmp_path: Path, stalled, command) -> None:
    """From the point on, its own event first; nothing of single calls."""
    write_log(tmp_path / "run", stalled)
    lines = command("replay", tmp_path / "run", "--at", "900", "--follow").output.splitlines()
    expected = [900, *(record.seq for record in stalled[901:] if interesting(record))]
    assert [int(line.split()[0]) for line in lines] == expected
    whole = command("replay", tmp_path / "run", "--follow", "--speed", "1e9").output
    assert whole.splitlines()[0].split()[3] == "run_started"
    assert "llm_call" not in whole
    assert "stall_detected" in whole


class Terminal:
    """The command on a terminal of its own: `press` types a key, `until` reads what is shown."""

    def __init__(self, *arguments: str | Path) -> None:
        self.screen, inside = pty.openpty()
        fcntl.ioctl(inside, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 160, 0, 0))
        self.before = termios.tcgetattr(inside)
        self.process = subprocess.Popen(
            [sys.executable, "-m", "eventrain.adapters.cli", *map(str, arguments)],
            stdin=inside,
            stdout=inside,
            stderr=inside,
            env={**os.environ, "TERM": "xterm-256color"},
        )
        self.inside = inside
        self.shown = ""

    def press(self, keys: str) -> None:
        self.shown = ""
        os.write(self.screen, keys.encode())

    def until(self, pattern: str) -> re.Match[str]:
        deadline = time.monotonic() + 60
        while True:
            found = re.search(pattern, re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", self.shown))
            if found:
                return found
            left = deadline - time.monotonic()
            assert left > 0, f"no {pattern!r} in {self.shown!r}"
            if select.select([self.screen], [], [], left)[0]:
                self.shown += os.read(self.screen, 65536).decode(errors="replace")

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self.screen)
        os.close(self.inside)


def test_on_a_terminal_the_keys_walk_along_the_log(tmp_path: Path, stalled) -> None:
    """Right and space go on, left goes back over the same events, q ends it and puts the terminal back."""
    write_log(tmp_path / "run", stalled)
    stops = [record.seq for record in stalled if interesting(record)]
    at = stops.index(978)
    terminal = Terminal("replay", tmp_path / "run", "--at", "978", "--follow")
    try:
        terminal.until(r"after +978 (?s:.*)q: quit")
        terminal.press("\x1b[C")
        terminal.until(rf"after +{stops[at + 1]} (?s:.*)q: quit")
        terminal.press(" ")
        terminal.until(rf"after +{stops[at + 2]} (?s:.*)q: quit")
        terminal.press("\x1b[D\x1b[D\x1b[D")
        terminal.until(rf"after +{stops[at - 1]} (?s:.*)q: quit")
        terminal.press("q")
        assert terminal.process.wait(60) == 0
        assert termios.tcgetattr(terminal.inside) == terminal.before
    finally:
        terminal.close()


def test_on_a_terminal_it_can_play_by_itself(tmp_path: Path, stalled) -> None:
    """At a factor of the recorded time, to the end, where it stops and says so."""
    write_log(tmp_path / "run", stalled)
    terminal = Terminal("replay", tmp_path / "run", "--at", "973", "--follow", "--speed", "1000000")
    try:
        terminal.until(r"after +988 (?s:.*)this is the end of the log; stopped")
        terminal.press("q")
        assert terminal.process.wait(60) == 0
    finally:
        terminal.close()


# Snapshots


def test_a_snapshot_that_is_not_whole_is_ignored(tmp_path: Path, stalled, command, cache: Path) -> None:
    """Cut, changed, empty, or a pickle: the fold starts over, and what is said is the same."""
    write_log(tmp_path / "run", stalled)
    said = command("replay", tmp_path / "run", "--at", "900").output
    kept = {path: path.read_bytes() for path in files(cache)}
    ways = (
        lambda data: data[:-7],
        lambda data: data[:100] + bytes([data[100] ^ 1]) + data[101:],
        lambda data: b"",
        lambda data: b"cos\nsystem\n(S'false'\ntR.",
    )
    for way in ways:
        for path, data in kept.items():
            path.write_bytes(way(data))
        assert command("replay", tmp_path / "run", "--at", "900").output == said


def test_a_snapshot_of_somebody_else_is_not_read(tmp_path: Path, stalled, cache: Path, monkeypatch) -> None:
    """Neither one that others may write, nor one behind a link, nor any while the folder is another user's."""
    folder = write_log(tmp_path / "run", stalled)
    Timeline(folder).moment(Seq(900))
    assert cache.stat().st_mode & 0o777 == 0o700
    assert all(path.stat().st_mode & 0o777 == 0o600 for path in files(cache))
    first = Timeline(folder).first
    found = snapshots.Snapshots.of(folder.events, first)
    count = len(files(cache))
    assert len(list(found.newest_first(None, None))) == count
    files(cache)[0].chmod(0o620)
    moved = tmp_path / "moved"
    files(cache)[1].rename(moved)
    (files(cache)[0].parent / "000000000000099-1.snapshot").symlink_to(moved)
    assert len(list(found.newest_first(None, None))) == count - 2
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    assert list(snapshots.Snapshots.of(folder.events, first).newest_first(None, None)) == []


def test_a_snapshot_of_another_past_is_noticed(tmp_path: Path, stalled) -> None:
    """A log that begins the same and differs before the snapshot is folded anew."""
    other = [*stalled[:850], *(record._replace(mono=record.mono + 5) for record in stalled[850:])]
    folder = write_log(tmp_path / "run", stalled, segment_bytes=1)
    timeline = Timeline(folder)
    timeline.moment(Seq(960))
    found = list(snapshots.Snapshots.of(folder.events, timeline.first).newest_first(None, None))
    assert len(found) > 10
    for snapshot in found:
        assert snapshot.fits(stalled[snapshot.seq])
        assert not snapshot.fits(other[snapshot.seq]) or snapshot.seq < 850
        assert not snapshot.fits(stalled[snapshot.seq + 1])
    shutil.rmtree(tmp_path / "run")
    moment = Timeline(write_log(tmp_path / "run", other, segment_bytes=1)).moment(Seq(960))
    assert moment.facts == folded(other[:961])


def test_another_versions_snapshots_are_not_read(tmp_path: Path, stalled, cache: Path, monkeypatch) -> None:
    """The code that folds is part of the key."""
    folder = write_log(tmp_path / "run", stalled)
    timeline = Timeline(folder)
    timeline.moment(Seq(900))
    before = len(files(cache))
    monkeypatch.setattr(snapshots, "code_digest", lambda: b"another version")
    assert list(snapshots.Snapshots.of(folder.events, timeline.first).newest_first(None, None)) == []
    Timeline(folder).moment(Seq(900))
    assert len(files(cache)) == 2 * before


def test_the_oldest_snapshots_are_dropped_when_there_are_too_many(
    tmp_path: Path, stalled, cache: Path, monkeypatch
) -> None:
    """Their files together stay below the limit."""
    monkeypatch.setattr(snapshots, "SIZE_MAX", 40_000)
    Timeline(write_log(tmp_path / "run", stalled)).moment(Seq(983))
    sizes = [path.stat().st_size for path in files(cache)]
    assert 0 < sum(sizes) <= 40_000
    assert files(cache)[-1].name.startswith("000000000000983")


def test_without_a_place_for_snapshots_replay_works_the_same(tmp_path: Path, stalled, command, monkeypatch) -> None:
    """A cache folder that cannot be made costs time and nothing else."""
    write_log(tmp_path / "run", stalled)
    said = command("replay", tmp_path / "run", "--at", "900").output
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert command("replay", tmp_path / "run", "--at", "900").output == said


def test_reading_a_snapshot_begins_near_the_point(tmp_path: Path, stalled, monkeypatch) -> None:
    """The records before the nearest snapshot are not decoded again."""
    folder = write_log(tmp_path / "run", stalled)
    Timeline(folder).moment(Seq(983))
    applied = []
    monkeypatch.setattr(View, "apply", lambda self, record: applied.append(record.seq))
    Timeline(folder).moment(Seq(982))
    assert len(applied) <= EVERY
    assert applied[0] > 900


def test_a_state_is_plain_data_and_comes_back_equal(stalled, resumed) -> None:
    """Every class of the fold has a name of its own, and every state survives the way."""
    names = [cls.__name__ for module in state_codec._MODULES for cls in vars(module).values()
             if isinstance(cls, type) and cls.__module__ == module.__name__ and state_codec._parts(cls)]  # fmt: skip
    assert len(names) == len(set(names))
    for records in (stalled, resumed):
        facts = RunFacts()
        for record in records:
            facts.apply(record)
            if record.seq % 29 == 0:
                again = state_codec.decode_state(state_codec.encode_state(facts))
                assert again == facts
                assert again.view.movement.holes.maxlen == facts.view.movement.holes.maxlen
    with pytest.raises(TypeError, match="has no place in a state"):
        state_codec.encode_state(Path("x"))
    with pytest.raises(ValueError, match="no state of this version"):
        state_codec.decode_state(b"\x92\xa9os.system\xa2ls")


# Bad input


def test_a_point_outside_the_log_says_what_it_covers(tmp_path: Path, stalled, command) -> None:
    """A seq, a time since the start and UTC times, after and before: exit code 2 and one line."""
    write_log(tmp_path / "run", stalled)
    for text in ("989", "2:00:11.101", "2030-01-01T00:00:00Z", "2020-01-01T00:00:00Z"):
        result = command("replay", tmp_path / "run", "--at", text)
        assert result.exit_code == 2
        covers = "is outside the log, which covers seq 0 to 988, 0:00:00.000 to 2:00:11.100 since the start"
        assert result.stderr.endswith(f"{text} {covers}\n")
        assert len(result.stderr.splitlines()) == 1


def test_a_step_that_was_never_trained_is_one_line(tmp_path: Path, stalled, command) -> None:
    """With the steps that were."""
    write_log(tmp_path / "run", stalled)
    result = command("replay", tmp_path / "run", "--at", "step:3")
    assert result.exit_code == 2
    assert result.stderr.endswith("run: step 3 was never trained; steps 0 to 2 are trained in this log\n")
    write_log(tmp_path / "short", stalled[:20])
    assert "no step is trained in this log" in command("replay", tmp_path / "short", "--at", "step:0").stderr


def test_what_is_no_run_and_what_has_not_begun_are_bad_input(tmp_path: Path, stalled, command) -> None:
    """As with every command that reads a run."""
    result = command("replay", tmp_path / "nothing")
    assert (result.exit_code, result.stderr) == (2, f"{tmp_path / 'nothing'}: no such folder\n")
    RunFolder.create(tmp_path / "empty")
    result = command("replay", tmp_path / "empty")
    assert (result.exit_code, "the log is empty" in result.stderr) == (2, True)
    shifted = [record._replace(seq=seq, cause=None) for seq, record in enumerate(stalled[5:50])]
    write_log(tmp_path / "headless", shifted)
    result = command("replay", tmp_path / "headless")
    assert (result.exit_code, "does not begin with run_started" in result.stderr) == (2, True)


@pytest.mark.parametrize(
    "arguments",
    [
        ("--diff", "1", "2", "--follow"),
        ("--diff", "1", "2", "--at", "3"),
        ("--follow", "--json"),
        ("--speed", "2"),
    ],
)
def test_options_that_do_not_go_together_are_refused(tmp_path: Path, stalled, command, arguments) -> None:
    """One line that names them."""
    write_log(tmp_path / "run", stalled[:20])
    result = command("replay", tmp_path / "run", *arguments)
    assert result.exit_code == 2
    assert len(result.stderr.splitlines()) == 1


@pytest.mark.parametrize("warm", [False, True])
def test_a_damaged_log_shows_what_can_still_be_read(tmp_path: Path, stalled, command, warm: bool) -> None:
    """Before the damage all is as ever; the end is the last good state with a warning; what lies behind is lost."""
    folder = write_log(tmp_path / "run", stalled)
    whole = command("replay", tmp_path / "run", "--at", "100").output
    if warm:
        command("replay", tmp_path / "run", "--at", "500")
    else:
        shutil.rmtree(tmp_path / "cache")
    segment = folder.events / segment_name(len(list(folder.events.iterdir())) - 2)
    data = bytearray(segment.read_bytes())
    data[len(data) // 2] ^= 0xFF
    segment.write_bytes(data)
    assert command("replay", tmp_path / "run", "--at", "100").output == whole
    end = command("replay", tmp_path / "run")
    assert end.exit_code == 1
    last = int(re.search(r"this is the state at seq (\d+)\n$", end.stderr)[1])
    assert f"the last good event is seq {last};" in end.stderr
    assert 500 < last < 988
    assert re.search(rf"^after +{last} ", end.output, re.MULTILINE)
    for text in ("987", "2:00:00"):
        behind = command("replay", tmp_path / "run", "--at", text)
        assert behind.exit_code == 1
        assert f"{text} cannot be shown: log damaged" in behind.stderr
        assert f"--at {last} and before can" in behind.stderr
        assert len(behind.stderr.splitlines()) == 1
    assert command("replay", tmp_path / "run", "--at", str(last)).exit_code == 0


def test_a_log_of_a_newer_schema_is_shown_up_to_there(tmp_path: Path, stalled, command) -> None:
    """What this version knows is shown, what comes after is said to need a newer one."""
    told = next(record.seq for record in stalled if isinstance(record.event, StallDetected))
    folder = RunFolder.create(tmp_path / "run")
    lines = [encode(record) for record in stalled]
    lines[told] = lines[told].replace(b'"kind":"stall_detected"', b'"kind":"stall_doubted"')
    frames = FrameWriter(3)
    header = marker_line(Header(format=1, run="run", epoch=1, first_seq=0, code="0"))
    (folder.events / segment_name(1)).write_bytes(frames.frame(header) + frames.frame(b"".join(lines)))
    assert command("replay", tmp_path / "run", "--at", str(told - 1)).exit_code == 0
    end = command("replay", tmp_path / "run")
    assert end.exit_code == 1
    assert "this version knows no event 'stall_doubted'" in end.stderr
    assert end.stderr.endswith(f"this is the state at seq {told - 1}\n")


def test_a_run_that_goes_on_can_be_looked_at_again(tmp_path: Path, stalled) -> None:
    """What was written since is there at the second look, whatever snapshots the first one left."""
    folder = RunFolder.create(tmp_path / "run")
    for begin, end, epoch in ((0, 500, 1), (500, 900, 2)):
        writer = LogWriter(folder.events, run="run", epoch=epoch, first_seq=begin, segment_bytes=1 << 20)
        writer.start(lambda _seq: None, lambda _error: None)
        for record in stalled[begin:end]:
            writer.append(record)
        writer.close()
        assert Timeline(folder).moment(parse_point("end")).facts == folded(stalled[:end])
