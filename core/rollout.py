"""Rollouts: the trajectories of a group, each a conversation between an engine and an environment.

One task per attempt. It publishes everything that happens to it, and ends in exactly one TrajectoryCompleted or
TrajectoryFailed. What follows a failure is the collector's decision, not its own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from hashlib import blake2b
from itertools import count
from typing import Any, Literal, NamedTuple, TypeVar

from ..events.record import causing
from ..events.trajectory import Turn
from ..events.types import (
    EnvStepFinished,
    EnvStepStarted,
    GroupDispatched,
    Outcome,
    RetryScheduled,
    RewardScored,
    TrajectoryCompleted,
    TrajectoryFailed,
    TrajectoryStarted,
)
from . import answers
from .config import RunConfig
from .conversation import Conversation, joined
from .engine_pool import EnginePool
from .failures import (
    CANCELLED,
    Effect,
    Failure,
    TrajectoryAborted,
    defect,
    engine_failure,
    environment_failure,
    expiry_failure,
    one_line,
)
from .ports import (
    Action,
    Environment,
    EnvironmentFactory,
    GenerateRequest,
    Generation,
    Message,
    Payloads,
    PortError,
    Renderer,
)
from .tracing import TraceParents
from .waits import Expired, Waiter

T = TypeVar("T")
Call = Literal["reset", "step", "reward"]


class Job(NamedTuple):
    """What one attempt is to do."""

    trajectory: str
    group: int | None
    attempt: int
    item: Mapping[str, Any]
    seed: int
    temperature: float


@dataclass(slots=True)
class Times:
    """Seconds of a trajectory by what it waited for."""

    queue: float = 0.0
    llm: float = 0.0
    env_setup: float = 0.0
    env: float = 0.0
    reward: float = 0.0

    def sum(self) -> float:
        """Return their sum."""
        return self.queue + self.llm + self.env_setup + self.env + self.reward


class Rollouts:
    """Runs trajectories for the collector and for evaluations."""

    def __init__(
        self,
        config: RunConfig,
        environments: EnvironmentFactory,
        renderer: Renderer,
        pool: EnginePool,
        payloads: Payloads,
        trace_parents: TraceParents,
        waiter: Waiter,
    ) -> None:
        self.config = config
        self.environments = environments
        self.renderer = renderer
        self.pool = pool
        self.payloads = payloads
        self.trace_parents = trace_parents
        self.waiter = waiter
        self._items: dict[int, Mapping[str, Any]] = {}
        self._tasks: dict[int, set[asyncio.Task[None]]] = {}

    # Groups

    def start_group(
        self, group: GroupDispatched, item: Mapping[str, Any], cause: int, tasks: asyncio.TaskGroup
    ) -> None:
        """Start the first attempt at every trajectory of `group`."""
        self._items[group.group] = item
        for index in range(group.size):
            self._start(f"{group.group}/{index}", group.group, 0, 0.0, cause, tasks)

    def retry(self, retry: RetryScheduled, cause: int, tasks: asyncio.TaskGroup) -> None:
        """Start another attempt after its delay."""
        self._start(retry.trajectory, retry.group, retry.attempt, retry.delay_s, cause, tasks)

    def end_group(self, group: int) -> None:
        """Cancel every attempt of `group` that still runs (each publishes its own end), and forget its item."""
        self._items.pop(group, None)
        for task in self._tasks.get(group, ()):
            task.cancel()

    def _start(
        self, trajectory: str, group: int, attempt: int, delay_s: float, cause: int, tasks: asyncio.TaskGroup
    ) -> None:
        job = Job(
            trajectory,
            group,
            attempt,
            self._items[group],
            derived_seed(self.config.run.seed, trajectory, attempt),
            self.config.rollout.temperature,
        )
        with causing(cause, trajectory):
            task = tasks.create_task(self._attempt(job, delay_s), name=f"rollout {trajectory}+{attempt}")
        running = self._tasks.setdefault(group, set())
        running.add(task)

        def ended(task: asyncio.Task[None]) -> None:
            running.discard(task)
            if not running:
                self._tasks.pop(group, None)

        task.add_done_callback(ended)

    async def _attempt(self, job: Job, delay_s: float) -> None:
        if delay_s:
            await self.waiter.clock.sleep(delay_s)
        await self.run(job)

    # One trajectory

    async def run(self, job: Job) -> TrajectoryCompleted | TrajectoryFailed:
        """Run one attempt and return how it ended.

        Cancelling ends it with TrajectoryFailed(cancelled), and raises.
        """
        started = self.waiter.publish(
            TrajectoryStarted(trajectory=job.trajectory, group=job.group, attempt=job.attempt)
        )
        with causing(started.seq, job.trajectory):
            try:
                completed = await self._converse(job, started.mono)
            except TrajectoryAborted as aborted:
                return self._failed(job, aborted.failure)
            except asyncio.CancelledError:
                self._failed(job, CANCELLED)
                raise
            except BaseException as error:
                self._failed(job, defect(error))
                raise
            self.waiter.publish(completed)
            return completed

    def _failed(self, job: Job, failure: Failure) -> TrajectoryFailed:
        failed = TrajectoryFailed(
            trajectory=job.trajectory,
            group=job.group,
            attempt=job.attempt,
            failure=failure.kind,
            retryable=failure.retryable,
            blame=failure.blame,
            message=failure.message,
        )
        self.waiter.publish(failed)
        return failed

    async def _converse(self, job: Job, started_ns: int) -> TrajectoryCompleted:
        limits, times, talk = self.config.rollout, Times(), Conversation()
        environment = self._make(job)
        opening, times.env_setup = await self._ask(
            job, -1, "reset", lambda: environment.reset(job.item, job.seed), answers.messages
        )
        talk.read(rendered(self.renderer.opening, opening))
        stop_reason: Literal["done", "max_turns", "context_full"] = "max_turns"
        for turn in range(limits.max_turns):
            generation, llm_s = await self._generate(job, turn, talk)
            start = len(talk.ids)
            talk.write(generation)
            times.llm += llm_s
            times.queue += generation.queue_s
            text = self.renderer.text(generation.token_ids)
            ask = partial(environment.step, Action(text, generation.token_ids))
            answer, env_s = await self._ask(job, turn, "step", ask, answers.outcome)
            times.env += env_s
            talk.turns.append(
                Turn(
                    start,
                    len(generation.token_ids),
                    generation.finish_reason,
                    text,
                    [(message.role, message.content) for message in answer.messages],
                    generation.queue_s,
                    llm_s,
                    env_s,
                )
            )
            if answer.done:
                stop_reason = "done"
                break
            if turn + 1 == limits.max_turns:
                break
            after_stop = generation.finish_reason == "stop"
            reply = rendered(partial(self.renderer.reply, after_stop=after_stop), answer.messages)
            if len(talk.ids) + len(reply) >= limits.context_tokens:
                stop_reason = "context_full"
                break
            talk.read(reply)
        reward, times.reward = await self._ask(
            job, len(talk.turns), "reward", environment.reward, answers.reward
        )
        return self._completed(job, talk, times, list(opening), reward, stop_reason, started_ns)

    def _completed(
        self,
        job: Job,
        talk: Conversation,
        times: Times,
        opening: list[Message],
        reward: float,
        stop_reason: Literal["done", "max_turns", "context_full"],
        started_ns: int,
    ) -> TrajectoryCompleted:
        self.waiter.publish(RewardScored(trajectory=job.trajectory, reward=reward))
        payload = self.payloads.put(talk.payload(opening, reward).encode())
        sampled = sum(talk.sampled)
        return TrajectoryCompleted(
            trajectory=job.trajectory,
            group=job.group,
            attempt=job.attempt,
            turns=len(talk.turns),
            prompt_tokens=len(talk.ids) - sampled,
            completion_tokens=sampled,
            version_spans=tuple(talk.spans),
            reward=reward,
            stop_reason=stop_reason,
            queue_s=times.queue,
            llm_s=times.llm,
            env_setup_s=times.env_setup,
            env_s=times.env,
            reward_s=times.reward,
            other_s=max(0.0, self.waiter.elapsed_s(started_ns) - times.sum()),
            payload=payload,
        )

    def _make(self, job: Job) -> Environment:
        try:
            return self.environments()
        except Exception as error:
            raise TrajectoryAborted(environment_failure("env_reset", error)) from error

    async def _generate(self, job: Job, turn: int, talk: Conversation) -> tuple[Generation, float]:
        """Return the answer of one turn and its seconds; an answer that a weight sync cut off is taken up again."""
        limits = self.config.rollout
        wanted = min(limits.max_tokens, max(1, limits.context_tokens - len(talk.ids)))
        answer, seconds = await self._call(job, turn, 0, talk.ids, wanted)
        for part in count(1):
            if answer.finish_reason != "abort":
                break
            left = wanted - len(answer.token_ids)
            if left <= 0:
                answer = replace(answer, finish_reason="length")
                break
            rest, more_s = await self._call(job, turn, part, [*talk.ids, *answer.token_ids], left)
            answer, seconds = joined(answer, rest), seconds + more_s
        return answer, seconds

    async def _call(
        self, job: Job, turn: int, part: int, ids: list[int], max_tokens: int
    ) -> tuple[Generation, float]:
        suffix = (f"+{job.attempt}" if job.attempt else "") + (f".{part}" if part else "")
        request = GenerateRequest(
            request=f"{job.trajectory}/{turn}{suffix}",
            prompt_ids=tuple(ids),
            max_tokens=max_tokens,
            temperature=job.temperature,
            top_p=self.config.rollout.top_p,
            stop_token_ids=self.renderer.stop_token_ids,
            seed=derived_seed(job.seed, "turn", turn, *([part] if part else [])),
            trace_parent=self.trace_parents.of_call(job.trajectory, job.group, job.attempt, turn, part),
        )
        return await self.pool.generate(request, job.trajectory, turn, part)

    async def _ask(
        self,
        job: Job,
        turn: int,
        call: Call,
        work: Callable[[], Awaitable[object]],
        checked: Callable[[object], T],
    ) -> tuple[T, float]:
        """Ask the environment, with its deadline; return its answer, checked, and the seconds it took."""
        effect, limit_s = self._limit(call)
        started = self.waiter.publish(EnvStepStarted(trajectory=job.trajectory, turn=turn, call=call))

        def finished(outcome: Outcome, message: str = "", done: bool = False) -> float:
            seconds = self.waiter.elapsed_s(started.mono)
            self.waiter.publish(
                EnvStepFinished(
                    trajectory=job.trajectory,
                    turn=turn,
                    call=call,
                    outcome=outcome,
                    seconds=seconds,
                    done=done,
                    message=message,
                ),
                cause=started.seq,
            )
            return seconds

        try:
            answer = checked(await self.waiter.bounded(effect, job.trajectory, limit_s, work()))
        except Expired as expired:
            finished("expired", str(expired))
            raise TrajectoryAborted(expiry_failure(effect, limit_s)) from None
        except asyncio.CancelledError:
            finished("cancelled")
            raise
        except Exception as error:
            finished("failed", one_line(error))
            raise TrajectoryAborted(environment_failure(effect, error)) from error
        return answer, finished("completed", done=bool(getattr(answer, "done", False)))

    def _limit(self, call: Call) -> tuple[Effect, float]:
        deadlines = self.config.deadlines
        if call == "reset":
            return "env_reset", deadlines.env_reset_s
        if call == "step":
            return "env_step", deadlines.env_step_s
        return "reward", deadlines.reward_s


def rendered(render: Callable[[Sequence[Message]], list[int]], messages: Sequence[Message]) -> list[int]:
    """Return the ids of `messages`; a template that refuses them fails the trajectory, and its prompt for good."""
    try:
        return render(messages)
    except PortError as error:
        raise TrajectoryAborted(engine_failure(error)) from error


def derived_seed(*parts: object) -> int:
    """Return a seed of 63 bits that depends on all of `parts` and on nothing else."""
    text = "\x1f".join(map(str, parts)).encode()
    return int.from_bytes(blake2b(text, digest_size=8).digest(), "little") >> 1
