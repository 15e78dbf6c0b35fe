"""How runs end, and how everything that was begun in them ends, also when what ends them is nobody's plan."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from worlds import World, config

from eventrain.adapters.simulated.disk import SimulatedDisk
from eventrain.adapters.simulated.virtual_time import run_virtual
from eventrain.adapters.simulated.world import SimulatedEnvironment
from eventrain.core.ports import Action, StepOutcome
from eventrain.core.projections import View
from eventrain.events.bus import Bus
from eventrain.events.record import Record
from eventrain.events.types import (
    Blocked,
    CheckpointFailed,
    DataExhausted,
    EvalCompleted,
    GroupDispatched,
    LearnerLost,
    PromptDrawn,
    RunFailed,
    RunFinished,
    StepFailed,
    TrajectoryFailed,
)


def test_a_cancelled_run_closes_everything_and_says_so() -> None:
    """Cancelling raises, and the last event of the log is RunFailed(cancelled)."""
    world = World(config(run={"steps": 50}))
    closed: list[str] = []

    async def close() -> None:
        closed.append("learner")

    world.learner.close = close  # type: ignore[method-assign]

    async def main() -> None:
        async with asyncio.TaskGroup() as tasks:
            running = tasks.create_task(world._go())
            await asyncio.sleep(7.5)
            running.cancel()

    seen: list[Record] = []

    class Everything:
        def apply(self, record: Record) -> None:
            seen.append(record)

    world.on_bus = lambda bus: bus.register(Everything()) and None
    run_virtual(main())
    world.bus.fold()
    assert closed == ["learner"]
    last = seen[-1].event
    assert isinstance(last, RunFailed)
    assert last.error == "cancelled"
    assert world.ledger.breaches == []


def test_an_error_while_closing_is_the_outcome_and_keeps_nothing_open() -> None:
    """One engine's close raises: the learner and the other engine are closed, the run says what happened."""
    world = World(engines=2)
    closed: list[str] = []

    async def broken() -> None:
        raise ValueError("no such process")

    async def slow(name: str) -> None:
        await world.clock.sleep(3)
        closed.append(name)

    world.pool[0].close = broken  # type: ignore[method-assign]
    world.pool[1].close = lambda: slow("engine-1")  # type: ignore[method-assign]
    world.learner.close = lambda: slow("learner")  # type: ignore[method-assign]
    world.go()
    assert sorted(closed) == ["engine-1", "learner"]
    (failed,) = world.events(RunFailed)
    assert (failed.failed_actor, failed.error, failed.message) == (
        "engine-0",
        "ValueError",
        "no such process",
    )


def test_a_close_that_hangs_expires_and_is_no_failure() -> None:
    """A process that does not end within close_s is left behind; the run is what it was."""
    world = World(config(deadlines={"close_s": 5}))

    async def hang() -> None:
        await asyncio.Event().wait()

    world.learner.close = hang  # type: ignore[method-assign]
    world.go()
    assert isinstance(world.log[-1].event, RunFinished)


def test_a_projection_that_fails_at_the_very_end_is_no_success() -> None:
    """A projection raises on an event after the trainer has finished: the run failed, and says with what."""

    class Picky:
        def apply(self, record: Record) -> None:
            if record.event.kind == "phase_entered" and record.event.phase == "finished":  # type: ignore[attr-defined]
                raise KeyError("finished")

    world = World(on_bus=lambda bus: bus.register(Picky()) and None)
    world.go()
    assert world.outcome is not None
    assert (world.outcome.outcome, world.outcome.error) == ("failed", "KeyError")


def test_a_learner_that_cannot_start_is_lost() -> None:
    """The log says LearnerLost with its words, and the run fails by it."""
    world = World(config(deadlines={"start_s": 30}))
    world.learner.start_s = 100
    world.go()
    (lost,) = world.records(LearnerLost)
    (failed,) = world.events(RunFailed)
    assert (failed.error, failed.first_cause) == ("learner_lost", lost.seq)


@pytest.mark.parametrize(("what", "kind"), [("train", StepFailed), ("checkpoint", CheckpointFailed)])
def test_what_another_failure_cuts_off_is_closed_in_the_log(what: str, kind: type[Any]) -> None:
    """The collector fails while the learner trains or saves: that step or checkpoint ends as cancelled."""
    world = World(config(checkpoint={"every_steps": 1}))

    async def slow(*_: Any) -> None:
        await world.clock.sleep(50)

    async def defect(*_: Any) -> None:
        raise ZeroDivisionError

    def arm(record: Record) -> bool:
        if record.event.kind == ("step_started" if what == "train" else "checkpoint_started"):  # type: ignore[attr-defined]
            world.pool[0].on_generate = defect
        return False

    world.stop_after = arm
    setattr(world.learner, f"on_{what}", slow)
    world.pool[0].seconds = lambda request: 1.0 + request.seed % 5
    world.go()
    assert world.outcome is not None
    assert world.outcome.error == "ZeroDivisionError"
    (ended,) = world.events(kind)
    assert getattr(ended, "outcome", "cancelled") == "cancelled"
    assert world.ledger.breaches == []


def test_an_evaluation_that_a_defect_ends_is_not_completed() -> None:
    """Its outcome is failed."""
    world = World(config(eval={"every_steps": 2, "prompts": 3}))

    async def defect(request: Any) -> None:
        if request.request.startswith("eval1"):
            raise ZeroDivisionError

    world.pool[0].on_generate = defect
    world.go()
    assert [event.outcome for event in world.events(EvalCompleted)] == ["completed", "failed"]
    assert {e.failure for e in world.events(TrajectoryFailed) if e.group is None} == {"defect"}


# What environments answer

ANSWERS: list[tuple[str, object, str]] = [
    ("reset", None, "an environment writes a sequence of Message, not None"),
    ("reset", ["hello"], "an environment writes a sequence of Message, not a list"),
    ("step", None, "step must return a StepOutcome, not None"),
    ("step", (1, 2), "step must return a StepOutcome, not a tuple"),
    ("step", StepOutcome(messages=[("user", "go")]), "writes a sequence of Message"),  # type: ignore[list-item]
    ("reward", "high", "the reward must be a finite number, not a str"),
    ("reward", float("nan"), "the reward must be a finite number, not nan"),
    ("reward", 10**400, "the reward must be a finite number, not 1000"),
]


@pytest.mark.parametrize(("call", "answer", "message"), ANSWERS)
def test_a_wrong_answer_of_an_environment_fails_its_trajectory_only(
    call: str, answer: object, message: str
) -> None:
    """What a user's code returns by mistake is a typed failure, and the message says what is wanted."""
    world = World(config(failures={"attempts_max": 1, "strikes_max": 1}))

    class Wrong(SimulatedEnvironment):
        def wrong(self, name: str) -> bool:
            return name == call and self._item["number"] == 2

        async def reset(self, item: Any, seed: int) -> Any:
            opening = await super().reset(item, seed)
            return answer if self.wrong("reset") else opening

        async def step(self, action: Action) -> Any:
            outcome = await super().step(action)
            return answer if self.wrong("step") else outcome

        async def reward(self) -> Any:
            score = await super().reward()
            return answer if self.wrong("reward") else score

    world.environment = lambda: Wrong(world.clock)
    world.go()
    assert world.outcome is not None
    assert world.outcome.outcome == "completed"
    failed = [event for event in world.events(TrajectoryFailed) if event.failure != "cancelled"]
    assert failed
    assert {event.failure for event in failed} == {"reward_error" if call == "reward" else "env_error"}
    assert all(message in event.message for event in failed)
    assert world.ledger.breaches == []


def test_a_reward_may_be_any_real_number() -> None:
    """A bool is one, and so is a number type of a library."""
    world = World(config(run={"steps": 1}))
    world.environment = lambda: SimulatedEnvironment(world.clock, score=lambda item, seed: seed % 2 == 0)
    world.go()
    assert world.outcome is not None
    assert world.outcome.outcome == "completed"


# The data


def test_the_end_of_the_data_counts_different_prompts() -> None:
    """A prompt that was drawn, given back and drawn again is one prompt."""
    world = World(
        config(
            run={"steps": 2},
            data={"size": 8},
            failures={"attempts_max": 1, "strikes_max": 3, "share_max": 1.0},
        )
    )

    async def broken(item: dict[str, int], seed: int, turn: int) -> None:
        if item["number"] == 1:
            raise RuntimeError("no such tool")

    world.environment = lambda: SimulatedEnvironment(world.clock, on_step=broken)
    world.go()
    assert len(world.events(PromptDrawn)) > 8
    exhausted = world.events(DataExhausted)[-1]
    assert exhausted.drawn == 8
    assert world.ledger.breaches == []


# The log that is behind


def test_nothing_is_dispatched_while_too_much_is_unsaved(monkeypatch: pytest.MonkeyPatch) -> None:
    """With more than log.unsaved_max events not on disk, groups wait for the disk, by name, and then go on."""

    class Disk:
        """Saves everything once every second of virtual time."""

        last = -1

        def start(self, on_durable: Any, on_error: Any) -> None:
            self.on_durable = on_durable
            self.loop = asyncio.get_running_loop()
            self.loop.call_later(1, self.save)

        def save(self) -> None:
            self.on_durable(self.last)
            self.loop.call_later(1, self.save)

        def append(self, record: Record) -> None:
            self.last = record.seq

        def hurry(self) -> None:
            pass

    monkeypatch.setattr("worlds.Bus", lambda clock: Bus(clock, Disk()))
    world = World(config(log={"unsaved_max": 5}))
    unsaved: list[int] = []

    class Watch(View):
        def apply(self, record: Record) -> None:
            if isinstance(record.event, GroupDispatched):
                unsaved.append(world.bus.unsaved)

    world.on_bus = lambda bus: bus.register(Watch()) and None
    world.go()
    assert world.outcome is not None
    assert world.outcome.outcome == "completed"
    waits = [r.event for r in world.records(Blocked) if r.actor == "collector"]
    assert any(wait.edge == "durable" for wait in waits)  # type: ignore[attr-defined]
    dispatches_at_once = 8 * 2  # a full window, each with its prompt
    assert max(unsaved) <= 5 + dispatches_at_once


def test_waiting_for_the_disk_does_not_feed_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """The events of the wait itself are unsaved, too: with a limit as small as theirs, groups start all the same."""
    disk = SimulatedDisk(lambda: 0.1)
    monkeypatch.setattr("worlds.Bus", lambda clock: Bus(clock, disk))
    world = World(
        config(
            run={"steps": 3},
            scheduler={"groups_per_step": 2, "max_staleness": 3, "policy": "windowed", "permits": 1},
            rollout={"group_size": 3, "max_turns": 1},
            engine={"sync_mode": "pause"},
            eval={"every_steps": 2, "prompts": 3},
            checkpoint={"every_steps": 1},
            log={"unsaved_max": 2},
        )
    )
    world.learner.seconds = 0.01
    world.pool[0].seconds = lambda request: 0.01
    world.go()
    assert world.outcome is not None
    assert world.outcome.outcome == "completed"
    assert len(world.events(Blocked)) < 500
