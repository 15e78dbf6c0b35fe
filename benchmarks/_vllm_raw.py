"""vLLM's AsyncLLM by itself: what `bench_engines.py` puts beside the engine. Runs in vLLM's own environment.

    python benchmarks/_vllm_raw.py ARGUMENTS_JSON CONCURRENT REQUESTS PROMPT_TOKENS TOKENS

For each line of standard input it makes REQUESTS requests, CONCURRENT of them at a time, and prints tokens per second.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time

from vllm import SamplingParams
from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.sampling_params import RequestOutputKind
from vllm.v1.engine.async_llm import AsyncLLM


async def main() -> None:
    """Serve standard input."""
    arguments, concurrent, requests, prompt_tokens, tokens = sys.argv[1], *map(int, sys.argv[2:])
    llm = AsyncLLM.from_engine_args(AsyncEngineArgs(**json.loads(arguments)))
    gate = asyncio.Semaphore(concurrent)
    rounds = 0

    async def ask(number: int) -> int:
        async with gate:
            prompt = [(number * 7 + place) % 60 for place in range(prompt_tokens)]
            sampling = SamplingParams(
                max_tokens=tokens,
                temperature=1.0,
                seed=number,
                ignore_eos=True,
                logprobs=0,
                detokenize=False,
                output_kind=RequestOutputKind.FINAL_ONLY,
            )
            sampled = 0
            async for output in llm.generate({"prompt_token_ids": prompt}, sampling, f"{rounds}-{number}"):
                sampled = len(output.outputs[0].token_ids)
            return sampled

    print("ready", flush=True)
    while await asyncio.to_thread(sys.stdin.readline):
        began = time.perf_counter()
        async with asyncio.TaskGroup() as group:
            asked = [group.create_task(ask(number)) for number in range(requests)]
        print(sum(task.result() for task in asked) / (time.perf_counter() - began), flush=True)
        rounds += 1
        await llm.reset_prefix_cache()
    llm.shutdown()


if __name__ == "__main__":
    asyncio.run(main())
