"""A server that speaks as much of vLLM's HTTP interface as a run uses, and samples nothing.

    python benchmarks/_vllm_double.py MODEL_FOLDER SECONDS TOKENS

It prints its port, answers a request after SECONDS, give or take a half of it, with TOKENS tokens, and remembers no
weights but their version. It ends with whoever started it.
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
from pathlib import Path
from typing import Any

from aiohttp import web

from eventrain.adapters.weights.file import WeightsFile

VERSION = "0.32.0"
METRICS = """vllm:num_requests_running {running}
vllm:num_requests_waiting 0
vllm:kv_cache_usage_perc 0.1
vllm:num_preemptions_total 0
vllm:prompt_tokens_total {prompt}
vllm:prompt_tokens_cached_total 0
vllm:generation_tokens_total {sampled}
"""


class Double:
    """The state of one server."""

    def __init__(self, model: Path, seconds: float, tokens: int) -> None:
        self.config = json.loads((model / "config.json").read_text())
        self.seconds, self.tokens = seconds, tokens
        self.version = "0"
        self.running = self.prompt = self.sampled = 0
        self.update: dict[str, Any] = {}

    async def generate(self, request: web.Request) -> web.Response:
        """Answer after a while."""
        body = await request.json()
        if "token_ids" not in body:
            return web.json_response({"error": "token_ids is missing"}, status=400)
        self.running += 1
        await asyncio.sleep(self.seconds * random.uniform(0.5, 1.5))
        self.running -= 1
        count = min(self.tokens, body["sampling_params"]["max_tokens"])
        self.prompt += len(body["token_ids"])
        self.sampled += count
        choice = {
            "index": 0,
            "token_ids": [7] * count,
            "logprobs": {"content": [{"logprob": -1.0}] * count},
            "weight_versions": [{"version": self.version, "start": 0, "end": count}],
            "finish_reason": "stop",
        }
        return web.json_response({"request_id": body.get("request_id", ""), "choices": [choice]})

    async def collective_rpc(self, request: web.Request) -> web.Response:
        """Do what the extension in vLLM's workers does, without a model."""
        body = await request.json()
        said = json.loads(body["kwargs"]["request"])
        answer = getattr(self, body["method"].removeprefix("eventrain_"))(said)
        return web.json_response({"results": [{"ok": answer}]})

    def describe(self, said: dict[str, Any]) -> dict[str, Any]:
        """Say which model is served."""
        model = {key: self.config.get(key) for key in said["keys"]}
        return {"model": model, "logprobs_mode": "processed_logprobs"}

    def attach(self, said: dict[str, Any]) -> dict[str, Any]:
        """Take updates from this owner."""
        context = self.config["max_position_embeddings"]
        return {
            "vocabulary": self.config["vocab_size"],
            "context_tokens": context,
            "slots": 4096,
            "device": "none",
            "node": "",
        }

    def fetch(self, said: dict[str, Any]) -> None:
        """Begin to read the file."""

    def fetched(self, said: dict[str, Any]) -> bool:
        """Have read it."""
        return True

    def begin(self, said: dict[str, Any]) -> None:
        """Open the file."""
        with WeightsFile(Path(said["path"])) as file:
            checksums = [bucket.checksum for bucket in file.buckets]
            digest = file.digest_of(checksums)
            self.update = {"version": said["version"], "tensors": len(file.specs), "digest": digest}

    def transfer(self, said: dict[str, Any]) -> None:
        """Take a bucket."""

    def finish(self, said: dict[str, Any]) -> dict[str, Any]:
        """Say what was taken."""
        return self.update

    async def set_version(self, request: web.Request) -> web.Response:
        """Name the version of the tokens to come."""
        self.version = (await request.json())["new_version"]
        return web.json_response({"success": True})

    async def metrics(self, request: web.Request) -> web.Response:
        """Count."""
        return web.Response(
            text=METRICS.format(running=self.running, prompt=self.prompt, sampled=self.sampled)
        )


def application(double: Double) -> web.Application:
    """Return the routes of the server."""

    def saying(answer: Any) -> Any:
        async def handler(request: web.Request) -> web.Response:
            return web.json_response(answer)

        return handler

    app = web.Application(client_max_size=2**26)
    app.add_routes(
        [
            web.get("/version", saying({"version": VERSION})),
            web.get("/v1/models", saying({"data": []})),
            web.get("/health", saying({})),
            web.get("/is_paused", saying({"is_paused": False})),
            web.get("/metrics", double.metrics),
            web.post("/inference/v1/generate", double.generate),
            web.post("/collective_rpc", double.collective_rpc),
            web.post("/update_weight_version", double.set_version),
            web.post("/pause", saying({"status": "paused"})),
            web.post("/resume", saying({"status": "resumed"})),
            web.post("/reset_prefix_cache", saying({"success": True})),
        ]
    )
    return app


async def serve(double: Double) -> None:
    """Serve until standard input ends."""
    runner = web.AppRunner(application(double), access_log=None)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0, backlog=8192)
    await site.start()
    print(runner.addresses[0][1], flush=True)
    await asyncio.to_thread(sys.stdin.read)
    await runner.cleanup()


if __name__ == "__main__":
    folder, seconds, tokens = sys.argv[1:]
    asyncio.run(serve(Double(Path(folder), float(seconds), int(tokens))))
