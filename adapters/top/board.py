"""The one screen of the live view: its panels, its keys, and the slider through the past."""

from __future__ import annotations

import re
from functools import partial
from typing import ClassVar

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Container
from textual.events import Resize
from textual.message import Message
from textual.screen import Screen

from ..cli.points import End, Point, Seq, parse_point
from .drawing import (
    engine_lines,
    flying_lines,
    flying_title,
    gauge,
    group_lines,
    part_lines,
    reward_lines,
    stall_lines,
    text,
    trainer_lines,
)
from .reading import Folding, Picture, Reading, StepFrom, Waiting
from .screens import Ask, Help
from .widgets import Panel, Row, foot, head, keys, slider

SHARE = 100
"""The slider moves by one of so many parts of the log."""
SPEED_MIN, SPEED_MAX = 2.0**-3, 2.0**14
STALL_LINES, STALL_LINES_SHORT = 6, 4
_WHICH = re.compile(r"(eval)?\d+/\d+|\d+")


class Board(Screen[None]):
    """The one screen. `reading` is asked for the past; what it answers comes to `show`."""

    HORIZONTAL_BREAKPOINTS = [(0, "-two"), (140, "-three")]  # noqa: RUF012 - Textual's own
    VERTICAL_BREAKPOINTS = [(0, "-short"), (28, "-tall")]  # noqa: RUF012
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("left", "slide(-1)", "back"),
        Binding("right", "slide(1)", "on"),
        Binding("shift+left", "slide(-10)", "back"),
        Binding("shift+right", "slide(10)", "on"),
        Binding("comma", "event(-1)", "one event back"),
        Binding("full_stop", "event(1)", "one event on"),
        Binding("left_square_bracket", "step(-1)", "one step back"),
        Binding("right_square_bracket", "step(1)", "one step on"),
        Binding("home", "first", "first event"),
        Binding("end", "live", "live"),
        Binding("space", "play", "play"),
        Binding("plus,equals_sign", "faster(2)", "faster"),
        Binding("minus", "faster(0.5)", "slower"),
        Binding("slash,g", "ask", "find"),
        Binding("s", "stalls", "stalls"),
        Binding("question_mark,h", "keys", "help"),
        Binding("q", "app.quit", "quit"),
    ]

    class Wanted(Message):
        """A key asked for `what`: a group, a trajectory, or ``stalls``."""

        def __init__(self, what: str) -> None:
            super().__init__()
            self.what = what

    def __init__(self, reading: Reading) -> None:
        super().__init__()
        self._reading = reading
        self.picture: Picture | None = None
        """What is shown."""
        self._place: int | None = None  # seq that was asked for and is not shown yet
        self._speed = 1.0
        self._problem = ""  # with what was typed, until the next key

    def compose(self) -> ComposeResult:
        """Lay out the panels."""
        plain = self.app.no_color
        yield Row("head")
        with Container(id="panels"):
            yield Panel("trainer", partial(trainer_lines, plain=plain))
            yield Panel("reward", reward_lines)
            yield Panel("groups", group_lines)
            yield Panel("engines", engine_lines)
            yield Panel("flying", flying_lines, flying_title)
            yield Panel("rollout time", partial(part_lines, plain=plain))
        yield Panel("stall", stall_lines)
        yield Row("slider")
        yield Row("foot")
        yield Row("keys")

    def on_mount(self) -> None:
        """Say what comes."""
        self.query_one("#flying").focus()
        self._row("head", text(("reading the log ...", "bold")))
        self._row("keys", keys("", self.size.width - 2))

    def show(self, news: Picture | Folding | Waiting) -> None:
        """Draw what the reader told."""
        match news:
            case Folding(share):
                bar = gauge(share, max(8, self.size.width - 30), "blue")
                row = "head" if self.picture is None else "foot"
                self._row(row, text(("reading the log ", "bold"), bar, f" {100 * share:.0f} %"))
            case Waiting(why):
                self._row("head", text((why, "bold yellow")))
            case Picture():
                self.picture = news
                if news.shown.seq == self._place or news.following or news.playing:
                    self._place = None
                self._draw()

    def on_resize(self, _: Resize) -> None:
        """Draw for the new width."""
        if self.picture is not None:
            self.call_after_refresh(self._draw)

    def _row(self, name: str, words: Text) -> None:
        self.query_one(f"#{name}", Row).show(words)

    def _draw(self) -> None:
        picture = self.picture
        if picture is None:
            return
        now, width = picture.shown, self.size.width - 2
        place = now.seq if self._place is None else self._place
        self._row("head", head(now, width))
        self._row("slider", slider(picture, place, width))
        self._row("foot", foot(picture, width))
        self._row("keys", keys(self._problem or picture.notice, width))
        stall = self.query_one("#stall", Panel)
        short = self.has_class("-short")
        room = STALL_LINES_SHORT if short else STALL_LINES
        lines = len(stall_lines(now, max(20, self.size.width - 4), room))
        stall.styles.height = min(max(lines, 1), room) + (1 if short else 2)
        stall.set_class(bool(now.stalls) or now.life in ("failed", "gone"), "-bad")
        for panel in self.query(Panel):
            panel.show(now)

    # Time

    def _go(self, seq: int) -> None:
        if self.picture is None:
            return
        place = min(max(seq, 0), self.picture.last_seq)
        point: Point = End() if place == self.picture.last_seq else Seq(place)
        self._place, self._problem = place, ""
        self._reading.go(point)
        self._draw()

    def _here(self) -> int:
        assert self.picture is not None
        return self.picture.shown.seq if self._place is None else self._place

    def action_slide(self, by: int) -> None:
        """Move by `by` parts of the log."""
        if self.picture is not None:
            self._go(self._here() + by * max(1, self.picture.last_seq // SHARE))

    def action_event(self, by: int) -> None:
        """Move by single events."""
        if self.picture is not None:
            self._go(self._here() + by)

    def action_step(self, by: int) -> None:
        """Move to the end of the training step before or after."""
        if self.picture is not None:
            self._reading.go(StepFrom(self._here(), by))

    def action_first(self) -> None:
        """Show the state after the first event."""
        self._go(0)

    def action_live(self) -> None:
        """Show the end, and follow it."""
        if self.picture is not None:
            self._go(self.picture.last_seq)

    def action_play(self) -> None:
        """Let the past go on, or stop it."""
        if self.picture is not None and not self.picture.following:
            self._reading.play(None if self.picture.playing else self._speed)

    def action_faster(self, factor: float) -> None:
        """Play faster or slower."""
        self._speed = min(max(self._speed * factor, SPEED_MIN), SPEED_MAX)
        if self.picture is not None and not self.picture.following:
            self._reading.play(self._speed)

    # What else there is to read

    def action_stalls(self) -> None:
        """List all stalls."""
        self.post_message(self.Wanted("stalls"))

    def action_keys(self) -> None:
        """Say what the keys do."""
        self.app.push_screen(Help())

    def action_ask(self) -> None:
        """Ask for an id or a point, and go there."""
        self.app.push_screen(Ask(), self._answered)

    def _answered(self, answer: str | None) -> None:
        self._problem = ""
        if answer and answer.startswith("@"):
            try:
                self._reading.go(parse_point(answer[1:]))
            except ValueError as error:
                self._problem = str(error)
        elif answer and _WHICH.fullmatch(answer):
            self.post_message(self.Wanted(answer))
        elif answer:
            self._problem = f"{answer}: must be a trajectory (57/3, eval0/2), a group (57), or a point (@978)"
        self._draw()
