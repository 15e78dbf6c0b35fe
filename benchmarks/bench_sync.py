"""Weight sync: from pausing the engines to resuming them, beside the bare copy of the same bytes.

    python benchmarks/bench_sync.py [--megabytes 512] [--quick]

All engines take the weights at once, each in a process of its own. Before they are paused they fetch: every bucket is
read and verified by its hash, while they would go on decoding. From pause to resume every bucket is copied and the
receipt compared. The limit is the same number of processes that read the same file into memory that they have, and do
nothing else. Simulated engines hold bytes and no model; the real one is the PyTorch
engine with a model of about the given size, which has a request in flight.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import platform
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from statistics import median

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from eventrain.adapters.engine_setup import EngineSetup
from eventrain.adapters.torch.engine import TorchEngine
from eventrain.adapters.torch.progress import Progress
from eventrain.adapters.torch.publishing import gather_weights
from eventrain.adapters.torch.rank_group import RankGroup
from eventrain.adapters.worker import WorkerProcess
from eventrain.core.config import DeadlineSection, EngineSection, RolloutSection
from eventrain.core.ports import GenerateRequest, Receipt, SyncMode, Weights
from eventrain.core.weight_update import update

BUCKET_BYTES = 64 * 2**20
HERE = str(Path(__file__).parent)


class Remote:
    """A simulated engine, from the controller's side."""

    def __init__(self, worker: WorkerProcess) -> None:
        self.worker = worker

    async def fetch(self, weights: Weights) -> None:
        """Fetch."""
        await self.worker.call("fetch", weights=weights.path)

    async def pause(self, mode: SyncMode) -> None:
        """Pause."""
        await self.worker.call("pause")

    async def resume(self) -> None:
        """Resume."""
        await self.worker.call("resume")

    async def begin_update(self, weights: Weights, lease: int) -> None:
        """Begin."""
        await self.worker.call("begin_update", weights=weights.path, version=weights.version, lease=lease)

    async def transfer(self, bucket: int, lease: int) -> None:
        """Take a bucket."""
        await self.worker.call("transfer", bucket=bucket, lease=lease)

    async def finish_update(self, lease: int) -> Receipt:
        """Finish."""
        return Receipt(**await self.worker.call("finish_update", lease=lease))


def model_of(megabytes: int) -> LlamaForCausalLM:
    """Return a random model of about that size in float32, of many equal layers."""
    width, layers = 512, max(1, round(megabytes * 2**20 / 4 / (16 * 512 * 512)))
    config = LlamaConfig(
        vocab_size=512,
        hidden_size=width,
        intermediate_size=4 * width,
        num_hidden_layers=layers,
        num_attention_heads=8,
        max_position_embeddings=256,
    )
    return LlamaForCausalLM(config).eval()


async def timed(work: Sequence[Callable[[], Awaitable[object]]]) -> float:
    """Return the seconds until all of `work`, begun together, is done."""
    began = time.perf_counter()
    async with asyncio.TaskGroup() as tasks:
        for one in work:
            tasks.create_task(_awaited(one))
    return time.perf_counter() - began


async def _awaited(work: Callable[[], Awaitable[object]]) -> None:
    await work()


async def synced(engine: Remote | TorchEngine, weights: Weights, lease: int) -> None:
    """Take an engine, which has fetched the weights, through one sync."""
    await engine.pause("pause")
    await update(engine, weights, lease)  # type: ignore[arg-type]
    await engine.resume()


async def simulated(count: int, weights: Weights, size: int, rounds: int) -> tuple[float, float, float]:
    """Return median seconds of `count` engines fetching, of their sync, and of the bare copy."""
    workers: list[WorkerProcess] = []
    try:
        for number in range(count):
            workers.append(  # noqa: PERF401 - those that came up are closed where one does not
                await WorkerProcess.start(
                    "_sync_engine:make",
                    {"size_bytes": size},
                    name=f"engine-{number}",
                    log_path=None,
                    deadline_s=60,
                    env={"PYTHONPATH": HERE},
                )
            )
        engines = [Remote(worker) for worker in workers]
        fetches, syncs, copies = [], [], []
        for lease in range(rounds + 1):
            copy = [lambda worker=worker: worker.call("raw", weights=weights.path) for worker in workers]
            copies.append(await timed(copy))
            fetches.append(await timed([lambda engine=engine: engine.fetch(weights) for engine in engines]))
            work = [lambda engine=engine, lease=lease: synced(engine, weights, lease) for engine in engines]
            syncs.append(await timed(work))
        # The first touch the memory for the first time.
        return median(fetches[1:]), median(syncs[1:]), median(copies[1:])
    finally:
        for worker in workers:
            await worker.close(5)


async def real(model: Path, weights: Weights, folder: Path, rounds: int) -> tuple[float, float]:
    """Return median seconds of one PyTorch engine fetching, and of its sync, with a request in flight."""
    rollout = RolloutSection(max_tokens=200, context_tokens=256)
    section = EngineSection(device="cpu", slots=2)
    engine = TorchEngine(EngineSetup("engine-0", model, section, rollout, folder / "log", DeadlineSection()))
    try:
        await engine.start(weights)
        fetches, syncs = [], []
        async with asyncio.TaskGroup() as tasks:
            for lease in range(rounds):
                request = GenerateRequest(f"{lease}/0/0", [1, 2, 3], 200, 1.0, 1.0, (), lease)
                asked = tasks.create_task(engine.generate(request))
                while await engine.occupancy() != (1, 0):  # noqa: ASYNC110 - until it decodes
                    await asyncio.sleep(0.01)
                fetches.append(await timed([lambda: engine.fetch(weights)]))
                syncs.append(await timed([lambda lease=lease: synced(engine, weights, lease)]))
                asked.cancel()
        return median(fetches), median(syncs)
    finally:
        await engine.close()


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(
        description="Time of a weight sync, beside the bare copy of the same bytes."
    )
    parser.add_argument("--megabytes", type=int, default=512)
    parser.add_argument("--quick", action="store_true", help="an eighth of the bytes, two rounds")
    parser.add_argument("--folder", help="where the weights lie; default: /dev/shm where there is one")
    arguments = parser.parse_args()
    megabytes, rounds = (arguments.megabytes // 8, 2) if arguments.quick else (arguments.megabytes, 5)
    base = arguments.folder or ("/dev/shm" if os.access("/dev/shm", os.W_OK) else None)
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory(dir=base) as name:
        folder = Path(name)
        model = model_of(megabytes)
        model.config.save_pretrained(folder)
        path = folder / "0.safetensors"
        alone = RankGroup(0, 1, torch.device("cpu"), 60)
        written = gather_weights(model, path, BUCKET_BYTES, alone, Progress(), durable=False)
        del model
        weights = Weights(0, str(path), written.tensors, written.buckets, written.digest)
        size = written.size_bytes
        print(f"Python {platform.python_version()}, {os.cpu_count()} cores, {platform.machine()}")
        print(f"{size / 1e6:,.0f} MB in {weights.buckets} buckets, in {base or 'the temporary folder'}\n")
        print(
            f"{'engines':22}{'fetched before':>16}{'pause to resume':>17}{'bare copy':>12}{'ratio':>8}{'MB/s, all':>12}"
        )
        for count in (1, 2, 4):
            fetch_s, sync_s, copy_s = asyncio.run(simulated(count, weights, size, rounds))
            row(f"{count} simulated", fetch_s, sync_s, copy_s, count * size)
            if count == 1:
                single_s = copy_s
        row("1 real (PyTorch)", *asyncio.run(real(folder, weights, folder, rounds)), single_s, size)


def row(name: str, fetch_s: float, sync_s: float, copy_s: float, size: int) -> None:
    """Print one."""
    fetched, synced, copied = (f"{seconds * 1e3:,.0f} ms" for seconds in (fetch_s, sync_s, copy_s))
    print(
        f"{name:22}{fetched:>16}{synced:>17}{copied:>12}{sync_s / copy_s:>8.2f}{size / sync_s / 1e6:>12,.0f}",
        flush=True,
    )


if __name__ == "__main__":
    main()
