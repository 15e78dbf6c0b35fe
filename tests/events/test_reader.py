"""Reading logs: whole, torn, damaged, alive."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest

from eventrain.events import LogDamaged, LogReader, LogWriter, Record, TornTail, cut_torn_tail
from eventrain.events.segment import FrameWriter, Header, marker_line, segment_name
from eventrain.events.types import RunFinished


def _only_segment(folder: Path) -> Path:
    (path,) = folder.iterdir()
    return path


def _read(folder: Path) -> tuple[list[Record], TornTail | None]:
    reader = LogReader(folder)
    return list(reader.records()), reader.torn_tail


def test_a_log_torn_at_any_byte_of_its_last_frame_reads_up_to_the_frame_before(
    tmp_path: Path, write_log: Callable
) -> None:
    """Wherever the last write stopped, reading ends at the last whole frame, and says what is left over."""
    records = write_log(tmp_path, 4, 3, seal=False)
    path = _only_segment(tmp_path)
    whole = path.read_bytes()
    shorter = tmp_path / "shorter"
    shorter.mkdir()
    write_log(shorter, 4, seal=False)
    frame_start = _only_segment(shorter).stat().st_size
    shutil.rmtree(shorter)
    assert frame_start < len(whole)

    for size in range(frame_start, len(whole)):
        path.write_bytes(whole[:size])
        found, torn = _read(tmp_path)
        assert found == records[:4]
        if size == frame_start:
            assert torn is None
        else:
            assert torn == TornTail(path.name, frame_start, size - frame_start, 3)
            kept = f"{path.name}.torn-{frame_start}"
            assert cut_torn_tail(tmp_path) == torn._replace(kept=kept)
            assert path.read_bytes() == whole[:frame_start]
            assert (tmp_path / kept).read_bytes() == whole[frame_start:size]
            (tmp_path / kept).unlink()
            assert cut_torn_tail(tmp_path) is None
    path.write_bytes(whole)
    assert _read(tmp_path) == (records, None)


def test_a_segment_torn_within_its_header_is_removed(tmp_path: Path, write_log: Callable) -> None:
    """A crash while a segment was begun leaves the log before it whole, and its number free."""
    records = write_log(tmp_path, 4)
    header = FrameWriter(1).frame(marker_line(Header(1, "test", 2, 4, "0")))
    path = tmp_path / segment_name(2)
    for size in range(len(header)):
        path.write_bytes(header[:size])
        found, torn = _read(tmp_path)
        assert found == records
        assert torn == TornTail(path.name, 0, size, 3)
        cut = cut_torn_tail(tmp_path)
        assert cut is not None
        assert cut._replace(kept="") == torn
        assert (tmp_path / cut.kept).read_bytes() == header[:size]
        assert not path.exists()


def test_zeros_at_the_end_are_a_torn_tail(tmp_path: Path, write_log: Callable) -> None:
    """After a power loss a file system may show a length whose bytes never came: that is no damage."""
    records = write_log(tmp_path, 4, seal=False)
    path = _only_segment(tmp_path)
    size = path.stat().st_size
    path.write_bytes(path.read_bytes() + bytes(100))
    assert _read(tmp_path) == (records, TornTail(path.name, size, 100, 3))


def _read_what_is_good(folder: Path) -> tuple[list[Record], LogDamaged | None]:
    found: list[Record] = []
    try:
        found.extend(LogReader(folder).records())
    except LogDamaged as error:
        return found, error
    return found, None


@pytest.mark.parametrize("seal", [True, False])
def test_no_flipped_bit_yields_wrong_data(tmp_path: Path, write_log: Callable, seal: bool) -> None:
    """Whichever byte is wrong: LogDamaged, or a torn tail where no good frame follows; never other records."""
    records = write_log(tmp_path, 4, 3, 3, seal=seal)
    path = _only_segment(tmp_path)
    whole = bytearray(path.read_bytes())
    damaged = 0
    for position in range(len(whole)):
        flip = (0x01, 0x80, 0xFF, 0x10)[position % 4]
        whole[position] ^= flip
        path.write_bytes(whole)
        whole[position] ^= flip
        found, error = _read_what_is_good(tmp_path)
        if error is None:
            # A few bits of zstd's own encoding mean nothing: then all of it is there, and right.
            assert LogReader(tmp_path).torn_tail is not None or found == records
        else:
            damaged += 1
            assert error.last_seq == len(found) - 1
            assert re.fullmatch(rf"log damaged in segment {path.name} at byte \d+: .+", str(error))
        assert found == records[: len(found)]
        assert len(found) in (0, 4, 7, 10)
    assert damaged > len(whole) // 2  # only flips in the last frame may pass for a torn tail


def test_damage_before_the_end_is_never_cut(tmp_path: Path, write_log: Callable) -> None:
    """Cutting refuses what is not the very end: durable events behind it would be lost."""
    write_log(tmp_path, 4, 3, seal=False)
    path = _only_segment(tmp_path)
    content = bytearray(path.read_bytes())
    content[len(content) // 2 - 60] ^= 0xFF
    path.write_bytes(content)
    with pytest.raises(LogDamaged):
        cut_torn_tail(tmp_path)
    assert path.read_bytes() == content


def test_a_torn_tail_that_another_segment_follows_is_damage(tmp_path: Path, write_log: Callable) -> None:
    """Only the last segment may end torn; a later one proves that this was not cut before going on."""
    write_log(tmp_path, 4, 3, seal=False)
    path = _only_segment(tmp_path)
    path.write_bytes(path.read_bytes()[:-5])
    write_log(tmp_path, 2, first_seq=4, epoch=2)
    message = rf"log damaged in segment {path.name} at byte \d+: an incomplete frame; .* seq 3"
    with pytest.raises(LogDamaged, match=message):
        list(LogReader(tmp_path).records())


def test_a_gap_between_segments_is_damage(tmp_path: Path, write_log: Callable) -> None:
    """A segment must go on where the one before ended."""
    write_log(tmp_path, 4)
    write_log(tmp_path, 2, first_seq=5, epoch=2)
    with pytest.raises(LogDamaged, match="it begins with seq 5; the last good event is seq 3"):
        list(LogReader(tmp_path).records())


def test_a_missing_segment_is_named(tmp_path: Path, write_log: Callable) -> None:
    """Numbers of segments are dense, so a lost file is noticed."""
    for first_seq in (0, 4, 8):
        write_log(tmp_path, 4, first_seq=first_seq, epoch=first_seq + 1)
    (tmp_path / segment_name(2)).unlink()
    with pytest.raises(LogDamaged, match=r"000002\.jsonl\.zst is missing"):
        list(LogReader(tmp_path).records())


def test_an_epoch_that_goes_back_is_damage(tmp_path: Path, write_log: Callable) -> None:
    """A segment of an older writer behind a newer one means that two wrote at once."""
    write_log(tmp_path, 4, epoch=1)
    write_log(tmp_path, 2, first_seq=4, epoch=2)
    first = tmp_path / segment_name(1)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    write_log(elsewhere, 4, epoch=3)
    first.write_bytes(_only_segment(elsewhere).read_bytes())
    with pytest.raises(LogDamaged, match="it is of writer 2, after one of writer 3"):
        list(LogReader(tmp_path).records())


def test_segments_of_different_runs_do_not_mix(tmp_path: Path, write_log: Callable) -> None:
    """A segment copied from another run is foreign."""
    write_log(tmp_path, 4)
    write_log(tmp_path, 2, first_seq=4, epoch=2, run="other")
    with pytest.raises(LogDamaged, match="it is of run 'other', not 'test'"):
        list(LogReader(tmp_path).records())


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"plain text, and rather long", "no zstd frame"),
        (FrameWriter(1).frame(b'{"a":1}\n'), "no header of an eventrain log"),
        (FrameWriter(1).frame(marker_line(Header(2, "test", 1, 0, "9"))), "the log has format 2"),
    ],
)
def test_a_foreign_file_is_damage(tmp_path: Path, content: bytes, reason: str) -> None:
    """A file under a segment's name that no eventrain wrote is refused, not taken for an empty log."""
    (tmp_path / segment_name(1)).write_bytes(content)
    with pytest.raises(LogDamaged, match=reason):
        list(LogReader(tmp_path).records())
    with pytest.raises(LogDamaged, match=reason):
        cut_torn_tail(tmp_path)


def test_lines_out_of_order_inside_a_frame_are_damage(tmp_path: Path, write_log: Callable) -> None:
    """A frame with a good checksum and a wrong order was not written by one writer."""
    write_log(tmp_path, 2, seal=False)
    path = _only_segment(tmp_path)
    line = b'{"seq":%d,"ts":1,"mono":1,"actor":"a","v":1,"kind":"reward_scored","trajectory":"0/0","reward":1.0}\n'
    frame = FrameWriter(1).frame(b"".join(line % seq for seq in (2, 4, 4, 5)))
    path.write_bytes(path.read_bytes() + frame)
    reader = LogReader(tmp_path)
    for read in (reader.records, reader.raw):
        with pytest.raises(LogDamaged, match="seq 4 follows seq 2; the last good event is seq 2"):
            list(read())


def test_reading_may_begin_anywhere(tmp_path: Path, write_log: Callable) -> None:
    """From any seq on, records and raw lines are the rest of the log; segments before it are not opened."""
    records = write_log(tmp_path, *[5] * 12, segment_bytes=500)
    reader = LogReader(tmp_path)
    for from_seq in (0, 1, 5, 31, 59, 60, 99):
        assert list(reader.records(from_seq)) == records[from_seq:]
        assert [line["seq"] for line in reader.raw(from_seq)] == list(range(from_seq, 60))
    (tmp_path / segment_name(1)).write_bytes(b"nobody reads this")
    assert list(reader.records(59)) == records[59:]


def test_a_log_that_does_not_exist_yet_is_empty(tmp_path: Path) -> None:
    """Before the first commit there is nothing to read and nothing wrong."""
    assert _read(tmp_path) == ([], None)
    assert _read(tmp_path / "none") == ([], None)


def test_a_resumed_log_reads_as_one(tmp_path: Path, write_log: Callable) -> None:
    """Killed, cut, and gone on with by a new writer: the records of both, in order."""
    before = write_log(tmp_path, 4, 3, seal=False)
    path = _only_segment(tmp_path)
    path.write_bytes(path.read_bytes()[:-1])
    torn = cut_torn_tail(tmp_path)
    assert torn is not None
    after = write_log(tmp_path, 6, first_seq=torn.after_seq + 1, epoch=2)
    assert list(LogReader(tmp_path).records()) == before[:4] + after


def test_a_live_log_is_followed_from_another_process(tmp_path: Path, make_records: Callable) -> None:
    """A follower in another process gets every event, over segment ends, and stops when the run is finished."""
    script = """
    import sys
    from pathlib import Path
    from eventrain.events import LogReader
    print("up", flush=True)
    for record in LogReader(Path(sys.argv[1])).follow(poll_s=0.005):
        print(record.seq, record.event.kind, flush=True)
    """
    writer = LogWriter(tmp_path, run="test", epoch=1, first_seq=0, segment_bytes=400)
    with subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(script), str(tmp_path)], stdout=subprocess.PIPE, text=True
    ) as follower:
        assert follower.stdout is not None
        assert follower.stdout.readline() == "up\n"
        writer.start(lambda seq: None, lambda error: None)
        for record in make_records(60):
            writer.append(record)
            if record.seq % 4 == 0:  # what was written can be seen before the run goes on
                while not (line := follower.stdout.readline()).startswith(f"{record.seq} "):
                    assert line, "the follower ended early"
        finished = RunFinished(outcome="completed", steps=1, version=1, seconds=1.0)
        writer.append(Record(60, 1, 1, "run", None, "", finished))
        rest = follower.stdout.read().splitlines()
        assert follower.wait(30) == 0
    writer.close()
    assert rest[-1] == "60 run_finished"
    assert len(list(tmp_path.iterdir())) > 2


def test_a_follower_waits_for_the_rest_of_a_half_written_frame(
    tmp_path: Path, write_log: Callable, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What looks torn in a live log is only not there yet."""
    records = write_log(tmp_path, 4, 3, seal=False)
    path = _only_segment(tmp_path)
    whole = path.read_bytes()
    path.write_bytes(whole[:-3])

    def arrive(seconds: float) -> None:
        path.write_bytes(whole)

    monkeypatch.setattr("eventrain.events.reader.time.sleep", arrive)
    follow = LogReader(tmp_path).follow()
    assert [next(follow) for _ in records] == records
