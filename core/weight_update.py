"""One update of one engine: every bucket of the published weights, and proof that they arrived.

It is the same for an engine that serves and for one that starts late, and for every way in which weights travel.
"""

from __future__ import annotations

from .ports import Engine, EngineError, Receipt, Weights


async def update(engine: Engine, weights: Weights, lease: int) -> Receipt:
    """Bring `engine` to `weights` and return its receipt, which agrees with what was published.

    May be made again after it failed, under the same lease. Raises `EngineError` where the engine lives and has not
    the weights that it should have, `EngineGone` where it does not live. Cancelled or failed, the engine holds what it
    held, or nothing that it may sample with: see `Engine`.
    """
    await engine.begin_update(weights, lease)
    for bucket in range(weights.buckets):
        await engine.transfer(bucket, lease)
    receipt = await engine.finish_update(lease)
    difference = differs(weights, receipt)
    if difference:
        raise EngineError(f"took other weights than were published: {difference}")
    return receipt


def differs(weights: Weights, receipt: Receipt) -> str:
    """Return in what a receipt differs from what was published, in one line; empty where it does not."""
    if receipt.version != weights.version:
        return f"version {receipt.version}, not {weights.version}"
    if receipt.tensors != weights.tensors:
        return f"{receipt.tensors} tensors, not {weights.tensors}"
    if receipt.digest != weights.digest:
        return f"digest {receipt.digest}, not {weights.digest}"
    return ""
