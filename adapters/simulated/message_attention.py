"""How an actor of a message-level world comes to look at the state.

The shipped actors are asked again after every event, as `Waiter.until` does. A double may do it otherwise (with a flag,
say) and sleep through what it waits for.
"""

from __future__ import annotations

from collections.abc import Hashable

from ...events.types import Event


class Attention:
    """The shipped way: awake after every event, and every move is a look."""

    def awake(self) -> bool:
        """Return whether the actor can move at all."""
        return True

    def hear(self, event: Event) -> None:
        """Take note of an event that was published."""

    def looks(self) -> bool:
        """Make one move; return whether it is the look at the state."""
        return True

    def found(self, anything: bool) -> None:
        """Learn whether the look found something to do."""

    def fork(self) -> Attention:
        """Return a copy that goes on by itself."""
        return self

    def key(self) -> Hashable:
        """Return all that it will go on by."""
        return None


ASKED = Attention()
