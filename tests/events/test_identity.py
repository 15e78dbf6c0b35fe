"""What a trajectory's name says."""

from __future__ import annotations

import pytest

from eventrain.events.identity import group_of, is_evaluation


@pytest.mark.parametrize(
    ("name", "group", "evaluation"),
    [
        ("57/3", 57, False),
        ("0/0", 0, False),
        ("eval4/0", None, True),
        ("eval12/31", None, True),
        ("eval/0", None, False),
        ("evaluation", None, False),
        ("trainer", None, False),
        ("57", None, False),
    ],
)
def test_a_name_says_to_what_a_trajectory_belongs(name: str, group: int | None, evaluation: bool) -> None:
    """To a group by its number, to an evaluation by its, and names of others belong to neither."""
    assert group_of(name) == group
    assert is_evaluation(name) is evaluation
