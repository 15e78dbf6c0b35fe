"""The seeded director: one run at the level of messages, in an order that a tape picks.

Each step picks one of those who can move: an actor that has not looked since the last event, or somebody outside who
has been asked. Choice 0 is the plain order: actors first, then answers in the order in which they were asked for. The
same tape gives the same run. There is no loop and no task, so a step costs microseconds, and a seed that fails is
replayed by its tape alone.
"""

from __future__ import annotations

from dataclasses import dataclass

from ...core.stalls import Stall
from ...events.record import Record
from .message_answers import answer, stop, stops
from .message_attention import ASKED, Attention
from .message_ways import PLAIN, Asked, can_answer, variants
from .message_world import MessageWorld, Setting
from .tape import Tape

MOVES_MAX = 1_000_000
FAULT_ONE_IN = 8
"""Of the answers that a fault rule may strike, it strikes one in so many; `one_in` of the rule, where that is given."""


class Endless(Exception):
    """The world made more moves than it may: it is busy and gets nowhere."""


@dataclass(frozen=True, slots=True)
class Directed:
    """What became of one world."""

    outcome: str
    """Of the run; empty when it stalled."""
    error: str
    """Type of the failure, if it failed."""
    moves: int
    events: int
    stall: Stall | None
    """Why no move was left, if the run had not ended."""
    breaches: tuple[str, ...]
    log: list[Record] | None


def direct(
    given: Setting,
    tape: Tape,
    *,
    attention: Attention = ASKED,
    keep_log: bool = False,
    moves_max: int = MOVES_MAX,
) -> Directed:
    """Run one world to its end as `tape` says. Raises `Endless` after `moves_max` moves."""
    world = MessageWorld(given, attention=attention, log=[] if keep_log else None)
    draw, trainer = tape.draw, world.view.trainer
    choosing = bool(given.faults) or given.rewards == "any"
    moves = 0
    while not trainer.outcome:
        unread, outside = world.unread, world.outside
        actors = len(unread)
        choices = actors + len(outside)
        if not choices:
            break
        if moves >= moves_max:
            raise Endless(f"no end after {moves:,} moves")
        moves += 1
        choice = draw("schedule", choices)
        if choice < actors:
            world.look(unread.pop(choice))
            continue
        asked = outside[choice - actors]
        if not choosing:
            answer(world, asked)
        elif not _stopped(world, tape):
            answer(world, asked, _way(world, asked, tape))
    return _ended(world, moves)


def _stopped(world: MessageWorld, tape: Tape) -> bool:
    """Ask the run to stop, by chance, where a rule allows it; return whether that was this step's move."""
    for number in stops(world):
        if tape.happens("fault", max(world.given.faults[number].one_in, 20 * FAULT_ONE_IN)):
            stop(world, number)
            return True
    return False


def _way(world: MessageWorld, asked: Asked, tape: Tape) -> int:
    """Return how the outside answers: the usual way, or by chance another one."""
    if not can_answer(world, asked):
        return PLAIN
    for way in variants(world, asked)[1:]:
        one_in = FAULT_ONE_IN if way < 0 else max(world.given.faults[way].one_in, 1)
        if tape.happens("fault", one_in if one_in > 1 else FAULT_ONE_IN):
            return way
    return PLAIN


def _ended(world: MessageWorld, moves: int) -> Directed:
    breaches = tuple(
        f"{breach.law}: expected {breach.expected}, found {breach.found} (seq {breach.seq})"
        for breach in world.ledger.breaches
    )
    stall = None if world.over else world.stall()
    error = world.failure.error if world.failure is not None else ""
    return Directed(world.view.trainer.outcome, error, moves, world.seq, stall, breaches, world.log)
