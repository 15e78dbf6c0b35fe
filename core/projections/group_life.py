"""Which trajectories a group has: the part of the ledger that counts them one by one, for every group in flight.

A group that is buffered or filtered is whole: of its trajectories those are complete that were not dropped, and
these are never fewer than the floor. A trajectory is dropped once, after its last attempt. What still runs of a group
that has ended is cancelled with it: none of its trajectories is complete later.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from ...events.types import (
    Event,
    GroupBuffered,
    GroupDiscarded,
    GroupDispatched,
    GroupEvicted,
    GroupFailed,
    GroupFiltered,
    RunResumed,
    RunStarted,
    TrajectoryCompleted,
    TrajectoryDropped,
    TrajectoryFailed,
    TrajectoryStarted,
)

Found = tuple[str, str, str]
"""Law, what it expects, what was found."""

_OF_TRAJECTORIES = (TrajectoryStarted, TrajectoryCompleted, TrajectoryFailed, TrajectoryDropped)
_ENDS = (GroupFailed, GroupEvicted, GroupDiscarded)
ENTERED = {RunStarted, RunResumed, GroupDispatched, *_OF_TRAJECTORIES, GroupBuffered, GroupFiltered, *_ENDS}
"""Events that `GroupLife.breach` reads; on all others it need not be asked."""


@dataclass(slots=True)
class Members:
    """The trajectories of one group in flight."""

    size: int
    complete: set[str] = field(default_factory=set)
    dropped: set[str] = field(default_factory=set)
    running: set[str] = field(default_factory=set)


@dataclass
class GroupLife:
    """The trajectories of groups in flight."""

    in_flight: dict[int, Members] = field(default_factory=dict)
    floor: int | None = None

    def breach(self, event: Event) -> Found | None:
        """Enter `event`, and return the law that it breaks, None if it breaks none."""
        match event:
            case RunStarted():
                self.floor = event.config.get("rollout", {}).get("group_floor")
            case RunResumed():
                if event.config is not None:
                    self.floor = event.config.get("rollout", {}).get("group_floor")
                for group in self.in_flight.values():
                    group.running.clear()  # gone with their process
            case GroupDispatched():
                self.in_flight[event.group] = Members(event.size)
            case TrajectoryStarted() | TrajectoryCompleted() | TrajectoryFailed() | TrajectoryDropped():
                members = self.in_flight.get(-1 if event.group is None else event.group)
                if members is not None:
                    return _entered(members, event)
                if isinstance(event, TrajectoryDropped):
                    return "trajectory", "a group in flight", f"{event.trajectory} was dropped without one"
                if isinstance(event, TrajectoryCompleted) and event.group is not None:
                    return "trajectory", "a group in flight", f"{event.trajectory} is complete without one"
            case GroupBuffered() | GroupFiltered():
                members = self.in_flight.pop(event.group, None)
                return None if members is None else self._whole(event, members)
            case GroupFailed() | GroupEvicted() | GroupDiscarded():
                self.in_flight.pop(event.group, None)
        return None

    def _whole(self, event: GroupBuffered | GroupFiltered, members: Members) -> Found | None:
        whole, need = len(members.complete), members.size - len(members.dropped)
        said = event.trajectories if isinstance(event, GroupBuffered) else whole
        floor = min(self.floor or members.size, members.size)
        if whole != need or said != whole:
            found = f"group {event.group} has {whole}" + (f" and says {said}" if said != whole else "")
            return "groups", f"{need} complete trajectories", found
        if whole < floor:
            return "floor", f"at least {floor} complete trajectories", f"group {event.group} has {whole}"
        return None


def _entered(
    members: Members, event: TrajectoryStarted | TrajectoryCompleted | TrajectoryFailed | TrajectoryDropped
) -> Found | None:
    name = event.trajectory
    match event:
        case TrajectoryStarted():
            members.running.add(name)
            if name in members.dropped:
                return "trajectory", "no attempt at one that was dropped", name
        case TrajectoryCompleted():
            members.running.discard(name)
            members.complete.add(name)
        case TrajectoryFailed():
            members.running.discard(name)
        case TrajectoryDropped():
            states = (("running", members.running), ("complete", members.complete), ("dropped", members.dropped))
            found = next((state for state, names in states if name in names), "")
            members.dropped.add(name)
            if found:
                return "trajectory", "dropped once, after the last attempt", f"{name} was {found}"
    return None
