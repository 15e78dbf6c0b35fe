"""Tapes are written, read and made short."""

from __future__ import annotations

import pytest

from eventrain.adapters.simulated.shrink import shrink
from eventrain.adapters.simulated.tape import FAMILIES, Tape, TapeInvalid, read_tape, tape_text


def test_families_do_not_disturb_each_other() -> None:
    """One more draw of a latency leaves the schedule as it was."""
    plain, other = Tape(5), Tape(5)
    other.draw("latency", 100)
    assert [plain.draw("schedule", 9) for _ in range(50)] == [other.draw("schedule", 9) for _ in range(50)]


def test_a_tape_that_is_over_goes_on_with_zeros() -> None:
    """What a recorded tape does not say is ordinary; what is too large for its place is cut to it."""
    tape = Tape(0, {"fault": [3, 9]})
    assert [tape.draw("fault", 5) for _ in range(4)] == [3, 4, 0, 0]
    assert tape.values["fault"] == [3, 4, 0, 0]


def test_a_tape_is_read_as_it_was_written() -> None:
    """The text of a tape gives the same choices."""
    tape = Tape(7)
    drawn = {family: [tape.draw(family, 4) for _ in range(30)] for family in FAMILIES}
    again = read_tape(tape_text(7, tape.values))
    assert {family: [again.draw(family, 4) for _ in range(30)] for family in FAMILIES} == drawn
    assert again.seed == 7


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{}", '{"tape": 2}', '{"tape": 1, "seed": 0, "fault": {"-1": 2}}', '{"tape": 1, "fault": 3}'],
)
def test_what_is_no_tape_is_refused(text: str) -> None:
    """Anything else is refused in one line."""
    with pytest.raises(TapeInvalid):
        read_tape(text)


def test_shrinking_keeps_what_the_failure_needs() -> None:
    """Only the two choices that matter stay, and the zeros behind them go."""

    def fails(values) -> bool:
        fault, schedule = values["fault"], values["schedule"]
        return len(fault) > 40 and fault[40] >= 2 and len(schedule) > 3 and schedule[3] == 1

    values = {"fault": [3] * 100, "schedule": [1] * 100, "latency": [9] * 100, "data": []}
    short = shrink(values, fails)
    assert short == {"fault": [0] * 40 + [3], "schedule": [0, 0, 0, 1], "latency": [], "data": []}
