"""What the user sees while a run goes on: on a terminal a live panel below log lines, elsewhere JSON log lines.

It can neither slow the run nor stop it. Output goes through a thread (`UnblockingStream`), events come through a
lossy subscription, and what goes wrong here ends the view and is told once the run is over.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

from ...core.config import RunConfig
from ...core.projections import View
from ...events.bus import Bus
from ..logging import EventLogger, configure
from .unblocking_stream import UnblockingStream

if TYPE_CHECKING:
    from ..console import ProgressPanel

BEHIND_MAX = 4096
"""Records that log lines may lag behind the run; more are skipped."""

ABANDON_S = 0.2
"""How long a process that ends at once waits for its last output."""

STEP_LINES = 30
"""About so many step lines of a whole run are printed above the live panel."""


class Screen:
    """The view of one run; a context manager around it, whose exit waits for the last output."""

    def __init__(self, config: RunConfig, path: Path, *, debug: bool = False) -> None:
        self.failure: Exception | None = None
        """What ended the view early, if anything did."""
        self._config = config
        self._path = path
        self._debug = debug
        self._stream = UnblockingStream(sys.stderr)
        self._panel: ProgressPanel | None = None

    @property
    def on_terminal(self) -> bool:
        """Whether somebody can watch."""
        return self._stream.isatty() and os.environ.get("TERM") != "dumb"

    def __enter__(self) -> Screen:
        self._log_to(None if self.on_terminal else self._stream)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stream.close()
        self._log_to(None)

    def _log_to(self, stream: UnblockingStream | None) -> None:
        colors = self.on_terminal and "NO_COLOR" not in os.environ
        configure(human=self.on_terminal, colors=colors, debug=self._debug, stream=stream)

    async def show(self, bus: Bus, view: View, now_mono: Callable[[], int]) -> None:
        """Show the run, whose clock is `now_mono`, until the bus is closed.

        Cancelling takes the panel away. Neither touches the run.
        """
        lines = bus.subscribe("log_lines", lossy_after=BEHIND_MAX)
        try:
            async with AsyncExitStack() as stack:
                every = 1
                if self.on_terminal:
                    every = max(1, self._config.run.steps // STEP_LINES)
                    await self._open_panel(view, now_mono, stack)
                logger = EventLogger(step_every=every)
                async for batch in lines:
                    for record in batch:
                        logger.apply(record)
        except Exception as error:  # noqa: BLE001 - kept, and told when the run is over: a view never stops a run
            self.failure = error
        finally:
            lines.close()

    async def _open_panel(self, view: View, now_mono: Callable[[], int], stack: AsyncExitStack) -> None:
        from rich.console import Console  # here, as every other command starts faster without it

        from ..console import ProgressPanel, draw, live_panel

        self._panel = ProgressPanel(view, self._config, str(self._path), now_mono)
        console = Console(file=self._stream, force_terminal=True)  # type: ignore[arg-type]
        live = stack.enter_context(live_panel(self._panel, console))
        group = await stack.enter_async_context(asyncio.TaskGroup())
        drawing = group.create_task(draw(live), name="draw")
        stack.callback(drawing.cancel)

    def abandon(self) -> None:
        """Leave the terminal usable, for a process that ends at once."""
        if self._panel is not None:
            self._stream.write("\n\x1b[?25h")  # the live panel hides the cursor
        self._stream.close(ABANDON_S)

    def notice(self, text: str) -> None:
        """Show `text` from now on."""
        if self._panel is not None:
            self._panel.notice = text
        else:
            self._stream.write(f"{text}\n")
