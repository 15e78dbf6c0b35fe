"""The survey of a damaged log: it agrees with the reader up to the damage, and never makes anything up behind it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from eventrain.events import LogDamaged, LogReader, Record, TornTail
from eventrain.events.copying import copy_log, copy_payloads, write_copy
from eventrain.events.payload import PayloadStore
from eventrain.events.segment import segment_name
from eventrain.events.survey import Survey


def read_until_damage(folder: Path) -> tuple[list[Record], bool]:
    found: list[Record] = []
    try:
        found.extend(LogReader(folder).records())
    except LogDamaged:
        return found, True
    return found, False


@pytest.mark.parametrize("segment_bytes", [400, 2**20])
def test_whatever_byte_is_wrong_what_is_read_is_right(
    tmp_path: Path, write_log: Callable, segment_bytes: int
) -> None:
    """Of a log with any one byte changed, every event that is read is one that was written, and in its place."""
    records = write_log(tmp_path, 5, 4, 4, 5, segment_bytes=segment_bytes)
    behind = 0
    for path in sorted(tmp_path.iterdir()):
        whole = path.read_bytes()
        for position in range(0, len(whole), 3):
            changed = bytearray(whole)
            changed[position] ^= 0xFF
            path.write_bytes(changed)
            survey = Survey(tmp_path)
            found = list(survey.records())
            safe, damaged = read_until_damage(tmp_path)
            assert [records[record.seq] for record in found] == found
            assert found[: len(safe)] == safe
            assert bool(survey.damages) == damaged
            assert sum(end - begin + 1 for begin, end in survey.readable) == len(found)
            if damaged:
                assert survey.damages[0].from_seq == len(safe)
                behind += len(found) > len(safe)
            elif len(found) < len(records):
                assert survey.torn == LogReader(tmp_path).torn_tail
        path.write_bytes(whole)
    assert behind > 10  # it does look behind the damage


def test_a_whole_log_has_nothing_to_tell(tmp_path: Path, write_log: Callable) -> None:
    """Every event is read once, and no damage is found; the same of a log that is not there."""
    records = write_log(tmp_path, 5, 4, 4, segment_bytes=400)
    survey = Survey(tmp_path)
    assert list(survey.records()) == records
    assert (survey.damages, survey.torn, survey.readable) == ([], None, [(0, 12)])
    assert list(Survey(tmp_path / "none").records()) == []


def test_a_torn_tail_is_told_apart_from_damage(tmp_path: Path, write_log: Callable) -> None:
    """What `cut_torn_tail` would cut is no damage, wherever the last write stopped."""
    write_log(tmp_path, 5, seal=False)
    (path,) = tmp_path.iterdir()
    size = path.stat().st_size
    path.write_bytes(path.read_bytes() + path.read_bytes()[:50])
    survey = Survey(tmp_path)
    assert len(list(survey.records())) == 5
    assert survey.damages == []
    assert survey.torn == TornTail(path.name, size, 50, 4)


def test_a_copy_ends_exactly_where_it_is_asked_to(tmp_path: Path, write_log: Callable) -> None:
    """Up to any seq, at the ends of frames and segments and between them, the copy is a whole, sealed log."""
    source = tmp_path / "source"
    source.mkdir()
    records = write_log(source, 5, 4, 4, 5, 6, segment_bytes=400)
    assert len(list(source.iterdir())) > 2
    for last in range(len(records)):
        target = tmp_path / f"copy-{last}"
        target.mkdir()
        copy_log(source, target, last)
        assert list(LogReader(target).records()) == records[: last + 1]
        write_log(target, 3, first_seq=last + 1, epoch=2)  # it can be gone on with
        assert len(list(LogReader(target).records())) == last + 4
    assert list(LogReader(source).records()) == records


def test_a_copy_of_payloads_holds_what_is_asked_for_and_is_its_own(tmp_path: Path) -> None:
    """What the copy writes later is not seen in the source, and what lies behind the end is not copied."""
    for name in ("source", "target"):
        (tmp_path / name).mkdir()
    store = PayloadStore(tmp_path / "source")
    refs = [store.put(bytes([number]) * 100) for number in range(3)]
    store.sync()
    copy_payloads(tmp_path / "source", tmp_path / "target", {1: refs[1].offset + refs[1].length, 2: 10})
    copy = PayloadStore(tmp_path / "target")
    assert [copy.get(ref) for ref in refs[:2]] == [bytes([number]) * 100 for number in range(2)]
    new = copy.put(b"x" * 100)
    assert new.offset == refs[2].offset
    assert store.get(refs[2]) == bytes([2]) * 100
    store.close()
    copy.close()


def test_what_was_changed_is_written_as_a_log(tmp_path: Path, make_records: Callable) -> None:
    """Records from anywhere become a log of their own, also up to where their source fails."""
    records = make_records(5000)

    def failing() -> object:
        yield from records
        raise LogDamaged(segment_name(1), 0, 4999, "as it happens")

    with pytest.raises(LogDamaged, match="as it happens"):
        write_copy(tmp_path, "test", failing(), 2**20)  # type: ignore[arg-type]
    assert list(LogReader(tmp_path).records()) == records
