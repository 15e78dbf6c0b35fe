"""What happens inside the learner's process, called directly: one optimizer step and what it is made of."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, LlamaForCausalLM

from eventrain.adapters.torch.batches import BatchUnusable, decode_row, micro_batches
from eventrain.adapters.torch.learner_process import LearnerProcess, NotFinite, make
from eventrain.adapters.torch.optimizer import NamedAdamW, learning_rate
from eventrain.adapters.torch.weights import WeightsUnusable
from eventrain.core.config import AlgorithmSection, LearnerSection
from eventrain.core.ports import CheckpointError

from .training_rows import batch, changed, row

METRICS = {
    "grad_norm",
    "lr",
    "entropy",
    "kl",
    "clip_share",
    "importance_mean",
    "importance_max",
    "truncated_share",
    "stale_token_share",
    "tokens",
}


def learner(
    model: Path, checkpoint: Path | None = None, *, init: str = "pretrained", seed: int = 0, **section: Any
) -> LearnerProcess:
    """Return a started learner."""
    algorithm = AlgorithmSection(entropy_weight=section.pop("entropy_weight", 0.0))
    made = make(
        {
            "model_path": str(model),
            "init": init,
            "section": LearnerSection(**{"lr": 1e-2, "device": "cpu", **section}).model_dump(),
            "algorithm": algorithm.model_dump(),
            "seed": seed,
            "steps": 8,
            "temperature": 0.8,
        }
    )
    made.start(None if checkpoint is None else str(checkpoint))
    return made


def weights(trained: LearnerProcess, folder: Path) -> dict[str, torch.Tensor]:
    """Return what the engines would get."""
    path = folder / "weights.safetensors"
    trained.publish(str(path))
    return load_file(path)


def equal(left: dict[str, torch.Tensor], right: dict[str, torch.Tensor]) -> bool:
    """Return whether all tensors are equal, bit by bit."""
    return left.keys() == right.keys() and all(torch.equal(left[name], right[name]) for name in left)


def gradient(trained: LearnerProcess, rows: list[dict[str, Any]], micro_batch_tokens: int) -> torch.Tensor:
    """Return the gradient of a whole batch that is cut into micro-batches, as one vector."""
    decoded = [decode_row(one, 64) for one in rows]
    parts = micro_batches(decoded, micro_batch_tokens, torch.device("cpu"))
    trained._optimizer.clear()
    trained._accumulate(0, parts, sum(int(one.sampled.sum()) for one in decoded))
    return torch.cat([p.grad.flatten() for p in trained._model.parameters() if p.grad is not None])


@pytest.mark.parametrize("micro_batch_tokens", [1, 40, 100])
def test_the_gradient_does_not_depend_on_the_micro_batches(tiny_model: Path, micro_batch_tokens: int) -> None:
    """However the batch is cut, the gradient is that of one big batch: every sampled token weighs the same."""
    trained = learner(tiny_model, entropy_weight=0.01)
    whole = gradient(trained, batch(0), 10**6)
    cut = gradient(trained, batch(0), micro_batch_tokens)
    assert whole.norm() > 1e-3
    assert torch.allclose(cut, whole, atol=1e-6 * whole.norm().item(), rtol=1e-4)


def test_only_sampled_tokens_have_a_gradient(tiny_model: Path) -> None:
    """The loss reaches the logits before sampled tokens and no others."""
    trained = learner(tiny_model, entropy_weight=0.01)
    seen: list[torch.Tensor] = []

    def keep(_module: Any, _inputs: Any, output: Any) -> None:
        output.logits.retain_grad()
        seen.append(output.logits)

    handle = trained._model.register_forward_hook(keep)
    gradient(trained, [row(3, 12)], 10**6)
    handle.remove()
    touched = (seen[0].grad[0] != 0).any(dim=-1)
    assert touched.tolist() == [position + 1 in (2, 5, 8, 11) for position in range(12)]


def masked(row_: dict[str, Any], *places: int) -> dict[str, Any]:
    """Return a copy of a row in which the sampled tokens at `places` are too old to be trained."""
    sampled = bytearray(row_["sampled"])
    for place in places:
        assert sampled[place]
        sampled[place] = 0
    return changed(row_, sampled=bytes(sampled))


def test_masked_tokens_have_no_gradient_and_do_not_count(tiny_model: Path) -> None:
    """The loss does not touch the logits before a masked token, and is divided by the trained tokens alone."""
    trained = learner(tiny_model, entropy_weight=0.01)
    seen: list[torch.Tensor] = []

    def keep(_module: Any, _inputs: Any, output: Any) -> None:
        output.logits.retain_grad()
        seen.append(output.logits)

    handle = trained._model.register_forward_hook(keep)
    whole = row(3, 12, advantage=1.0)
    gradient(trained, [whole], 10**6)
    gradient(trained, [masked(whole, 2, 5, 11)], 10**6)
    handle.remove()
    full, rest = (logits.grad[0] for logits in seen)
    assert [place for place in range(12) if (rest[place] != 0).any()] == [7]
    assert rest[7].abs().max() > 1e-3
    assert torch.allclose(rest[7], 4 * full[7], rtol=1e-4), "one token of the mean instead of one of four"


@pytest.mark.parametrize("micro_batch_tokens", [1, 10**6])
def test_a_row_without_a_trained_token_changes_nothing(tiny_model: Path, micro_batch_tokens: int) -> None:
    """Gradient, loss and metrics are those of the batch without it, alone or beside others in a micro-batch."""
    others = [row(1, 9), row(2, 14)]
    spent = masked(row(3, 12), 2, 5, 8, 11)
    trained = learner(tiny_model, entropy_weight=0.01, micro_batch_tokens=micro_batch_tokens)
    without = gradient(trained, others, micro_batch_tokens)
    assert without.norm() > 1e-3
    assert torch.equal(gradient(trained, [others[0], spent, others[1]], micro_batch_tokens), without)
    trained._optimizer.clear()
    first = trained.train(0, 0, [others[0], spent, others[1]])
    second = learner(tiny_model, entropy_weight=0.01, micro_batch_tokens=micro_batch_tokens).train(0, 0, others)
    assert first["loss"] == second["loss"]
    assert first["metrics"] == second["metrics"]
    assert first["metrics"]["tokens"] == 3 + 4


def test_advantages_of_zero_change_nothing_but_by_decay(tiny_model: Path, tmp_path: Path) -> None:
    """A batch without any difference in reward leaves the weights as they are."""
    trained = learner(tiny_model)
    before = weights(trained, tmp_path)
    result = trained.train(0, 0, [row(seed, advantage=0.0) for seed in range(4)])
    assert result["metrics"]["grad_norm"] == 0.0
    assert equal(before, weights(trained, tmp_path))


def test_rewarded_tokens_become_more_likely(tiny_model: Path) -> None:
    """Trained on its own samples, the learner moves probability to what had a positive advantage."""
    trained = learner(tiny_model, lr=1e-3)
    rows = [row(1, advantage=1.0), row(2, advantage=-1.0)]

    def logprobs() -> list[np.ndarray[Any, Any]]:
        found = []
        for one in rows:
            tokens = torch.from_numpy(np.frombuffer(one["tokens"], "<i4").astype(np.int64))[None]
            with torch.no_grad():
                scores = (trained._model(tokens).logits[0, :-1] / 0.8).log_softmax(-1)
            behaviour = scores.gather(1, tokens[0, 1:, None])[:, 0].numpy()
            found.append(np.concatenate([[0.0], behaviour]) * np.frombuffer(one["sampled"], np.uint8))
        return found

    before = logprobs()
    on_policy = [
        changed(one, logprobs=found.astype("<f4").tobytes()) for one, found in zip(rows, before, strict=True)
    ]
    metrics = trained.train(0, 0, on_policy)["metrics"]
    after = logprobs()
    assert after[0].sum() > before[0].sum()
    assert after[1].sum() < before[1].sum()
    assert metrics["importance_max"] == pytest.approx(1.0, abs=1e-4)
    assert metrics["kl"] == pytest.approx(0.0, abs=1e-6)


def test_a_step_reports_finite_metrics(tiny_model: Path) -> None:
    """Every metric is a finite float, and stale tokens are told from fresh ones."""
    trained = learner(tiny_model)
    trained.train(0, 0, batch(0))
    result = trained.train(1, 1, [*batch(1, version=0)[:1], row(5, 6, version=1)])
    assert set(result["metrics"]) == METRICS
    assert np.isfinite([result["loss"], *result["metrics"].values(), *result["seconds"].values()]).all()
    assert result["metrics"]["stale_token_share"] == 0.5
    assert result["metrics"]["tokens"] == 4.0


def test_training_goes_on_exactly_where_a_checkpoint_stopped_it(tiny_model: Path, tmp_path: Path) -> None:
    """Four steps give the same bits as two, a checkpoint, a new process's start, and two more."""
    settings: dict[str, Any] = {"schedule": "cosine", "warmup_steps": 3, "weight_decay": 0.1}
    straight = learner(tiny_model, **settings)
    for step in range(4):
        straight.train(step, step, batch(step, version=step))
    stopped = learner(tiny_model, **settings)
    for step in range(2):
        stopped.train(step, step, batch(step, version=step))
    stopped.checkpoint(str(tmp_path / "two"))
    resumed = learner(tiny_model, tmp_path / "two", **settings)
    for step in (2, 3):
        resumed.train(step, step, batch(step, version=step))
    assert equal(weights(straight, tmp_path), weights(resumed, tmp_path))


def test_a_checkpoint_before_the_first_step_can_be_resumed(tiny_model: Path, tmp_path: Path) -> None:
    """Version 0 has no moments yet, and starts again as version 0."""
    learner(tiny_model).checkpoint(str(tmp_path / "zero"))
    resumed = learner(tiny_model, tmp_path / "zero")
    assert resumed.train(0, 0, batch(0))["metrics"]["tokens"] > 0


@pytest.mark.parametrize("tied", [False, True])
def test_a_checkpoint_is_an_ordinary_model_folder(
    tiny: Callable[..., LlamaForCausalLM], tmp_path: Path, tied: bool
) -> None:
    """A Hugging Face library loads it as it is, tied embeddings included, and its logits are the learner's."""
    tiny(0, tied=tied).save_pretrained(tmp_path / "model")
    trained = learner(tmp_path / "model")
    trained.train(0, 0, batch(0))
    trained.checkpoint(str(tmp_path / "one"))
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "one").eval()
    tokens = torch.arange(20)[None]
    with torch.no_grad():
        assert torch.equal(loaded(tokens).logits, trained._model(tokens).logits)


def test_a_checkpoint_holds_nothing_that_runs(tiny_model: Path, tmp_path: Path) -> None:
    """The folder has tensors and JSON only, replaces one of the same name whole, and leaves no other behind."""
    trained = learner(tiny_model)
    path = tmp_path / "checkpoints" / "step"
    trained.checkpoint(str(path))
    trained.train(0, 0, batch(0))
    written = trained.checkpoint(str(path))
    assert {file.suffix for file in path.iterdir()} == {".safetensors", ".json"}
    assert written["size_bytes"] == sum(file.stat().st_size for file in path.iterdir())
    assert [folder.name for folder in path.parent.iterdir()] == ["step"]
    assert learner(tiny_model, path).train(1, 1, batch(1))["loss"] is not None


def test_a_checkpoint_that_cannot_be_written_leaves_nothing(tiny_model: Path, tmp_path: Path) -> None:
    """A file in the way of the folder is a CheckpointError, and training goes on."""
    (tmp_path / "file").write_text("in the way")
    trained = learner(tiny_model)
    with pytest.raises(CheckpointError, match="could not be written"):
        trained.checkpoint(str(tmp_path / "file" / "step"))
    assert trained.train(0, 0, batch(0))["metrics"]["tokens"] > 0
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


@pytest.mark.parametrize("name", ["learner.json", "optimizer.safetensors", "model.safetensors"])
def test_a_damaged_checkpoint_is_refused(tiny_model: Path, tmp_path: Path, name: str) -> None:
    """Each of the three files is checked before anything is trained."""
    learner(tiny_model).checkpoint(str(tmp_path / "damaged"))
    (tmp_path / "damaged" / name).write_bytes(b"torn")
    with pytest.raises(WeightsUnusable):
        learner(tiny_model, tmp_path / "damaged")


@pytest.mark.parametrize(("advantage", "what"), [(3e38, "loss"), (1e25, "gradient")])
def test_a_step_that_is_not_finite_is_refused(
    tiny_model: Path, tmp_path: Path, advantage: float, what: str
) -> None:
    """A loss or gradient that overflows raises and leaves weights, optimizer and version as they were."""
    trained = learner(tiny_model)
    before = weights(trained, tmp_path)
    with pytest.raises(NotFinite, match=f"step 0: the .*{what}.*no optimizer step was made"):
        trained.train(0, 0, [row(seed, 30, advantage=-advantage) for seed in range(4)])
    assert equal(before, weights(trained, tmp_path))
    assert trained.train(0, 0, batch(0))["metrics"]["grad_norm"] < 100


def test_random_weights_follow_from_the_seed(tiny_model: Path, tmp_path: Path) -> None:
    """The same seed draws the same model from config.json, another seed another one."""
    drawn = [weights(learner(tiny_model, init="random", seed=seed), tmp_path) for seed in (1, 1, 2)]
    assert equal(drawn[0], drawn[1])
    assert not equal(drawn[0], drawn[2])


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"sampled": b"\0"}, "trajectory 1/0: arrays have lengths"),
        ({"sampled": b"\1" * 12}, "its first token is marked as sampled"),
        ({"tokens": np.full(12, 64, "<i4").tobytes()}, "outside the vocabulary of 64"),
        ({"logprobs": np.full(12, np.nan, "<f4").tobytes()}, "a behaviour log-prob that is not finite"),
        ({"advantage": float("nan")}, "its advantage is nan"),
    ],
)
def test_a_row_that_cannot_be_trained_is_named(
    tiny_model: Path, fields: dict[str, Any], message: str
) -> None:
    """What does not fit together is refused before any gradient, with the trajectory at fault."""
    with pytest.raises(BatchUnusable, match=message):
        learner(tiny_model).train(0, 0, [changed(row(1), **fields)])


def test_a_batch_of_another_version_is_refused(tiny_model: Path) -> None:
    """A step is made from the version that it is meant for, or not at all."""
    with pytest.raises(BatchUnusable, match="step 3 is of version 3, but the learner holds version 0"):
        learner(tiny_model).train(3, 3, batch(0))


def test_a_batch_without_sampled_tokens_is_refused(tiny_model: Path) -> None:
    """Nothing to train on is an error and not a division by zero."""
    with pytest.raises(BatchUnusable, match="no sampled token"):
        learner(tiny_model).train(0, 0, [changed(row(1), sampled=bytes(12))])


def test_micro_batches_keep_to_their_budget() -> None:
    """No micro-batch has more padded tokens than allowed unless it is one row, and no row is lost."""
    rows = [decode_row(row(seed, length), 64) for seed, length in enumerate([5, 30, 7, 8, 30, 6, 50])]
    parts = micro_batches(rows, 60, torch.device("cpu"))
    assert all(part.tokens.numel() <= 60 for part in parts)
    assert sorted(len(part.tokens) for part in parts) == [1, 2, 4]
    assert sum(part.advantages.numel() for part in parts) == sum(int(one.sampled.sum()) for one in rows)
    alone = micro_batches(rows, 1, torch.device("cpu"))
    assert [part.tokens.numel() for part in alone] == [5, 6, 7, 8, 30, 30, 50]


def test_the_learning_rate_follows_warm_up_and_schedule() -> None:
    """It rises linearly to the peak, then stays, or falls towards zero at the end of the run."""
    constant = LearnerSection(lr=1.0, warmup_steps=4)
    assert [learning_rate(constant, step, 10) for step in range(6)] == [0.25, 0.5, 0.75, 1.0, 1.0, 1.0]
    linear = LearnerSection(lr=1.0, schedule="linear")
    assert [learning_rate(linear, step, 4) for step in range(5)] == [1.0, 0.75, 0.5, 0.25, 0.0]
    cosine = LearnerSection(lr=1.0, schedule="cosine")
    assert [learning_rate(cosine, step, 4) for step in (0, 2, 4)] == pytest.approx([1.0, 0.5, 0.0])


def test_decay_spares_norms_and_biases() -> None:
    """Without any gradient, weight decay shrinks matrices and leaves vectors alone."""
    layer = torch.nn.Linear(3, 3)
    before = {name: parameter.detach().clone() for name, parameter in layer.named_parameters()}
    for parameter in layer.parameters():
        parameter.grad = torch.zeros_like(parameter)
    NamedAdamW(layer, LearnerSection(weight_decay=0.5)).step(lr=0.1)
    assert torch.allclose(layer.weight, before["weight"] * 0.95)
    assert torch.equal(layer.bias, before["bias"])
