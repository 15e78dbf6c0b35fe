"""The real vLLM, in a process and behind its server: each is started once for all tests."""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from transformers import LlamaForCausalLM
from vllm_models import CONTEXT_TOKENS, published, tiny_llama

from eventrain.adapters.engine_setup import EngineSetup
from eventrain.adapters.launching import LocalLauncher
from eventrain.adapters.vllm.engine import VllmEngine
from eventrain.adapters.vllm.linked import LinkedEngine
from eventrain.adapters.vllm.server import VllmServerEngine
from eventrain.adapters.weights.file import WeightsFile
from eventrain.core.config import DeadlineSection, EngineSection, RolloutSection
from eventrain.core.ports import EngineInfo, Receipt, Weights


class Served:
    """An engine that serves, on an event loop that outlives a test."""

    def __init__(self, engine: LinkedEngine, weights: list[Weights]) -> None:
        self.runner = asyncio.Runner()
        self.engine = engine
        self.weights = weights
        self.lease = 0
        self.info: EngineInfo = self.run(engine.start(weights[0]))

    def run(self, work: Any) -> Any:
        return self.runner.run(work)

    async def update(self, weights: Weights) -> Receipt:
        """Bring the engine to `weights`, as weight sync does."""
        self.lease += 1
        await self.engine.begin_update(weights, self.lease)
        for bucket in range(weights.buckets):
            await self.engine.transfer(bucket, self.lease)
        return await self.engine.finish_update(self.lease)

    def close(self) -> None:
        self.run(self.engine.close())
        self.runner.close()


@pytest.fixture(scope="session")
def models() -> list[LlamaForCausalLM]:
    """Return the models whose weights are versions 0 and 1."""
    return [tiny_llama(0), tiny_llama(1)]


@pytest.fixture(scope="session")
def model_path(models: list[LlamaForCausalLM], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a model folder without weights."""
    folder = tmp_path_factory.mktemp("model")
    models[0].config.save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def weights(models: list[LlamaForCausalLM], tmp_path_factory: pytest.TempPathFactory) -> list[Weights]:
    """Return the published weights of both models."""
    folder = tmp_path_factory.mktemp("weights")
    return [
        published(model, folder / f"{version}.safetensors", version) for version, model in enumerate(models)
    ]


@pytest.fixture
def damaged(weights: list[Weights], tmp_path: Path) -> Weights:
    """Return version 1 with one byte of its last bucket turned over."""
    path = tmp_path / "damaged.safetensors"
    shutil.copy(weights[1].path, path)
    with WeightsFile(path) as file:
        start = file.buckets[-1].start
    content = bytearray(path.read_bytes())
    content[start] ^= 0xFF
    path.write_bytes(content)
    return Weights(1, str(path), weights[1].tensors, weights[1].buckets, weights[1].digest)


@pytest.fixture(scope="session")
def make_engine(model_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., LinkedEngine]:
    """Return the maker of engines that are not started; keywords are settings of the engine."""
    python = os.environ["EVENTRAIN_VLLM_PYTHON"]

    def make(
        kind: str, url: str | None = None, start_s: float = 300, model: Path | None = None, **settings: Any
    ) -> LinkedEngine:
        given = {"python": python, "slots": 8, **settings}
        section = EngineSection(kind=kind, device="cpu", **given)
        rollout = RolloutSection(context_tokens=CONTEXT_TOKENS, max_tokens=32)
        log = tmp_path_factory.mktemp("logs") / "engine-0.log"
        deadlines = DeadlineSection(start_s=start_s, weight_sync_s=60, close_s=20)
        setup = EngineSetup("engine-0", model or model_path, section, rollout, log, deadlines)
        if kind == "vllm":
            return VllmEngine(setup, LocalLauncher())
        return VllmServerEngine(setup, url)

    return make


@pytest.fixture(scope="session", params=["vllm", "vllm_server"])
def shared(
    request: pytest.FixtureRequest, make_engine: Callable[..., LinkedEngine], weights: list[Weights]
) -> Iterator[Served]:
    """Return an engine of either kind."""
    served = Served(make_engine(request.param), weights)
    yield served
    served.close()


@pytest.fixture
def served(shared: Served) -> Iterator[Served]:
    """Return an engine that decodes with version 0, and bring it back to that afterwards."""
    yield shared
    shared.run(shared.update(shared.weights[0]))
    shared.run(shared.engine.resume())
