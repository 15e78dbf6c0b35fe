"""The ports: what core/ asks of the outside world, as Protocols, plain data and typed errors.

Everything that core/ awaits and that is not the bus is one of these. An adapter implements a Protocol and raises
only the errors below; any other exception is a defect of the adapter and ends the run as its first cause.

Cancellation, for every async method here: cancelling the call abandons the effect (a request is aborted in the
engine, a step of an environment is no longer waited for) and leaves the adapter usable, unless the docstring says
otherwise. Deadlines are core/'s: it cancels what takes too long.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from ..events.record import Clock as RecordClock
from ..events.types import PayloadRef, VersionSpans


class Clock(RecordClock, Protocol):
    """Time for core/: what records need, and a way to let time pass."""

    async def sleep(self, seconds: float) -> None:
        """Let `seconds` pass. Cancelling ends the sleep at once."""
        ...


# Errors that an adapter may raise


class PortError(Exception):
    """Something outside failed. `message` is one line for a person."""


class PromptTooLong(PortError):
    """The prompt does not fit the engine's context. Permanent, and the prompt's own fault."""


class PromptRefused(PortError):
    """The engine refuses this prompt, now and on every retry."""


class EngineError(PortError):
    """This call failed in the engine; the engine lives and the call may be tried again."""


class EngineGone(PortError):
    """The engine died or is beyond repair; everything it held is gone."""


class EnvironmentFailed(PortError):
    """The environment or its reward failed for this trajectory."""


class EnvironmentWorkerGone(PortError):
    """The worker that held the environment of this trajectory died; the environment is gone with it."""


class LearnerGone(PortError):
    """The learner died or can not go on. Ends the run.

    `rank` is the one that died or hangs, None where there is one alone or it is not known; `phase` is what it did last.
    """

    def __init__(self, message: str = "", *, rank: int | None = None, phase: str = "") -> None:
        super().__init__(message)
        self.rank = rank
        self.phase = phase


class CheckpointError(PortError):
    """A checkpoint could not be written; the learner lives."""


# Engines


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


# The learner


@dataclass(frozen=True, slots=True)
class TrainRow:
    """One trajectory of a batch. Arrays are little-endian bytes, all of the same length T (tokens)."""

    trajectory: str
    tokens: bytes
    """int32[T]: the whole conversation."""
    sampled: bytes
    """uint8[T]: 1 where the policy sampled the token (and it may be trained), 0 where the environment wrote it."""
    logprobs: bytes
    """float32[T]: behaviour log-prob of sampled tokens, 0 elsewhere."""
    versions: bytes
    """int32[T]: weight version that sampled the token, -1 elsewhere."""
    advantage: float


@dataclass(frozen=True, slots=True)
class TrainBatch:
    """All rows of one step."""

    step: int
    version: int
    """Version that the learner holds before the step."""
    rows: Sequence[TrainRow]


@dataclass(frozen=True, slots=True)
class TrainResult:
    """What one optimizer step gave."""

    loss: float
    metrics: Mapping[str, float]
    """For example ``grad_norm``, ``clip_share``, ``entropy``, ``kl``, ``lr``; all finite."""
    seconds: Mapping[str, float]
    """Seconds of the step's parts, for example ``forward_backward``, ``optimizer``."""


@dataclass(frozen=True, slots=True)
class LearnerInfo:
    """What the learner says of itself once it is up."""

    version: int
    parameters: int
    device: str
    ranks: int = 1
    nodes: Sequence[str] = ()
    """Of its ranks, in their order; empty: not known."""


@dataclass(frozen=True, slots=True)
class WrittenFile:
    """A file or folder that an adapter wrote, whole."""

    path: str
    size_bytes: int


@dataclass(frozen=True, slots=True)
class WrittenWeights:
    """Weights that the learner wrote for the engines; see `Weights` for the last three."""

    path: str
    size_bytes: int
    tensors: int
    buckets: int
    digest: str


class Learner(Protocol):
    """The holder of weights and optimizer. All calls are made one after another."""

    async def start(self, checkpoint: str | None) -> LearnerInfo:
        """Load the model, or everything from the checkpoint folder; return when a batch may come."""
        ...

    async def train(self, batch: TrainBatch) -> TrainResult:
        """Make one optimizer step. Raises `LearnerGone`. Not to be retried: cancelled, its effect is unknown."""
        ...

    async def publish(self, path: str) -> WrittenWeights:
        """Write the current weights to the safetensors file `path` for the engines; it need not survive a crash."""
        ...

    async def checkpoint(self, path: str) -> WrittenFile:
        """Write weights, optimizer and schedule to folder `path`, whole or not at all, and flush it.

        Raises `CheckpointError`.
        """
        ...

    async def close(self) -> None:
        """End the learner. Idempotent; never raises `PortError`."""
        ...


# Environments and data


@dataclass(frozen=True, slots=True)
class Message:
    """One message of a conversation."""

    role: Literal["system", "user", "assistant", "tool"]
    content: str


@dataclass(frozen=True, slots=True)
class Action:
    """What the policy answered in one turn."""

    text: str
    token_ids: Sequence[int]


@dataclass(frozen=True, slots=True)
class StepOutcome:
    """What an environment answers to an action: messages for the policy to read next, or the end."""

    messages: Sequence[Message] = ()
    done: bool = False


class Environment(Protocol):
    """The world of one trajectory; a fresh one is made for each."""

    async def reset(self, item: Mapping[str, Any], seed: int) -> Sequence[Message]:
        """Begin with dataset `item`; return the opening messages. `seed` differs between trajectories."""
        ...

    async def step(self, action: Action) -> StepOutcome:
        """Answer the policy's action."""
        ...

    async def reward(self) -> float:
        """Return the finite reward of the trajectory as it stands; called once, at its end."""
        ...


class HeldEnvironment(Environment, Protocol):
    """An environment that a worker holds. Cancelling a call of it cancels that call where it lives."""

    worker: str
    """Name of the worker."""

    def drop(self) -> None:
        """Let it go, whatever it is at. Idempotent, waits for nothing, and never raises.

        It may lie where it is until its holder is asked for something else.
        """
        ...


class EnvironmentFactory(Protocol):
    """Makes environments."""

    def __call__(self) -> Environment:
        """Return a fresh environment. Cheap: what is expensive belongs in `Environment.reset`."""
        ...


class EnvironmentWorker(Protocol):
    """A process that holds environments, so that their work is not the controller's."""

    name: str

    async def start(self) -> EnvironmentWorkerInfo:
        """Start, or start anew, and return when it can make environments. Raises `EnvironmentWorkerGone`."""
        ...

    def make(self) -> HeldEnvironment:
        """Return a fresh environment that lives in the worker, to be dropped by whoever asked for it.

        Its calls raise `EnvironmentFailed`, or `EnvironmentWorkerGone` once the worker has ended.
        """
        ...

    async def ping(self) -> None:
        """Return once the worker answers, which it does not while an environment blocks it.

        Raises `EnvironmentWorkerGone`.
        """
        ...

    async def close(self) -> None:
        """End the worker and what it holds. Idempotent; never raises `PortError`."""
        ...


@dataclass(frozen=True, slots=True)
class EnvironmentWorkerInfo:
    """What a worker says of itself once it is up."""

    node: str = ""
    pid: int | None = None


class PromptSource(Protocol):
    """A dataset of finite length, in a seeded order of its own for every epoch."""

    def __len__(self) -> int:
        """Return the number of items in one epoch."""
        ...

    def item(self, epoch: int, position: int) -> tuple[int, Mapping[str, Any]]:
        """Return ``(index, item)``: the dataset index at `position` of `epoch`'s order, and the item.

        The same arguments always give the same answer, in any process.
        """
        ...


class Renderer(Protocol):
    """Turns messages into tokens and back, with the model's own chat template."""

    stop_token_ids: Sequence[int]

    def opening(self, messages: Sequence[Message]) -> list[int]:
        """Return the ids of the opening messages, ready for the policy to write its first answer."""
        ...

    def reply(self, messages: Sequence[Message], *, after_stop: bool) -> list[int]:
        """Return the ids to append behind a sampled answer: its closing, `messages`, and the start of the next answer.

        `after_stop` says that the answer already ended with its stop token. Sampled ids are never touched.
        """
        ...

    def text(self, token_ids: Sequence[int]) -> str:
        """Return the text of sampled tokens, without special tokens."""
        ...


class Payloads(Protocol):
    """Where tokens and texts go; `eventrain.events.payload.PayloadStore` is the real one."""

    def put(self, data: bytes) -> PayloadRef:
        """Store `data`; it is on disk before the first event that names the reference."""
        ...

    def get(self, ref: PayloadRef) -> bytes:
        """Return what was stored. Raises when it is missing or damaged."""
        ...


class Artifacts(Protocol):
    """Names and removes the large files of a run: published weights and checkpoints."""

    def weights(self, version: int) -> str:
        """Return the path for weights `version`, relative to the run folder."""
        ...

    def checkpoint(self, step: int) -> str:
        """Return the path for the checkpoint before step `step`, relative to the run folder."""
        ...

    def absolute(self, path: str) -> str:
        """Return `path`, which is relative to the run folder, as the other ports need it."""
        ...

    def drop(self, path: str) -> None:
        """Remove a file or folder named by this port; missing is fine."""
        ...


@dataclass(slots=True)
class Ports:
    """Everything a run needs from outside, in one place."""

    clock: Clock
    engines: Sequence[Engine]
    learner: Learner
    environments: EnvironmentFactory
    prompts: PromptSource
    renderer: Renderer
    artifacts: Artifacts
    eval_prompts: PromptSource | None = None
    environment_workers: Sequence[EnvironmentWorker] = ()
    """Where environments live; none: in the controller, made by `environments`."""
    facts: Mapping[str, Any] = field(default_factory=dict)
    """What RunStarted says of the surroundings: ``code_version``, ``host``, ``pid``."""
