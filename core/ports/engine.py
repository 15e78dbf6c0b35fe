"""Engines: they sample completions, and take new weights between tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from ...events.types import VersionSpans


@dataclass(frozen=True, slots=True)
class GenerateRequest:
    """One completion to sample. Token ids in, token ids out; never text."""

    request: str
    """Unique among requests in flight: ``57/3/0`` (trajectory, turn), with ``+1`` behind it on a retry."""
    prompt_ids: Sequence[int]
    """The whole conversation so far, exactly as it was sampled and rendered."""
    max_tokens: int
    temperature: float
    top_p: float
    stop_token_ids: Sequence[int]
    seed: int
    """Of this request's own sampler, so that the same run samples the same tokens whatever shares its batch."""
    trace_parent: str = ""


@dataclass(frozen=True, slots=True)
class Generation:
    """What an engine sampled."""

    token_ids: Sequence[int]
    """Sampled tokens; a stop token that ended it is included."""
    logprobs: Sequence[float]
    """Log-probability (natural log) of each sampled token under the distribution it was sampled from."""
    version_spans: VersionSpans
    """Which weights sampled which tokens; the counts add up to ``len(token_ids)``."""
    finish_reason: Literal["stop", "length", "abort"]
    queue_s: float
    """Time between arrival and the first forward pass."""
    engine_s: float | None = None
    """Time between the request's arrival at the engine and its answer, queue and pauses included; None if the
    engine does not say."""


@dataclass(frozen=True, slots=True)
class EngineInfo:
    """What an engine says of itself once it serves."""

    context_tokens: int
    slots: int
    device: str
    node: str = ""
    """Where it runs, if that is not the controller's machine."""


SyncMode = Literal["drain", "pause", "abort", "in_flight"]


@dataclass(frozen=True, slots=True)
class Weights:
    """Published weights: what an engine is to hold, and how it can tell that it does."""

    version: int
    path: str
    """A safetensors file, from the root of the file system."""
    tensors: int
    buckets: int
    """Parts in which they are transferred, numbered from 0; at least 1."""
    digest: str
    """Of names, types, shapes and bytes of all tensors."""


@dataclass(frozen=True, slots=True)
class Receipt:
    """What an engine took in an update, counted from what arrived and not from what was announced."""

    version: int
    tensors: int
    digest: str


class Engine(Protocol):
    """One inference engine.

    An update of its weights is `begin_update`, `transfer` of every bucket, `finish_update`, all under one lease: a
    number that grows from update to update of a run. A call under an older lease than the newest one that the engine
    has seen raises `EngineError` and changes nothing, so what was late cannot reach into the update that replaced it.
    Each of the three may be repeated under its lease, and has its effect once; `begin_update` throws away what was
    transferred, so an update that failed half-way is repaired by making it again. Until `finish_update` returns, no
    token is sampled by weights that are neither wholly the old nor wholly the new ones.
    """

    name: str

    async def prepare(self) -> None:
        """Do what takes long and needs no weights, ahead of `start`. Raises `EngineGone`.

        Only a head start: `start` works without it.
        """
        ...

    async def start(self, weights: Weights) -> EngineInfo:
        """Start, or start anew after `EngineGone`, and return when it serves `weights`, which it has verified."""
        ...

    async def generate(self, request: GenerateRequest) -> Generation:
        """Sample one completion.

        Raises `PromptTooLong`, `PromptRefused`, `EngineError` or `EngineGone`. A completion that reaches the end
        of the context is no error: it ends with ``finish_reason == "length"``.
        Cancelling aborts the request in the engine and frees its slot.
        """
        ...

    async def fetch(self, weights: Weights) -> None:
        """Bring `weights` within reach, beside the decoding. Raises `EngineError` or `EngineGone`.

        Only a head start: `begin_update` works without it.
        """
        ...

    async def pause(self, mode: SyncMode) -> None:
        """Stop decoding. ``drain`` first finishes what is in flight; ``pause`` keeps it, to go on at `resume`.

        ``abort`` ends what is in flight: each answer has the tokens so far and ``finish_reason == "abort"``.
        """
        ...

    async def begin_update(self, weights: Weights, lease: int) -> None:
        """Make ready to take `weights`. Raises `EngineError` or `EngineGone`, as the next two do."""
        ...

    async def transfer(self, bucket: int, lease: int) -> None:
        """Take one bucket of the weights that were announced; each is asked for in its turn."""
        ...

    async def finish_update(self, lease: int) -> Receipt:
        """Serve what was transferred, if that is whole, and say what it was.

        Tokens sampled after this returns are of the new version; requests in flight go on with it.
        Raises `EngineError` if a bucket is missing or not as it was announced.
        """
        ...

    async def resume(self) -> None:
        """Decode again after `pause`."""
        ...

    async def close(self) -> None:
        """End the engine and everything it started. Idempotent; never raises `PortError`."""
        ...
