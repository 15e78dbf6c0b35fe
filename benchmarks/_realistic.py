"""Events as a run makes them: the twelve kinds that are most of a log, in the shares of a multi-turn run."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from random import Random

from eventrain.events import Record
from eventrain.events.types import (
    Blocked,
    EnvStepFinished,
    EnvStepStarted,
    Event,
    GroupBuffered,
    GroupDispatched,
    LlmCallFinished,
    LlmCallStarted,
    PhaseEntered,
    PromptDrawn,
    RewardScored,
    TrajectoryStarted,
    Unblocked,
)

Make = Callable[[], Event]


def plans(count: int, seed: int = 0) -> list[Make]:
    """Return `count` thunks, each of which constructs (and so validates) one event of a plausible run."""
    choose = Random(seed)
    stream = _stream(choose)
    return [next(stream) for _ in range(count)]


def _stream(choose: Random) -> Iterator[Make]:
    group = 0
    while True:
        group += 1
        yield from _group(choose, group)


def _group(choose: Random, group: int) -> Sequence[Make]:
    """Return the events of one group of eight trajectories, interleaved as they would be."""
    version, target = group // 8, group // 8 + 1
    made: list[Make] = [
        lambda: PromptDrawn(prompt=group, epoch=0, index=group * 7919 % 10007),
        lambda: GroupDispatched(group=group, prompt=group, target=target, version=version, size=8),
    ]
    lanes = [_trajectory(choose, f"{group}/{number}", group, version) for number in range(8)]
    while lanes:
        lane = choose.choice(lanes)
        made.append(lane.pop(0))
        if not lane:
            lanes.remove(lane)
    mean = round(choose.random(), 6)
    made.append(
        lambda: GroupBuffered(group=group, target=target, trajectories=8, reward_mean=mean, reward_std=0.25)
    )
    if group % 8 == 0:
        made += [
            lambda: Blocked(waiter="trainer", edge="buffer_ready", awaited=f"step:{target}", present="7 of 8"),
            lambda: PhaseEntered(phase="training", step=target),
            lambda: Unblocked(waiter="trainer", edge="buffer_ready", blocked=group, outcome="ready", seconds=1.5),
        ]
    return made


def _trajectory(choose: Random, trajectory: str, group: int, version: int) -> list[Make]:
    made: list[Make] = [lambda: TrajectoryStarted(trajectory=trajectory, group=group)]
    engine = f"engine-{choose.randrange(2)}"
    prompt = choose.randrange(40, 200)
    for turn in range(choose.randrange(1, 5)):
        made += _turn(choose, trajectory, turn, engine, prompt + 30 * turn, version)
    reward = float(choose.random() < 0.5)
    made.append(lambda: RewardScored(trajectory=trajectory, reward=reward))
    return made


def _turn(choose: Random, trajectory: str, turn: int, engine: str, prompt: int, version: int) -> list[Make]:
    tokens = choose.randrange(4, 400)
    llm_s, queue_s, env_s = (round(choose.expovariate(rate), 6) for rate in (1.0, 20.0, 50.0))
    return [
        lambda: LlmCallStarted(
            trajectory=trajectory, turn=turn, engine=engine, prompt_tokens=prompt, max_tokens=512
        ),
        lambda: LlmCallFinished(
            trajectory=trajectory, turn=turn, engine=engine, outcome="completed", tokens=tokens,
            version_spans=((version, tokens),), queue_s=queue_s, seconds=llm_s, finish_reason="stop",
        ),
        lambda: EnvStepStarted(trajectory=trajectory, turn=turn),
        lambda: EnvStepFinished(
            trajectory=trajectory, turn=turn, outcome="completed", seconds=env_s, done=turn == 3
        ),
    ]  # fmt: skip


class SystemClock:
    """The machine's own clocks."""

    def __init__(self) -> None:
        import time

        self.utc_ns = time.time_ns
        self.mono_ns = time.monotonic_ns


class KindCounter:
    """A small real fold: events per kind."""

    def __init__(self) -> None:
        self.counts: dict[str, int] = {}

    def apply(self, record: Record) -> None:
        """Count the event."""
        kind = record.event.kind  # type: ignore[attr-defined]
        self.counts[kind] = self.counts.get(kind, 0) + 1


class OpenCalls:
    """A small real fold: LLM calls in flight per engine."""

    def __init__(self) -> None:
        self.open: dict[str, set[tuple[str, int]]] = {}

    def apply(self, record: Record) -> None:
        """Add a started call, take an ended one away."""
        event = record.event
        if type(event) is LlmCallStarted:
            self.open.setdefault(event.engine, set()).add((event.trajectory, event.turn))
        elif type(event) is LlmCallFinished:
            self.open.get(event.engine, set()).discard((event.trajectory, event.turn))


class SecondsByActor:
    """A small real fold: seconds spent in engines and environments."""

    def __init__(self) -> None:
        self.llm_s = 0.0
        self.env_s = 0.0

    def apply(self, record: Record) -> None:
        """Add the seconds of an ended call."""
        event = record.event
        if type(event) is LlmCallFinished:
            self.llm_s += event.seconds
        elif type(event) is EnvStepFinished:
            self.env_s += event.seconds


class Rewards:
    """A small real fold: number and sum of rewards, and the groups that are complete."""

    def __init__(self) -> None:
        self.count = 0
        self.total = 0.0
        self.groups: set[int] = set()

    def apply(self, record: Record) -> None:
        """Take a reward or a buffered group."""
        event = record.event
        if type(event) is RewardScored:
            self.count += 1
            self.total += event.reward
        elif type(event) is GroupBuffered:
            self.groups.add(event.group)
