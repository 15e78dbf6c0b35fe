"""The parts of the live view: panels with a cursor, the head, the slider. They draw what they are given."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar, Literal

from rich.text import Text
from textual.app import RenderResult
from textual.binding import Binding, BindingType
from textual.events import Resize
from textual.message import Message
from textual.widget import Widget

from ..cli.quantities import clock_time, number, seconds
from ..cli.status_report import LIFE_WORDS
from .drawing import Line, gauge, text
from .model import Shown
from .reading import Picture

Draw = Callable[[Shown, int, int], list[Line]]


class Panel(Widget, can_focus=True):
    """A framed list of lines. Up and down move its cursor over what can be opened, or scroll where nothing can."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up,k", "move(-1)", "up", show=False),
        Binding("down,j", "move(1)", "down", show=False),
        Binding("pageup", "move(-10)", "up", show=False),
        Binding("pagedown", "move(10)", "down", show=False),
        Binding("enter", "open", "open", show=False),
    ]

    class Opened(Message):
        """Enter was pressed on what can be opened."""

        def __init__(self, what: str) -> None:
            super().__init__()
            self.what = what

    def __init__(self, name: str, draw: Draw, title: Callable[[Shown], str] | None = None) -> None:
        super().__init__(id=name.replace(" ", "-"))
        self.border_title = name
        self._draw, self._title = draw, title
        self._shown: Shown | None = None
        self._lines: list[Line] = []
        self._top = 0
        self._titles: dict[str, str] = {}
        self.cursor = ""
        """What Enter opens."""

    def show(self, shown: Shown) -> None:
        """Draw `shown`."""
        self._shown = shown
        self._redraw()

    def on_resize(self, _: Resize) -> None:
        """Draw again for the new room."""
        self._redraw()

    def on_focus(self) -> None:
        """Show the cursor."""
        self.refresh()

    def on_blur(self) -> None:
        """Take the cursor away."""
        self.refresh()

    def _redraw(self) -> None:
        width, height = self.content_size
        if self._shown is None or width < 1 or height < 1:
            return
        if self._title is not None:
            self._entitle("border_title", self._title(self._shown))
        lines = self._draw(self._shown, width, height)
        changed = lines != self._lines
        self._lines = lines
        self._settle()
        if changed:
            self.refresh()

    def _settle(self) -> None:
        """Keep the cursor on what it stood on, or on the first that can be opened."""
        ids = [line.opens for line in self._lines if line.opens]
        if self.cursor not in ids:
            self.cursor = ids[0] if ids else ""
        height = max(1, self.content_size.height)
        self._top = min(self._top, max(0, len(self._lines) - height))
        left = len(self._lines) - height
        self._entitle("border_subtitle", f"{left} more" if left > 0 else "")

    def _entitle(self, place: Literal["border_title", "border_subtitle"], words: str) -> None:
        """Set a title where it changed: every setting of it draws the whole panel anew."""
        if self._titles.get(place) != words:
            self._titles[place] = words
            setattr(self, place, words)

    def action_move(self, by: int) -> None:
        """Move the cursor, or scroll."""
        height = max(1, self.content_size.height)
        places = [index for index, line in enumerate(self._lines) if line.opens]
        if len(places) > 1:
            here = next(i for i, place in enumerate(places) if self._lines[place].opens == self.cursor)
            place = places[min(max(here + by, 0), len(places) - 1)]
            self.cursor = self._lines[place].opens
            if place == places[0]:
                self._top = 0
            self._top = max(min(self._top, place), place - height + 1)
        else:
            self._top = min(max(self._top + by, 0), max(0, len(self._lines) - height))
        self.refresh()

    def action_open(self) -> None:
        """Ask for what the cursor stands on."""
        if self.cursor:
            self.post_message(self.Opened(self.cursor))

    def render(self) -> RenderResult:
        """Return the lines that there is room for."""
        height, width = self.content_size.height, self.content_size.width
        drawn = Text(no_wrap=True, overflow="ellipsis", end="")
        for index, line in enumerate(self._lines[self._top : self._top + height]):
            row = line.text.copy()
            row.truncate(width, overflow="ellipsis")
            if self.has_focus and line.opens and line.opens == self.cursor:
                row = Text(row.plain.ljust(width), "reverse")
            drawn.append("\n" if index else "").append_text(row)
        return drawn


class Row(Widget):
    """One line of text across the screen."""

    def __init__(self, name: str) -> None:
        super().__init__(id=name)
        self._text = Text()

    def show(self, words: Text) -> None:
        """Draw `words`."""
        if words != self._text:
            self._text = words
            self.refresh()

    @property
    def plain(self) -> str:
        """What is drawn, without colours."""
        return self._text.plain

    def render(self) -> RenderResult:
        """Return the line."""
        row = self._text.copy()
        row.truncate(self.content_size.width, overflow="ellipsis")
        return row


def head(now: Shown, width: int) -> Text:
    """Return the first line: the run, how it is, how far it has come, and how long the rest will take."""
    word, colour = LIFE_WORDS[now.life]
    if width < 110:
        word = word.partition(" (")[0]
    left = text((now.run, "bold"), "  ", (word, f"bold {colour}"), f"  step {now.step}/{now.steps_total} ")
    right = "" if now.pace_s is None else f" {seconds(now.pace_s)}/step"
    right += "" if now.eta_s is None else f"  ETA {seconds(now.eta_s)}"
    room = width - left.cell_len - len(right)
    share = now.step / now.steps_total if now.steps_total else 0.0
    return left.append_text(gauge(share, max(0, room), "green")).append(right)


def slider(picture: Picture, place: int, width: int) -> Text:
    """Return the time slider: where `place` (a seq) lies in the log, when that is, and whether it moves."""
    now, last = picture.shown, max(1, picture.last_seq)
    at, end = clock_time(now.at_ns), clock_time(picture.end_ns)
    if picture.following:
        state = text((" live " if now.life == "running" else " end  ", "bold reverse green"))
    elif picture.playing:
        state = text((f" ▶ {picture.playing:g}x ", "bold reverse yellow"))
    else:
        state = text((" past ", "bold reverse yellow"))
    room = width - len(at) - len(end) - state.cell_len - 3
    knob = round(min(place, last) / last * max(0, room - 1))
    line = state.append(f" {at} ", "bold")
    line.append("━" * knob, "blue").append("●", "bold blue")
    return line.append("─" * max(0, room - 1 - knob), "bright_black").append(f" {end}", "bright_black")


def foot(picture: Picture, width: int) -> Text:
    """Return the line about the log itself: how fast it grows, its last event, and who writes it."""
    now = picture.shown
    parts = [f"{number(round(now.rate, 1))} events/s", f"seq {now.seq}"]
    if picture.following and now.life == "running":
        parts.append(f"last event {seconds(now.silent_s)} ago")
    elif not picture.following:
        parts.append(f"of {picture.last_seq}")
    parts.append(f"{now.completed} trajectories")
    if now.resumed:
        parts.append("resumed once" if now.resumed == 1 else f"resumed {now.resumed} times")
    if now.host:
        parts.append(f"{now.host}, pid {now.pid}")
    return text(("  ".join(parts), "bright_black"))


KEYS = (
    ("←→", "past", 0),
    ("space", "play", 0),
    ("end", "live", 0),
    ("tab", "panels", 1),
    ("enter", "open", 2),
    ("/", "find", 0),
    ("s", "stalls", 0),
    ("?", "help", 0),
    ("q", "quit", 0),
)
"""Key, what it does, and from which kind of width on it is named: 0 always, else the wider the later."""


def keys(notice: str, width: int) -> Text:
    """Return the last line: what is wrong, or what the keys do."""
    if notice:
        return text((notice, "bold yellow"))
    for rank in (2, 1, 0):
        line = text()
        for key, does, needs in KEYS:
            if needs <= rank:
                line.append(f"{key} ", "bold").append(f"{does}  ", "bright_black")
        if line.cell_len <= width + 2:
            break
    return line
