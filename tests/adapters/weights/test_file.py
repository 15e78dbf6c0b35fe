"""The file in which weights travel: any safetensors reader can load it, and nothing in it can change unnoticed."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.numpy import load_file, save_file

from eventrain.adapters.weights.file import (
    TYPE_BYTES,
    TensorSpec,
    WeightsDamaged,
    WeightsFile,
    WeightsWriter,
    cut,
    digest_of,
)

NUMPY = {"F64": "<f8", "F32": "<f4", "I64": "<i8", "I32": "<i4", "F16": "<f2", "U8": "u1", "I8": "i1"}

specs = st.lists(
    st.builds(
        TensorSpec,
        st.text("abc.", min_size=1, max_size=6),
        st.sampled_from(sorted(NUMPY)),
        st.lists(st.integers(0, 5), max_size=3).map(tuple),
    ),
    max_size=12,
    unique_by=lambda spec: spec.name,
)


def written(path: Path, wanted: list[TensorSpec], bucket_bytes: int, seed: int = 0) -> dict[str, bytes]:
    """Write tensors of random bytes; return those bytes by name."""
    random = np.random.default_rng(seed)
    content = {spec.name: random.bytes(spec.size_bytes) for spec in wanted}
    with WeightsWriter(path, wanted, bucket_bytes) as writer:
        for bucket in writer.buckets:
            writer.write([content[spec.name] for spec in bucket])
        writer.finish()
    return content


def read(path: Path) -> tuple[dict[str, bytes], str]:
    """Read all buckets, verified; return the bytes by name, and the digest of what was read."""
    content: dict[str, bytes] = {}
    with WeightsFile(path) as file:
        checksums = []
        for bucket in file.buckets:
            content |= {spec.name: bytes(part) for spec, part in bucket.split(file.verified(bucket.number))}
            checksums.append(file.read(bucket.number)[1])
        return content, file.digest_of(checksums)


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(specs, st.integers(1, 400))
def test_what_is_written_is_read_by_us_and_by_safetensors(
    tmp_path: Path, wanted: list[TensorSpec], bucket_bytes: int
) -> None:
    """Every tensor comes back with its bytes, type and shape, however the buckets are cut."""
    path = tmp_path / "weights.safetensors"
    content = written(path, wanted, bucket_bytes)
    assert read(path)[0] == content
    loaded = load_file(path)
    assert set(loaded) == set(content)
    for spec in wanted:
        assert loaded[spec.name].shape == spec.shape
        assert loaded[spec.name].dtype == np.dtype(NUMPY[spec.dtype])
        assert loaded[spec.name].tobytes() == content[spec.name]


@given(specs, st.integers(1, 400))
def test_buckets_have_every_tensor_once_and_are_no_larger_than_they_may(
    wanted: list[TensorSpec], bucket_bytes: int
) -> None:
    """Only a tensor that is larger than a bucket alone exceeds it, and every tensor lies where its type may lie."""
    buckets = cut(wanted, bucket_bytes)
    assert sorted(spec for bucket in buckets for spec in bucket) == sorted(wanted)
    for bucket in buckets:
        assert len(bucket) == 1 or sum(spec.size_bytes for spec in bucket) <= bucket_bytes
    start = 0
    for spec in (spec for bucket in buckets for spec in bucket):
        assert start % TYPE_BYTES[spec.dtype] == 0
        start += spec.size_bytes
    for now, then in pairwise(buckets):
        assert sum(spec.size_bytes for spec in now) + then[0].size_bytes > bucket_bytes


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_no_byte_changes_unnoticed(tmp_path: Path, data: st.DataObject) -> None:
    """One byte of the data that is another is found in its bucket, and in the digest."""
    path = tmp_path / "weights.safetensors"
    wanted = [TensorSpec("a", "F32", (5,)), TensorSpec("b", "F16", (3, 2)), TensorSpec("c", "U8", (7,))]
    written(path, wanted, 16)
    good, digest = path.read_bytes(), read(path)[1]
    with WeightsFile(path) as file:
        start = file.buckets[0].start
    place = data.draw(st.integers(start, len(good) - 1))
    path.write_bytes(good[:place] + bytes([good[place] ^ data.draw(st.integers(1, 255))]) + good[place + 1 :])
    with pytest.raises(WeightsDamaged, match=r"bucket \d has checksum \w+, it was written with \w+"):
        read(path)
    with WeightsFile(path) as file:
        assert file.digest_of([file.read(bucket.number)[1] for bucket in file.buckets]) != digest


def test_the_digest_knows_names_types_and_shapes() -> None:
    """Weights that differ in one of them, and in no byte, have another digest."""
    usual = [TensorSpec("a", "F32", (2, 3))]
    others = (TensorSpec("b", "F32", (2, 3)), TensorSpec("a", "I32", (2, 3)), TensorSpec("a", "F32", (3, 2)))
    digests = {digest_of([spec], ["0"]) for spec in (*usual, *others)}
    assert len(digests) == 4


def test_a_file_that_is_cut_short_anywhere_is_refused(tmp_path: Path) -> None:
    """Whether it ends in its header or in a bucket: one line says so, with its name."""
    path = tmp_path / "weights.safetensors"
    written(path, [TensorSpec("a", "F32", (4,)), TensorSpec("b", "F32", (4,))], 16)
    good = path.read_bytes()
    for length in range(len(good)):
        path.write_bytes(good[:length])
        with pytest.raises(WeightsDamaged, match=r"weights\.safetensors"):
            read(path)


def test_a_file_is_not_there_before_it_is_whole(tmp_path: Path) -> None:
    """A block that fails leaves nothing behind, and what was there before stays."""
    path = tmp_path / "weights.safetensors"
    content = written(path, [TensorSpec("a", "U8", (3,))], 16)
    with (
        pytest.raises(ValueError, match="a has 3 bytes, not 2"),
        WeightsWriter(path, [TensorSpec("a", "U8", (3,))], 9) as writer,
    ):
        writer.write([b"12"])
    assert list(tmp_path.iterdir()) == [path]
    assert read(path)[0] == content
    with (
        pytest.raises(ValueError, match="1 buckets are to be written, 0 are"),
        WeightsWriter(path, [TensorSpec("a", "U8", (3,))], 9) as writer,
    ):
        writer.finish()
    assert list(tmp_path.iterdir()) == [path]


def test_another_safetensors_file_is_refused(tmp_path: Path) -> None:
    """A file without buckets is no weights file of a learner, and the message says which file."""
    path = tmp_path / "other.safetensors"
    save_file({"a": np.zeros(3, np.float32)}, path)
    with pytest.raises(WeightsDamaged, match=r"other\.safetensors is no weights file of a learner"):
        WeightsFile(path)
    with pytest.raises(WeightsDamaged, match=r"none\.safetensors cannot be read"):
        WeightsFile(tmp_path / "none.safetensors")


def test_what_was_read_outlives_the_closing_of_the_file(tmp_path: Path) -> None:
    """An engine may hold a bucket while the file is closed and removed."""
    path = tmp_path / "weights.safetensors"
    content = written(path, [TensorSpec("a", "U8", (300,))], 512)
    with WeightsFile(path) as file:
        data = file.verified(0)
    path.unlink()
    assert bytes(data) == content["a"]
