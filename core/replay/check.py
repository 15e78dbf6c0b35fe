"""Check: every decision of a log is made again on the state that it was made on, and compared.

An actor decides on the newest folded state and publishes at once, so the log tells which state that was: `cause`
names its newest event, and between it and the decisions there is at most the end of the actor's own wait. The
beginning of a wait is a decision too: that nothing is due. So what should have been decided and was not is found
where its actor decides something else or goes to wait. At the end of a log nothing is demanded.

Once a decision has been compared the fold goes on with the one that is in the log, so later ones are judged on the
recorded history, also where some kinds are not compared.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from ...events.record import Record
from ...events.types import Event
from ..config import RunConfig
from ..policies import Policy
from .acting import CollectorCheck, EnvironmentPoolCheck, PoolCheck
from .ends import EndsCheck
from .scene import Diverged, Scene
from .training import TrainerCheck
from .verdict import Agreement, Divergence
from .watching import WatchdogCheck


def check(
    records: Iterable[Record],
    config: RunConfig | None = None,
    policy: Policy | None = None,
    ignore_kinds: Iterable[str] = (),
) -> Agreement | Divergence:
    """Make every decision of the log in `records` again; return that they agree, or the first that does not.

    `config` and `policy` take the place of the run's own. Decisions of `ignore_kinds` are not compared, neither
    recorded ones nor those that are due now. Raises `NotReplayable` for a log that does not begin with the start of
    a run.
    """
    scene = Scene(records, config, policy, ignore_kinds)
    parts = (
        CollectorCheck(scene),
        TrainerCheck(scene),
        PoolCheck(scene),
        EnvironmentPoolCheck(scene),
        WatchdogCheck(scene),
        EndsCheck(scene),
    )
    asked: dict[type[Event], list[Callable[[Record], None]]] = {
        event: [part.before for part in parts if event in part.decides]
        for event in {event for part in parts for event in part.decides}
    }
    fold, take, peek = scene.past.apply, scene.ahead.take, scene.ahead.peek
    after = {part.actor: part.after for part in parts if part.actor}
    always = [part.after for part in parts if not part.actor]
    try:
        while True:
            for look in always:
                look()
            record = peek()
            if record is None:
                return scene.agreement()
            if record.actor in after:
                after[record.actor]()
            take()
            for compare in asked.get(type(record.event), ()):
                compare(record)
            fold(record)
    except Diverged as diverged:
        return diverged.divergence
