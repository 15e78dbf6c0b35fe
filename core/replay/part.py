"""One part of a check: the decisions of one actor."""

from __future__ import annotations

from typing import ClassVar

from ...events.record import Record
from ...events.types import Event
from .scene import Scene


class Part:
    """Asked before each event that it `decides`, and after each event that one of its `actor` follows."""

    decides: ClassVar[tuple[type[Event], ...]] = ()
    actor: ClassVar[str] = ""
    """Empty: asked after each event."""

    def __init__(self, scene: Scene) -> None:
        self.scene = scene
        self.view = scene.view

    def before(self, record: Record) -> None:
        """Compare `record` with what the state before it asks for. Raises `Diverged`."""

    def after(self) -> None:
        """Compare what was decided on the state that is folded now. Raises `Diverged`."""
