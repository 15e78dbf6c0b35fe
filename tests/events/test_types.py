"""What stands beside the events: names of their parts."""

from __future__ import annotations

from eventrain.events.types import TRAJECTORY_PARTS, PayloadRef, TrajectoryCompleted, part_seconds


def test_the_parts_of_a_trajectory_are_all_its_times() -> None:
    """Each has a field of its name, none is forgotten, and their seconds come in their order."""
    times = {f"{part}_s": 2.0**place for place, part in enumerate(TRAJECTORY_PARTS)}
    event = TrajectoryCompleted(
        trajectory="57/3",
        group=57,
        attempt=0,
        turns=1,
        prompt_tokens=5,
        completion_tokens=7,
        version_spans=(),
        reward=1.0,
        stop_reason="done",
        payload=PayloadRef(digest="", length=0, pack=0, offset=0),
        **times,
    )
    assert {name for name in TrajectoryCompleted.model_fields if name.endswith("_s")} == set(times)
    assert part_seconds(event) == tuple(times.values())
