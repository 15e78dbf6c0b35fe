"""One learner on one, two and three ranks: the same gradient, weights and checkpoints, whoever goes on with them."""

from __future__ import annotations

import asyncio
import json
import resource
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from eventrain.adapters.torch.weights import WeightsUnusable
from eventrain.adapters.weights.file import WeightsFile
from eventrain.core.ports import CheckpointError, LearnerInfo, TrainResult, WrittenFile, WrittenWeights

from .several_ranks import batch_of, close, contents, equal, learner_of, write_model

pytestmark = pytest.mark.slow

SLICES_BYTES_MAX = 16_000
"""Less than a rank of two has, and more than it logs."""


@dataclass
class Trained:
    """What a learner of some number of ranks left behind after three steps, and its fourth step."""

    folder: Path
    info: LearnerInfo
    results: list[TrainResult]
    published: WrittenWeights
    checkpoint: WrittenFile
    weights: dict[str, torch.Tensor]
    """After the fourth step."""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the model folder."""
    return write_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def trained(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[int], Trained]:
    """Return what gives the results of one run of so many ranks, made once."""
    made: dict[int, Trained] = {}

    async def run(ranks: int, folder: Path) -> Trained:
        async with learner_of(ranks, model, folder) as learner:
            info = await learner.start(None)
            results = [await learner.train(batch_of(0))]
            await learner.checkpoint(str(folder / "one"))
            results += [await learner.train(batch_of(step)) for step in (1, 2)]
            published = await learner.publish(str(folder / "weights" / "3.safetensors"))
            checkpoint = await learner.checkpoint(str(folder / "three"))
            results.append(await learner.train(batch_of(3)))
            await learner.publish(str(folder / "4.safetensors"))
        return Trained(folder, info, results, published, checkpoint, load_file(folder / "4.safetensors"))

    def get(ranks: int) -> Trained:
        if ranks not in made:
            made[ranks] = asyncio.run(run(ranks, tmp_path_factory.mktemp(f"ranks-{ranks}")))
        return made[ranks]

    return get


@pytest.mark.parametrize("ranks", [2, 3])
def test_ranks_have_the_gradient_and_the_steps_of_one(
    trained: Callable[[int], Trained], model: Path, ranks: int
) -> None:
    """Gradient, weights, loss and metrics are one rank's, also where a rank has no row and a parameter no slice."""
    one, several = trained(1), trained(ranks)
    assert (several.info.ranks, several.info.parameters) == (ranks, one.info.parameters)
    # After one step the first moment is a tenth of the clipped gradient.
    (_, gradient, _), (_, other, _) = (contents(model, of.folder / "one") for of in (one, several))
    assert max(tensor.abs().max() for tensor in gradient.values()) > 1e-3
    assert close(gradient, other)
    assert several.results[0].metrics["grad_norm"] > 0.5, "the gradient is clipped"
    for mine, theirs in zip(one.results, several.results, strict=True):
        assert theirs.loss == pytest.approx(mine.loss, rel=1e-3, abs=1e-5)
        assert theirs.metrics == pytest.approx(mine.metrics, rel=1e-3, abs=1e-5)
    assert close(one.weights, several.weights, rtol=1e-2, atol=1e-4)


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_weights_are_published_whole_and_in_buckets(
    trained: Callable[[int], Trained], model: Path, ranks: int
) -> None:
    """The file has what the answer says, each bucket as it was written, a tied tensor once, and nothing beside it."""
    of = trained(ranks)
    path = Path(of.published.path)
    assert [file.name for file in path.parent.iterdir()] == ["3.safetensors"]
    with WeightsFile(path) as file:
        checksums = [
            file.verified(number) and file.buckets[number].checksum for number in range(len(file.buckets))
        ]
        said = of.published
        assert (said.tensors, said.buckets) == (len(file.specs), len(file.buckets))
        assert said.buckets > 3
        assert said.digest == file.digest_of([str(checksum) for checksum in checksums])
        assert said.size_bytes == path.stat().st_size
    weights, _, version = contents(model, Path(of.checkpoint.path))
    assert version == 3
    assert "lm_head.weight" not in weights
    assert equal(load_file(path), weights)


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_a_checkpoint_is_gone_on_with_by_any_number_of_ranks(
    trained: Callable[[int], Trained], model: Path, tmp_path: Path, ranks: int
) -> None:
    """Weights and moments are the same, bit by bit, on any other number of ranks, and so is the next step."""
    origins = {origin: trained(origin) for origin in (1, 2, 3) if origin != ranks}

    async def use() -> None:
        async with learner_of(ranks, model, tmp_path) as learner:
            for origin, of in origins.items():
                assert (await learner.start(of.checkpoint.path)).version == 3
                again = await learner.checkpoint(str(tmp_path / f"from-{origin}"))
                first, second = contents(model, Path(of.checkpoint.path)), contents(model, Path(again.path))
                assert equal(first[0], second[0])
                assert equal(first[1], second[1])
                result = await learner.train(batch_of(3))
                assert result.metrics == pytest.approx(of.results[3].metrics, rel=1e-3, abs=1e-5)
                await learner.publish(str(tmp_path / "next.safetensors"))
                assert close(load_file(tmp_path / "next.safetensors"), of.weights, rtol=1e-3, atol=1e-5)

    asyncio.run(use())


def test_a_checkpoint_of_several_ranks_is_an_ordinary_model_folder(trained: Callable[[int], Trained]) -> None:
    """A Hugging Face library loads it, every rank has a file of moments in it, and nothing in it is a pickle."""
    path = Path(trained(3).checkpoint.path)
    loaded = AutoModelForCausalLM.from_pretrained(path)
    assert loaded.config.tie_word_embeddings
    published = load_file(trained(3).published.path)
    assert all(torch.equal(tensor, published[name]) for name, tensor in loaded.named_parameters())
    files = [file for file in path.rglob("*") if file.is_file()]
    assert {file.suffix for file in files} == {".safetensors", ".json"}
    assert len(list((path / "optimizer").iterdir())) == 3
    assert trained(3).checkpoint.size_bytes == sum(file.stat().st_size for file in files)
    assert json.loads((path / "learner.json").read_text()) == {
        "format": 2,
        "version": 3,
        "optimizer_steps": 3,
    }
    assert sorted(folder.name for folder in path.parent.iterdir() if folder.is_dir()) == [
        "one",
        "three",
        "weights",
    ]


def test_a_sharded_checkpoint_that_lost_a_file_is_refused(
    trained: Callable[[int], Trained], model: Path, tmp_path: Path
) -> None:
    """Slices that are missing are an error in a line, and not moments of zero."""
    source = Path(trained(2).checkpoint.path)
    for file in source.rglob("*"):
        if file.is_file() and "shard-00002" not in file.name:
            target = tmp_path / file.relative_to(source)
            target.parent.mkdir(exist_ok=True)
            target.write_bytes(file.read_bytes())
    with pytest.raises(WeightsUnusable, match="does not hold what this model needs"):
        contents(model, tmp_path)


def test_what_cannot_be_written_is_an_error_on_all_ranks(model: Path, tmp_path: Path) -> None:
    """A checkpoint without a place is a CheckpointError that all ranks survive, and leaves nothing behind."""

    async def use() -> None:
        async with learner_of(2, model, tmp_path / "logs") as learner:
            await learner.start(None)
            await learner.train(batch_of(0))
            (tmp_path / "file").touch()
            with pytest.raises(CheckpointError, match=r"file/step could not be written: .*Not a directory"):
                await learner.checkpoint(str(tmp_path / "file" / "step"))
            (tmp_path / "step.partial").mkdir()  # as one that was killed leaves it
            assert (await learner.checkpoint(str(tmp_path / "step"))).size_bytes > 0
            assert (await learner.train(batch_of(1))).metrics["grad_norm"] > 0

    asyncio.run(use())
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "logs", "step"]


@pytest.mark.skipif(sys.platform != "linux", reason="the limit of another process is set by prlimit")
def test_a_rank_that_cannot_write_its_slices_takes_the_checkpoint_back(model: Path, tmp_path: Path) -> None:
    """The others, which could, leave nothing behind either; all go on, and the next checkpoint is whole."""

    async def use() -> None:
        async with learner_of(2, model, tmp_path / "logs") as learner:
            await learner.start(None)
            await learner.train(batch_of(0))
            pid = learner.pids[1]
            assert pid is not None
            before = resource.prlimit(pid, resource.RLIMIT_FSIZE, (SLICES_BYTES_MAX, resource.RLIM_INFINITY))
            with pytest.raises(CheckpointError, match=r"step could not be written: rank 1: .*File too large"):
                await learner.checkpoint(str(tmp_path / "step"))
            left = await asyncio.to_thread(lambda: [path.name for path in tmp_path.iterdir()])
            assert left == ["logs"]
            resource.prlimit(pid, resource.RLIMIT_FSIZE, before)
            assert (await learner.train(batch_of(1))).metrics["grad_norm"] > 0
            await learner.checkpoint(str(tmp_path / "step"))

    asyncio.run(use())
    assert contents(model, tmp_path / "step")[2] == 2
