"""The choice tape: everything that a simulation leaves to chance, as lists of small numbers.

A choice is a number below a bound, and 0 always means the ordinary: asyncio's own order, the usual latency, no fault,
the plainest setting. So a failing run is made simpler by writing zeros. Each family of choices has a generator of its
own: one more draw of a latency does not reshuffle the schedule.
"""

from __future__ import annotations

import json
import random
from collections.abc import Mapping, Sequence
from typing import Literal, get_args

Family = Literal["schedule", "latency", "fault", "data"]
FAMILIES: tuple[Family, ...] = get_args(Family)
FORMAT = 1


class TapeInvalid(Exception):
    """The text is no tape that this version reads."""


class Tape:
    """Choices by family: drawn from `seed` and recorded, or with `recorded` played back.

    A played-back tape that is over goes on with zeros.
    """

    def __init__(self, seed: int = 0, recorded: Mapping[Family, Sequence[int]] | None = None) -> None:
        self.seed = seed
        self.values: dict[Family, list[int]] = {family: [] for family in FAMILIES}
        """What was chosen so far."""
        self._recorded = None if recorded is None else {f: tuple(recorded.get(f, ())) for f in FAMILIES}
        # Seeding with a text hashes it with SHA-512, the same on every Python.
        self._chance = {family: random.Random(f"{seed}/{family}").random for family in FAMILIES}

    def draw(self, family: Family, bound: int) -> int:
        """Return the next choice, from 0 to ``bound - 1``; a bound of 1 leaves nothing to choose or record."""
        if bound <= 1:
            return 0
        values = self.values[family]
        if self._recorded is None:
            value = int(self._chance[family]() * bound)
        else:
            recorded = self._recorded[family]
            value = min(recorded[len(values)], bound - 1) if len(values) < len(recorded) else 0
        values.append(value)
        return value

    def happens(self, family: Family, one_in: int) -> bool:
        """Return True once in `one_in` draws; choice 0 is no."""
        return self.draw(family, one_in) == one_in - 1 if one_in > 1 else True

    def twin(self) -> Tape:
        """Return a tape that has made the choices of this one, and goes on with the same ones."""
        twin = Tape(self.seed, self._recorded)
        for family, values in self.values.items():
            twin.values[family] = list(values)
            for _ in values:
                twin._chance[family]()
        return twin

    def replayed(self) -> Tape:
        """Return a tape that makes the choices of this one again."""
        return Tape(self.seed, self.values)


def tape_text(seed: int, values: Mapping[Family, Sequence[int]]) -> str:
    """Return a tape as JSON: for each family the choices that are not 0, by their place."""
    families = {f: {str(n): value for n, value in enumerate(values.get(f, ())) if value} for f in FAMILIES}
    return json.dumps({"tape": FORMAT, "seed": seed, **families}, indent=1) + "\n"


def read_tape(text: str) -> Tape:
    """Return the tape that `tape_text` wrote. Raises `TapeInvalid` when it is none."""
    try:
        table = json.loads(text)
        if table["tape"] != FORMAT:
            raise TapeInvalid(f"is a tape of format {table['tape']}; this version reads {FORMAT}")
        recorded: dict[Family, list[int]] = {}
        for family in FAMILIES:
            chosen = {int(place): int(value) for place, value in table.get(family, {}).items()}
            if any(place < 0 or value < 0 for place, value in chosen.items()):
                raise TapeInvalid(f"{family} has a negative number")
            recorded[family] = [chosen.get(place, 0) for place in range(max(chosen, default=-1) + 1)]
        return Tape(int(table["seed"]), recorded)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise TapeInvalid(f"is no tape: {type(error).__name__}: {error}") from None
