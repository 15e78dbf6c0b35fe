"""The receiving side of an update; what is fetched ahead of one makes it shorter, and changes nothing else of it."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from eventrain.adapters.weights import file as weights_file
from eventrain.adapters.weights.file import TensorSpec, WeightsFile, WeightsWriter
from eventrain.adapters.weights.update import Updates
from eventrain.core.ports import EngineError, Receipt

SPECS = [TensorSpec("a", "U8", (7,)), TensorSpec("b", "U8", (5,)), TensorSpec("c", "U8", (3,))]
BUCKETS = 2


def written(path: Path, version: int) -> Path:
    """Write a file of `BUCKETS` buckets, filled with `version`."""
    with WeightsWriter(path, SPECS, 8) as writer:
        for bucket in writer.buckets:
            writer.write([bytes([version]) * spec.size_bytes for spec in bucket])
        writer.finish()
    assert len(writer.buckets) == BUCKETS
    return path


def turned(path: Path) -> None:
    """Turn the bits of the last byte over."""
    content = bytearray(path.read_bytes())
    content[-1] ^= 0xFF
    path.write_bytes(content)


def took(updates: Updates, path: Path, version: int, lease: int) -> Receipt:
    """Make a whole update."""
    updates.begin(path, version, lease)
    for bucket in range(updates.buckets):
        updates.transfer(bucket, lease)
    return updates.finish(lease)[0]


def opened() -> int:
    """Return how many descriptors this process has open."""
    return len(list(Path("/proc/self/fd").iterdir()))


@pytest.fixture
def hashed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return the sizes of what is hashed to be compared with a file's checksums."""
    sizes: list[int] = []
    read = WeightsFile.read

    def counted(self: WeightsFile, number: int) -> tuple[memoryview, str]:
        data, checksum = read(self, number)
        sizes.append(len(data))
        return data, checksum

    monkeypatch.setattr(weights_file.WeightsFile, "read", counted)
    return sizes


CALLS = st.one_of(
    st.tuples(st.just("fetch"), st.sampled_from([0, 1])),
    st.tuples(st.just("begin"), st.sampled_from([0, 1]), st.integers(0, 3)),
    st.tuples(st.just("transfer"), st.integers(0, BUCKETS), st.integers(0, 3)),
    st.tuples(st.just("finish"), st.integers(0, 3)),
    st.tuples(st.just("fail")),
    st.tuples(st.just("close")),
)


def answer(updates: Updates, files: list[Path], call: tuple[str | int, ...]) -> object:
    """Return what a call comes to, its error included."""
    try:
        match call:
            case ("begin", int(version), int(lease)):
                return updates.begin(files[version], version, lease)
            case ("transfer", int(bucket), int(lease)):
                arrived = updates.transfer(bucket, lease)
                return arrived and bytes(arrived.data)
            case ("finish", int(lease)):
                return updates.finish(lease)
            case (method,):
                return getattr(updates, str(method))()
    except EngineError as error:
        return str(error)
    raise AssertionError(call)


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(calls=st.lists(CALLS, max_size=30))
def test_an_update_is_the_same_whatever_was_fetched(tmp_path: Path, calls: list[tuple[str | int, ...]]) -> None:
    """Every call answers as it would have without any `fetch`, and nothing stays open."""
    files = [written(tmp_path / f"{version}", version) for version in (0, 1)]
    descriptors = opened()
    fetching, plain = Updates(), Updates()
    for call in calls:
        if call[0] == "fetch":
            fetching.fetch(files[int(call[1])])
        else:
            assert answer(fetching, files, call) == answer(plain, files, call)
    fetching.shut()
    plain.shut()
    assert opened() == descriptors


def test_what_was_fetched_is_not_hashed_again(tmp_path: Path, hashed: list[int]) -> None:
    """The update finds every bucket at hand; made again, it reads and verifies anew."""
    path, updates = written(tmp_path / "1", 1), Updates()
    updates.fetch(path)
    assert sum(hashed) == sum(spec.size_bytes for spec in SPECS)
    hashed.clear()
    receipt = took(updates, path, 1, lease=7)
    assert hashed == []
    assert took(updates, path, 1, lease=7) == receipt
    assert sum(hashed) == sum(spec.size_bytes for spec in SPECS)


def test_other_weights_than_those_that_were_fetched_are_verified(tmp_path: Path, hashed: list[int]) -> None:
    """A later version takes the place of the one that was fetched, with its own bytes and digest."""
    old, new = written(tmp_path / "0", 0), written(tmp_path / "1", 1)
    updates, other = Updates(), Updates()
    updates.fetch(old)
    hashed.clear()
    assert took(updates, new, 1, lease=7) == took(other, new, 1, lease=1)
    assert len(hashed) == 2 * BUCKETS


def test_what_is_fetched_too_late_is_let_go_of(tmp_path: Path) -> None:
    """A thread that reads on after its engine has gone to another run keeps no file open."""
    path, updates = written(tmp_path / "1", 1), Updates()
    descriptors = opened()
    updates.fetch(path)
    updates.shut()
    updates.fetch(path)
    assert opened() == descriptors


def test_damage_is_found_before_the_update_and_again_in_it(tmp_path: Path) -> None:
    """What could not be fetched is not taken for verified; repaired, it is taken."""
    path, updates = written(tmp_path / "1", 1), Updates()
    turned(path)
    with pytest.raises(EngineError, match=f"bucket {BUCKETS - 1} has checksum"):
        updates.fetch(path)
    updates.begin(path, 1, 7)
    with pytest.raises(EngineError, match=f"bucket {BUCKETS - 1} has checksum"):
        updates.transfer(BUCKETS - 1, 7)
    turned(path)
    assert took(updates, path, 1, lease=7).version == 1
    with pytest.raises(EngineError, match="cannot be read"):
        updates.fetch(tmp_path / "none")


def test_a_file_of_the_same_name_that_was_written_since_is_found_in_the_second_attempt(tmp_path: Path) -> None:
    """The receipt of the first is that of the old file, which nobody announced; the second reads the new one."""
    path, updates = written(tmp_path / "1", 1), Updates()
    updates.fetch(path)
    written(path, 2)
    first, second = took(updates, path, 2, lease=7), took(updates, path, 2, lease=7)
    assert first.digest != second.digest
    assert second == took(Updates(), path, 2, lease=1)
