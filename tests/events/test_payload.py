"""The payload store: what is put is got, or refused by name."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eventrain.events import LogWriteError, PayloadDamaged, PayloadMissing, PayloadStore
from eventrain.events import payload as payload_module


@settings(max_examples=50, deadline=None)
@given(st.lists(st.binary(max_size=300), max_size=20), st.integers(1, 20))
def test_every_payload_comes_back(payloads: list[bytes], reopen_at: int) -> None:
    """Any bytes, in any number, over reopened stores and from a read-only one, come back equal."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        store = PayloadStore(folder)
        refs = []
        for number, data in enumerate(payloads):
            if number == reopen_at:
                store.close()
                store = PayloadStore(folder)
            refs.append(store.put(data))
        assert [store.get(ref) for ref in refs] == payloads
        reader = PayloadStore(folder, read_only=True)
        assert [reader.get(ref) for ref in refs] == payloads
        reader.close()
        store.close()


def test_equal_payloads_are_stored_once(tmp_path: Path) -> None:
    """The address is the content: the second put writes nothing and gives the same reference."""
    store = PayloadStore(tmp_path)
    first = store.put(b"tokens" * 100)
    assert store.put(b"tokens" * 100) == first
    store.close()
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) == 600


def test_packs_end_at_their_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A full pack is followed by the next, made durable too, and all remain readable through few open files."""
    monkeypatch.setattr(payload_module, "PACK_BYTES_MAX", 100)
    monkeypatch.setattr(payload_module, "OPEN_PACKS_MAX", 2)
    store = PayloadStore(tmp_path)
    payloads = [bytes([number]) * 60 for number in range(10)]
    refs = [store.put(data) for data in payloads]
    assert len(store._full) == 4
    store.sync()
    assert not store._full
    assert {ref.pack for ref in refs} == {1, 2, 3, 4, 5}
    assert [store.get(ref) for ref in refs] == payloads
    assert len(store._readers) == 2
    store.close()


def test_a_wrong_byte_is_noticed(tmp_path: Path) -> None:
    """Bytes that do not match the digest are never handed out."""
    store = PayloadStore(tmp_path)
    ref = store.put(b"tokens")
    (path,) = tmp_path.iterdir()
    path.write_bytes(b"tokenz")
    with pytest.raises(PayloadDamaged, match="does not match its digest"):
        store.get(ref)
    store.close()


def test_missing_payloads_are_named(tmp_path: Path) -> None:
    """A lost pack, a pack cut short, and an impossible reference each end in one clear error."""
    store = PayloadStore(tmp_path)
    ref = store.put(b"tokens")
    store.close()
    reader = PayloadStore(tmp_path, read_only=True)
    with pytest.raises(PayloadMissing, match="there is no such pack"):
        reader.get(ref.model_copy(update={"pack": 9}))
    with pytest.raises(PayloadDamaged, match="is no possible place"):
        reader.get(ref.model_copy(update={"length": 2**60}))
    os.truncate(next(tmp_path.iterdir()), 3)
    with pytest.raises(PayloadMissing, match="lies beyond the end of its pack"):
        reader.get(ref)
    with pytest.raises(RuntimeError, match="opened to read only"):
        reader.put(b"more")
    reader.close()


def test_what_a_failed_write_left_is_written_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A full disk is a LogWriteError; the next payload that fits goes where the failed one began."""
    store = PayloadStore(tmp_path)
    store.put(b"first")
    write = os.pwrite

    def half(descriptor: int, data: bytes, offset: int) -> int:
        if len(data) > 3:
            return write(descriptor, data[:3], offset)
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "pwrite", half)
    with pytest.raises(LogWriteError, match="could not be written: No space left on device"):
        store.put(b"second")
    monkeypatch.undo()
    ref = store.put(b"third")
    assert ref.offset == 5
    assert store.get(ref) == b"third"
    store.close()
