"""Tokens per second of a vLLM engine of ours beside vLLM's own AsyncLLM, in turns, on the same requests.

    EVENTRAIN_VLLM_PYTHON=vllm-env/bin/python python benchmarks/bench_engines.py [--concurrent 64] [--quick]

Both have the same arguments, weights and requests. The bare one is asked in its own process. Ours is asked through the
`Engine` port: a worker process for ``kind = "vllm"``, HTTP for ``kind = "vllm_server"``. Only one of them works at a
time, and they take turns, so that what else the machine does hits all alike.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from statistics import median

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from eventrain.adapters.engine_setup import EngineSetup
from eventrain.adapters.launching import LOCAL
from eventrain.adapters.torch.progress import Progress
from eventrain.adapters.torch.publishing import gather_weights
from eventrain.adapters.torch.rank_group import RankGroup
from eventrain.adapters.vllm.arguments import engine_arguments, environment
from eventrain.adapters.vllm.engine import VllmEngine
from eventrain.adapters.vllm.linked import LinkedEngine
from eventrain.adapters.vllm.server import VllmServerEngine
from eventrain.core.config import DeadlineSection, EngineSection, RolloutSection
from eventrain.core.ports import GenerateRequest, Weights

PROMPT_TOKENS, TOKENS = 32, 64
TARGET = 0.95


def model_at(folder: Path) -> Weights:
    """Write a tiny model's config and its published weights."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=64,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=2,
        max_position_embeddings=256,
        initializer_range=0.15,
        tie_word_embeddings=False,
        bos_token_id=None,
        eos_token_id=None,
        architectures=["LlamaForCausalLM"],
    )
    config.save_pretrained(folder)
    path = folder / "0.safetensors"
    alone = RankGroup(0, 1, torch.device("cpu"), 60)
    written = gather_weights(LlamaForCausalLM(config), path, 2**20, alone, Progress(), durable=False)
    return Weights(0, str(path), written.tensors, written.buckets, written.digest)


class Bare:
    """AsyncLLM in its process."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        assert process.stdout is not None
        for line in process.stdout:
            if line.strip() == "ready":
                return
        raise RuntimeError("the bare vLLM did not start")

    def round(self) -> float:
        """Return tokens per second of one round."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write("go\n")
        self._process.stdin.flush()
        for line in self._process.stdout:
            try:
                return float(line)
            except ValueError:
                continue  # what vLLM logs
        raise RuntimeError("the bare vLLM ended")


class Ours:
    """An engine behind the port, on a loop of its own."""

    def __init__(self, engine: LinkedEngine, weights: Weights, concurrent: int, requests: int) -> None:
        self.engine = engine
        self.concurrent, self.requests = concurrent, requests
        self.runner = asyncio.Runner()
        self.rounds = 0
        self.runner.run(engine.start(weights))

    def round(self) -> float:
        """Return tokens per second of one round."""
        self.rounds += 1
        return self.runner.run(self._round())

    async def _round(self) -> float:
        gate = asyncio.Semaphore(self.concurrent)

        async def ask(number: int) -> int:
            async with gate:
                prompt = [(number * 7 + place) % 60 for place in range(PROMPT_TOKENS)]
                request = GenerateRequest(f"{self.rounds}/{number}/0", prompt, TOKENS, 1.0, 1.0, (), number)
                return len((await self.engine.generate(request)).token_ids)

        began = time.perf_counter()
        async with asyncio.TaskGroup() as group:
            asked = [group.create_task(ask(number)) for number in range(self.requests)]
        seconds = time.perf_counter() - began
        await self.engine.pause("pause")  # forgets the prefix cache, as the bare one does between rounds
        await self.engine.resume()
        return sum(task.result() for task in asked) / seconds

    def close(self) -> None:
        """End it."""
        self.runner.run(self.engine.close())
        self.runner.close()


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(
        description="Tokens per second of our vLLM engines beside the bare AsyncLLM."
    )
    parser.add_argument("--concurrent", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--quick", action="store_true", help="three rounds of half the requests")
    arguments = parser.parse_args()
    python = os.environ.get("EVENTRAIN_VLLM_PYTHON", "")
    if not python:
        sys.exit(
            "bench_engines: EVENTRAIN_VLLM_PYTHON names the Python of vLLM's environment, and is not set"
        )
    rounds = 3 if arguments.quick else arguments.rounds
    requests = arguments.concurrent * (2 if arguments.quick else 4)
    section = EngineSection(kind="vllm", python=python, device="cpu", slots=arguments.concurrent)
    rollout, deadlines = RolloutSection(context_tokens=256, max_tokens=TOKENS), DeadlineSection()
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        folder = Path(name)
        weights = model_at(folder)
        setup = EngineSetup("engine-0", folder, section, rollout, folder / "log", deadlines)
        said = json.dumps(engine_arguments(folder, section, rollout))
        numbers = map(str, (arguments.concurrent, requests, PROMPT_TOKENS, TOKENS))
        script = str(Path(__file__).with_name("_vllm_raw.py"))
        process = stack.enter_context(
            subprocess.Popen(
                [python, script, said, *numbers],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
                env={**os.environ, **environment(section)},
            )
        )
        stack.callback(process.kill)
        competitors: dict[str, Bare | Ours] = {"AsyncLLM, bare": Bare(process)}
        for kind, engine in (
            ("kind = vllm", VllmEngine(setup, LOCAL)),
            ("kind = vllm_server", VllmServerEngine(replace(setup, name="engine-1"))),
        ):
            competitors[kind] = Ours(engine, weights, arguments.concurrent, requests)
            stack.callback(competitors[kind].close)
        seen: dict[str, list[float]] = {kind: [] for kind in competitors}
        for number in range(rounds + 1):
            for kind, one in competitors.items():
                rate = one.round()
                if number:  # the first warms up
                    seen[kind].append(rate)
    print(f"vLLM on a CPU, Python {platform.python_version()}, {os.cpu_count()} cores, {platform.machine()}")
    print(f"{arguments.concurrent} requests at a time, {TOKENS} tokens each; {rounds} rounds in turns\n")
    bare = seen["AsyncLLM, bare"]
    print(f"{'':20}{'tokens/s':>10}{'ratio':>8}   target {TARGET}")
    for kind, rates in seen.items():
        ratio = median(ours / theirs for ours, theirs in zip(rates, bare, strict=True))
        print(f"{kind:20}{median(rates):>10,.0f}{ratio:>8.3f}")


if __name__ == "__main__":
    main()
