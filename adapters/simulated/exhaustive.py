"""Every order of moves of a tiny world: no deadlock and no broken law, or the shortest way to one.

Breadth first, so the first way found is one of the shortest. A state that was reached before is not gone on from again
(`message_key`). A state without a move must be the end of the run. What comes out is a statement about this world, with
these faults at most so often, and about nothing larger.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator
from dataclasses import dataclass, field

from ...core.stalls import Stall
from ...events.record import Record
from .message_answers import answer, stop, stops
from .message_attention import ASKED, Attention
from .message_fork import SharedLedger, SharedView, fork
from .message_key import key
from .message_ways import EQUAL, PLAIN, can_answer, variants
from .message_world import ACTORS, MessageWorld, Setting

STATES_MAX = 2_000_000


@dataclass(frozen=True, slots=True)
class Move:
    """One move: an actor looks, the outside answers what was asked in place `place`, or the run is told to stop."""

    what: str
    """look, answer or stop."""
    actor: str = ""
    place: int = 0
    """Among everything outstanding; of a stop: the number of its rule."""
    way: int = PLAIN


@dataclass(frozen=True, slots=True)
class Counterexample:
    """The shortest way to a state that must not be."""

    law: str
    how: str
    moves: tuple[str, ...]
    """In words, first one first."""
    log: list[Record]
    stall: Stall | None = None


@dataclass(slots=True)
class Searched:
    """What a search saw."""

    states: int = 0
    transitions: int = 0
    depth: int = 0
    """Moves of the longest shortest way to any state."""
    outcomes: Counter[str] = field(default_factory=Counter)
    """Final states by how the run ended."""
    found: Counterexample | None = None
    whole: bool = True
    """Whether every state was seen; False when there are more than `states_max`."""


def search(
    given: Setting,
    *,
    outcomes: tuple[str, ...] = (),
    attention: Attention = ASKED,
    states_max: int = STATES_MAX,
) -> Searched:
    """Try every order of the moves of a world; with `outcomes`, the run must end as one of them."""
    searched = Searched()
    first = MessageWorld(given, view=SharedView(), ledger=SharedLedger(), attention=attention)
    ways: list[tuple[int, Move]] = [(-1, Move("look"))]  # how each state was reached first
    seen = {key(first)}
    ahead: deque[tuple[int, int, MessageWorld]] = deque([(0, 0, first)])
    while ahead:
        number, depth, world = ahead.popleft()
        searched.states, searched.depth = len(seen), depth
        moved = False
        for move, after in successors(world):
            moved = True
            searched.transitions += 1
            law = _broken(after, outcomes)
            if law is not None:
                searched.found = _told(given, attention, [*_way_to(ways, number), move], law)
                return searched
            state = key(after)
            if state in seen:
                continue
            if len(seen) >= states_max:
                searched.whole = False
                return searched
            seen.add(state)
            ways.append((number, move))
            if after.over:
                error = f" ({after.failure.error})" if after.failure is not None else ""
                searched.outcomes[after.view.trainer.outcome + error] += 1
            else:
                ahead.append((len(ways) - 1, depth + 1, after))
        if not moved:
            searched.found = _told(given, attention, _way_to(ways, number), ("never stalls", ""))
            return searched
    searched.states = len(seen)
    return searched


def successors(world: MessageWorld) -> Iterator[tuple[Move, MessageWorld]]:
    """Yield every move that changes something, and the world after it."""
    for actor in ACTORS:
        if actor == "trainer" and world.busy:
            continue
        after = fork(world)
        if after.look(actor):
            yield Move("look", actor), after
    for move in answers(world):
        after = fork(world)
        perform(after, move)
        yield move, after


def answers(world: MessageWorld) -> Iterator[Move]:
    """Yield what the outside can do; of trajectories of a group that are equally far only the first."""
    alike: set[tuple[object, ...]] = set()
    for place, asked in enumerate([*world.outside, *world.kept_waiting]):
        if not can_answer(world, asked):
            continue
        if asked.kind == "attempt":
            failures: tuple[int, ...] = ()
            group = world.view.groups.live.get(asked.group)
            if group is not None:
                failures = (group.engine_failures[asked.subject], group.prompt_failures[asked.subject])
            twin = (asked.group, asked.stage, asked.attempt, asked.engine, asked.number, failures)
            if twin in alike and not any(f.trajectory is not None for f in world.given.faults):
                continue
            alike.add(twin)
        for way in variants(world, asked):
            yield Move("answer", place=place, way=way)
    for number in stops(world):
        yield Move("stop", place=number)


def perform(world: MessageWorld, move: Move) -> None:
    """Make the move."""
    if move.what == "look":
        world.look(move.actor)
    elif move.what == "stop":
        stop(world, move.place)
    else:
        if move.place >= len(world.outside):
            world.wake()
        answer(world, world.outside[move.place], move.way)


def _broken(world: MessageWorld, outcomes: tuple[str, ...]) -> tuple[str, str] | None:
    """Return the law that the move broke, and how."""
    for breach in world.ledger.breaches:
        return "ledger", f"{breach.law}: expected {breach.expected}, found {breach.found}"
    outcome = world.view.trainer.outcome
    if outcomes and outcome and outcome not in outcomes:
        why = f": {world.failure}" if world.failure is not None else ""
        return "ends as it should", f"{outcome}{why}; expected {' or '.join(outcomes)}"
    return None


def _way_to(ways: list[tuple[int, Move]], number: int) -> list[Move]:
    moves: list[Move] = []
    while number > 0:
        number, move = ways[number]
        moves.append(move)
    return moves[::-1]


# A counterexample in words


def _told(given: Setting, attention: Attention, moves: list[Move], law: tuple[str, str]) -> Counterexample:
    """Make the moves again, in a world that keeps its log, and say what each was."""
    world = MessageWorld(given, attention=attention.fork(), log=[])
    words = []
    for move in moves:
        words.append(_in_words(world, move))
        perform(world, move)
    assert world.log is not None
    log = list(world.log)
    if law[0] != "never stalls":
        return Counterexample(*law, tuple(words), log)
    stall = world.stall()
    return Counterexample(law[0], stall.sentence if stall else "no move is left", tuple(words), log, stall)


def _in_words(world: MessageWorld, move: Move) -> str:
    if move.what == "look":
        return f"{move.actor} looks"
    if move.what == "stop":
        return "the run is asked to stop"
    asked = [*world.outside, *world.kept_waiting][move.place]
    if move.way >= 0:
        fault = world.given.faults[move.way]
        return f"{asked.subject or 'learner'}: {fault.where} {fault.what}"
    said = _SAID.get(asked.stage) or _SAID[asked.kind]
    equal = ", and the rewards of its group are equal" if move.way == EQUAL else ""
    return said.format(asked.subject) + equal


_SAID = {
    "timer": "trajectory {} begins again",
    "routing": "trajectory {} asks an engine",
    "calling": "trajectory {} is answered",
    "scoring": "trajectory {} completes",
    "cancelled": "trajectory {} ends as cancelled",
    "attempt": "trajectory {} begins",
    "engine_start": "{} has started",
    "loading": "{} has the weights",
    "sync": "{} is asked to take the weights",
    "learner_start": "the learner is up",
    "publish": "the weights are written",
    "train": "the step is trained",
    "eval": "the evaluation ends",
    "checkpoint": "the checkpoint is written",
}
"""What an ordinary answer is, by stage or else by kind."""
