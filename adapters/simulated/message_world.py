"""A run at the level of messages: the shipped decisions, and an outside that answers in any order.

There is no event loop and no task: the state of the world is the fold of what was published, and the list of what was
asked of the outside and not answered yet. A *move* is one actor that looks at the state and publishes what is due, or
one answer from outside. Whoever holds the world chooses the next one: a tape (`director`) or all of them
(`exhaustive`). When no move is left and the run has not ended, it never will: nothing here has a deadline of last
resort that would hide it.

Decisions are the shipped ones: `collector.step`, `trainer.decide`, `engine_pool.step` and `route`,
`weight_sync.lagging`, the policy, and what each says that it waits for. What the shells do between two decisions (which
events surround a training step, what is cancelled with a group) is mirrored here and in `message_answers`, in the same
order; evaluations are one answer, and disk, clock and environment calls are left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ...core import collector, engine_pool, trainer
from ...core.config import RunConfig
from ...core.failures import RunFailure
from ...core.policies import Policy, policy_for
from ...core.projections import View
from ...core.projections.accounting import Ledger
from ...core.stalls import ASLEEP_S, Stall, verdict
from ...core.waits import Edge
from ...core.watchdog import due_actors
from ...core.weight_sync import lagging
from ...events.record import Record
from ...events.types import (
    BatchTaken,
    Blocked,
    CheckpointStarted,
    EvalStarted,
    Event,
    GroupDiscarded,
    GroupDispatched,
    GroupEvicted,
    GroupFailed,
    GroupFiltered,
    Phase,
    PhaseEntered,
    RetryScheduled,
    RunFailed,
    RunFinished,
    RunStarted,
    StepStarted,
)
from .faults import Fault
from .message_answers import cancel
from .message_attention import ASKED, Attention
from .message_ways import Asked, unknown_fault
from .scenario import Scenario
from .world import NumberedPrompts

Actor = str
ACTORS: tuple[Actor, ...] = ("trainer", "collector", "engine_pool")
"""In the plain order: who is asked first."""
GROUP_ENDS = (GroupFiltered, GroupFailed, GroupEvicted, GroupDiscarded)


@dataclass(frozen=True, slots=True)
class Setting:
    """What does not change while a world moves."""

    config: RunConfig
    policy: Policy
    source: NumberedPrompts
    engines: tuple[str, ...]
    faults: tuple[Fault, ...] = ()
    rewards: str = "mixed"
    """mixed, equal, every_third_equal or any, as in a scenario's world."""
    fine: bool = False
    """Whether an attempt's start, call and end are moves of their own, instead of two."""
    tick_ns: int = 0
    """Time that each published event takes; 0: time stands still."""


def setting(
    scenario: Scenario,
    *,
    evaluating: bool = False,
    policy: Policy | None = None,
    fine: bool = False,
    tick_ns: int = 0,
) -> Setting:
    """Return the setting of `scenario`; `policy` is used in place of the configured one.

    Raises ValueError where a fault has no meaning at this level.
    """
    for number, fault in enumerate(scenario.fault):
        why = unknown_fault(fault)
        if why:
            raise ValueError(f"fault[{number}]: at the level of messages {why}")
    config = scenario.run_config(evaluating=evaluating)
    return Setting(
        config,
        policy or policy_for(config),
        NumberedPrompts(config.data.size or 1),
        tuple(f"engine-{n}" for n in range(scenario.world.engines)),
        scenario.fault,
        scenario.world.rewards,
        fine,
        tick_ns,
    )


class MessageWorld:
    """The state of one run, and its moves; see the module."""

    def __init__(
        self,
        given: Setting,
        *,
        view: View | None = None,
        ledger: Ledger | None = None,
        attention: Attention = ASKED,
        log: list[Record] | None = None,
    ) -> None:
        self.given = given
        self.config = given.config
        self.view = view if view is not None else View()
        self.view.attempts.keep = given.config.failures.window
        self.ledger = ledger if ledger is not None else Ledger()
        self.log = log
        """Every record, where somebody wants them."""
        self.seq = 0
        self.mono = 0
        self.tick_ns = given.tick_ns
        self.unread: list[Actor] = []
        """Actors that have not looked at the state since the last event."""
        self.outside: list[Asked] = []
        self.kept_waiting: list[Asked] = []
        """Of the outside: what cannot go on before an engine serves."""
        self.busy = ""
        """What the trainer has asked for, and waits for."""
        self.pool_began = False
        self.failure: RunFailure | None = None
        self.faults_left = [fault.times if fault.times is not None else -1 for fault in given.faults]
        self.attention = attention
        """How the collector waits; the shipped way, but for doubles."""
        self.publish(
            "run",
            RunStarted(
                run=self.config.run.name,
                config=self.config.model_dump(mode="json"),
                code_version="",
                seed=self.config.run.seed,
                host="",
                pid=0,
                prompts=len(given.source),
                engines=len(given.engines),
            ),
        )

    @property
    def over(self) -> bool:
        """Whether the run has ended, well or not."""
        return self.view.trainer.outcome != ""

    def publish(self, actor: Actor, event: Event) -> None:
        """Append an event; it is folded at once."""
        mono = self.mono
        record = tuple.__new__(
            Record, (self.seq, mono, mono, actor, None, "", event)
        )  # half the time of Record()
        self.seq += 1
        self.mono = mono + self.tick_ns
        self.view.apply(record)
        self.ledger.apply(record)
        if self.log is not None:
            self.log.append(record)
        if self.attention is not ASKED:
            self.attention.hear(event)
        self.unread = ["collector", "engine_pool"] if self.busy else ["trainer", "collector", "engine_pool"]

    def rest(self) -> None:
        """Let the trainer go on: it has its answer."""
        self.busy = ""
        if "trainer" not in self.unread:
            self.unread.insert(0, "trainer")

    # Actors

    def look(self, actor: Actor) -> bool:
        """Let `actor` look at the state and publish what is due; return whether anything was."""
        try:
            if actor == "trainer":
                return not self.busy and self._trainer()
            if actor == "collector":
                return self.attention.awake() and self._collector()
            return self._engine_pool()
        except RunFailure as failure:
            self.fail(actor, failure)
            return True

    def _collector(self) -> bool:
        if self.attention is not ASKED and not self._attends():
            return True  # it did something else, on its way to look or to sleep
        decisions = collector.step(self.view, self.config, self.given.policy, self.given.source)
        for decision in decisions:
            self.publish("collector", decision)
            if isinstance(decision, GroupDispatched):
                number = decision.group
                self.outside += [
                    Asked("attempt", f"{number}/{index}", "ready", number) for index in range(decision.size)
                ]
            elif isinstance(decision, RetryScheduled):
                retry = Asked("attempt", decision.trajectory, "timer", decision.group, decision.attempt)
                self.outside.append(retry)
            elif isinstance(decision, GROUP_ENDS):
                self._cancel(decision.group)
        return bool(decisions)

    def _attends(self) -> bool:
        """Make one move of a double; return whether it is the look that found something to do."""
        looks = self.attention.looks()
        if looks:
            due = collector.step(self.view, self.config, self.given.policy, self.given.source)
            self.attention.found(bool(due))
            looks = bool(due)
        if self.attention.awake():
            self.unread.append("collector")
        return looks

    def _cancel(self, group: int) -> None:
        """End every attempt of `group` that still runs; what has not begun leaves no trace."""
        for asked in [one for one in [*self.outside, *self.kept_waiting] if one.group == group]:
            queue = self.outside if asked in self.outside else self.kept_waiting
            if self.given.fine and asked.stage not in ("ready", "timer"):
                asked.stage = "cancelled"
                if queue is self.kept_waiting:
                    queue.remove(asked)
                    self.outside.append(asked)
            else:
                queue.remove(asked)
                cancel(self, asked)

    def wake(self) -> None:
        """Let what waited for an engine go on: one serves."""
        self.outside += self.kept_waiting
        self.kept_waiting.clear()

    def _engine_pool(self) -> bool:
        if not self.pool_began:
            if self.view.trainer.published < 0:
                return False
            self.pool_began = True
            self._start(self.given.engines)
            return True
        restarts = engine_pool.step(self.view, self.config, len(self.given.engines))
        for restart in restarts:
            self.publish("engine_pool", restart)
        self._start([restart.engine for restart in restarts])
        return bool(restarts)

    def _start(self, engines: Sequence[str]) -> None:
        version = self.view.trainer.published
        self.outside += [Asked("engine_start", name, "starting", number=version) for name in engines]

    def _trainer(self) -> bool:
        view, config = self.view, self.config
        action = trainer.decide(view, config, self.given.policy)
        match action:
            case None:
                phase = trainer.phase_of_waiting(view, config)
                return phase is not None and self.enter(phase)
            case trainer.StartLearner():
                self.ask("learner_start")
            case trainer.Publish():
                if view.trainer.version > 0:
                    self.enter("weight_sync")
                self.ask("publish")
            case trainer.Sync():
                self.enter("weight_sync")
                self.busy = "sync"
                self.outside += [Asked("sync", name, "ready") for name in lagging(view)]
            case trainer.Evaluate():
                self.enter("eval")
                number, size = view.trainer.evals, config.eval.prompts
                self.publish(
                    "evaluation",
                    EvalStarted(
                        eval=number, step=view.trainer.step, version=view.trainer.published, trajectories=size
                    ),
                )
                self.ask("eval")
            case trainer.Checkpoint():
                self.enter("checkpoint")
                version = view.trainer.version
                self.publish("trainer", CheckpointStarted(step=version, version=version, path="checkpoint"))
                self.ask("checkpoint")
            case trainer.Take(step, groups):
                self.enter("converting")
                self.publish("trainer", BatchTaken(step=step, groups=groups))
                rows = sum(view.groups.live[number].size for number in groups)
                self.publish(
                    "trainer",
                    StepStarted(step=step, version=step, groups=len(groups), trajectories=rows, tokens=rows),
                )
                self.enter("training")
                self.ask("train")
            case trainer.Finish(outcome):
                self._finish(outcome)
        return True

    def enter(self, phase: Phase) -> bool:
        """Enter the phase, unless it is the trainer's already; return whether it was not."""
        if self.view.trainer.phase == phase:
            return False
        self.publish("trainer", PhaseEntered(phase=phase, step=self.view.trainer.step))
        return True

    def ask(self, what: str) -> None:
        """Ask the outside, on behalf of the trainer, who waits for it."""
        self.busy = what
        self.outside.append(Asked(what, "", "asked"))

    # The end

    def _finish(self, outcome: str) -> None:
        self.publish("trainer", PhaseEntered(phase="finished", step=self.view.trainer.step))
        self._give_up()
        version = self.view.trainer.version
        self.publish(
            "run",
            RunFinished.model_validate(
                {"outcome": outcome, "steps": version, "version": version, "seconds": 0}
            ),
        )

    def fail(self, actor: Actor, failure: RunFailure) -> None:
        """End the run: what runs is cancelled, and the last event says why."""
        self.failure = failure
        self._give_up()
        self.publish(
            "run",
            RunFailed(
                failed_actor=actor,
                error=failure.error,
                message=str(failure),
                first_cause=failure.first_cause,
            ),
        )

    def _give_up(self) -> None:
        asked, self.outside, self.kept_waiting = [*self.outside, *self.kept_waiting], [], []
        for one in asked:
            cancel(self, one)
        for event in collector.discard_in_flight(self.view):
            self.publish("collector", event)

    # The verdict

    def stall(self) -> Stall | None:
        """Return what the shipped watchdog says of this state, from which no move leads on.

        Publishes the Blocked events of everybody who waits, so the world is of no use after it.
        """
        waits: list[tuple[str, Edge]] = []
        view, config, policy = self.view, self.config, self.given.policy
        if not self.busy:
            waits.append(("trainer", trainer.wait_edge(view, config, policy)))
        waits.append(("collector", collector.wait_edge(view, config, policy)))
        count = len(self.given.engines)
        waits.append(("engine_pool", engine_pool.wait_edge(view, count)))
        none_serves = Edge("engine_available", "a serving engine", f"0/{count} serving")
        waits += [(asked.subject, none_serves) for asked in self.kept_waiting if asked.kind == "attempt"]
        for waiter, edge in waits:
            self.publish(
                waiter, Blocked(waiter=waiter, edge=edge.name, awaited=edge.awaited, present=edge.present)
            )
        due = due_actors(view, config, policy, self.given.source, count)
        now_ns = view.last_mono + round(ASLEEP_S * 1e9)
        return next(iter(verdict(view, config, now_ns, due=due, breaches=self.ledger.breaches)), None)
