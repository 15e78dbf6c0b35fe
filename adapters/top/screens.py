"""The screens over the board: one group or trajectory, the stalls, a question for an id, the keys."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import ClassVar

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.screen import ModalScreen, Screen
from textual.widgets import Input, Static
from textual.worker import Worker, WorkerState

from ..cli.failures import expected_failure
from .drawing import Line, text
from .model import Shown
from .widgets import Panel, Row

HELP = """\
Time
  left, right            1 % of the log back or on; with shift 10 %
  ,  .                   one event back or on
  [  ]                   to the end of the training step before or after
  home, end              the first event; the end, which is followed
  space                  play the past, or stop it
  +  -                   twice, half as fast

Panels
  tab, shift+tab         the next panel, the one before
  up, down               its cursor, or scroll it
  enter                  open the group, trajectory or stall at the cursor
  / or g                 open the group (57) or trajectory (57/3, eval0/2) that you type
  s                      all stalls, with their chains
  esc                    back
  q                      quit

Marks
  targets                █ buffered  ▒ in flight  · missing
  engines                v3→4 takes new weights  2↻ restarted twice

The view reads the log and nothing else; the run does not know of it.
"""
_TRAJECTORY = re.compile(r"\s*((?:eval)?\d+/\d+)\s")
_BACK: list[BindingType] = [
    Binding("escape,backspace,q", "back", "back"),
]


class Lines(Panel):
    """A panel of lines that were made by a command."""

    def __init__(self, lines: Sequence[str] = ()) -> None:
        super().__init__("lines", lambda _shown, _width, _height: [])
        self._said = [Text(line) for line in lines]

    def put(self, lines: Sequence[str]) -> None:
        """Show `lines`, which may hold ANSI colours. A line that begins with a trajectory opens it."""
        self._said = [Text.from_ansi(line) for line in lines]
        self._top, self.cursor = 0, ""
        self._redraw()

    @property
    def plain(self) -> list[str]:
        """The lines without colours."""
        return [line.plain for line in self._said]

    def show(self, shown: Shown) -> None:
        """Do nothing: what a command made stays as it is."""

    def _redraw(self) -> None:
        width = self.content_size.width
        self._lines = []
        for said in self._said:
            found = _TRAJECTORY.match(said.plain)
            wide = 0 < width < said.cell_len
            rows = said.wrap(self.app.console, width) if wide else [said.copy()]
            self._lines += [
                Line(row, found[1] if found and not index else "") for index, row in enumerate(rows)
            ]
        self._settle()
        self.refresh()


class Told(Screen[None]):
    """What a command tells, read in a thread while the screen says so."""

    BINDINGS: ClassVar[list[BindingType]] = [*_BACK, Binding("r", "again", "read again")]

    def __init__(self, title: str, read: Callable[[], list[str]]) -> None:
        super().__init__()
        self._words, self._read = title, read
        self.lines = Lines([f"reading the log for {title} ..."])
        self._last = Row("told-keys")

    def compose(self) -> ComposeResult:
        """Lay out the lines."""
        self.lines.border_title = self._words
        yield self.lines
        yield self._last

    def on_mount(self) -> None:
        """Begin to read."""
        self._last.show(
            text(
                ("esc ", "bold"),
                ("back  ", "bright_black"),
                ("r ", "bold"),
                ("read again  ", "bright_black"),
                ("enter ", "bold"),
                ("open", "bright_black"),
            )
        )
        self.lines.focus()
        self.action_again()

    def action_again(self) -> None:
        """Read what the log says by now."""
        self.run_worker(self._reading, thread=True, exclusive=True, exit_on_error=False)

    def _reading(self) -> list[str]:
        try:
            return self._read()
        except Exception as error:
            expected = expected_failure(error)
            if expected is None:
                raise
            return list(expected.lines)

    def on_worker_state_changed(self, event: Worker.StateChanged) -> None:
        """Show what was read."""
        if event.state is WorkerState.SUCCESS and event.worker.result is not None:
            self.lines.put(event.worker.result)
        elif event.state is WorkerState.ERROR:
            self.lines.put([f"{type(event.worker.error).__name__}: {event.worker.error} (a defect)"])

    def action_back(self) -> None:
        """Leave."""
        self.dismiss(None)


class Ask(ModalScreen[str]):
    """A question for an id."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "back", "back")]

    def compose(self) -> ComposeResult:
        """Lay out the question."""
        with Vertical(id="ask"):
            yield Static(
                "group (57), trajectory (57/3, eval0/2), or a point of the log (@978, @step:9, @0:05:00)"
            )
            yield Input(placeholder="57/3")

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Leave with what was typed."""
        self.dismiss(event.value.strip())

    def action_back(self) -> None:
        """Leave without one."""
        self.dismiss("")


class Help(ModalScreen[None]):
    """What the keys do."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,q,question_mark,enter", "back", "back")]

    def compose(self) -> ComposeResult:
        """Lay out the keys."""
        words = Static(HELP, id="help", markup=False)
        words.border_title = "keys"
        yield words

    def action_back(self) -> None:
        """Leave."""
        self.dismiss(None)
