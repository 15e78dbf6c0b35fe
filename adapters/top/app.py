"""`eventrain top`: a run as it is now, and as it was at any point of its past, on one screen of a terminal."""

from __future__ import annotations

import time
from functools import partial

from textual.app import App
from textual.message import Message

from ...events.folder import RunFolder
from ..cli.failures import CommandFailed
from ..cli.opening import reader_of
from ..cli.points import Point
from ..cli.show_command import told_lines
from ..cli.stalls_report import read_stalls, stalls_lines
from .board import Board
from .reading import Broken, News, Reading
from .screens import Told
from .widgets import Panel


class Heard(Message):
    """The reader told something."""

    def __init__(self, news: News) -> None:
        super().__init__()
        self.news = news


class Top(App[CommandFailed]):
    """The application. It returns why it ended when the log could not be read at all, else None."""

    CSS_PATH = "top.tcss"
    ENABLE_COMMAND_PALETTE = False

    def __init__(self, folder: RunFolder, *, at: Point | None = None, interval_s: float = 0.5) -> None:
        super().__init__()
        self.theme = "ansi-dark"
        self.title = f"eventrain top {folder.path}"
        self._folder = folder
        self.reading = Reading(folder, self._heard, at=at, interval_s=interval_s)
        self.board = Board(self.reading)

    def on_mount(self) -> None:
        """Show the board, and begin to read."""
        self.push_screen(self.board)
        self.run_worker(self.reading.run, thread=True)

    def on_unmount(self) -> None:
        """Let the reader end."""
        self.reading.stop()

    def _heard(self, news: News) -> None:
        self.post_message(Heard(news))

    def on_heard(self, event: Heard) -> None:
        """Show what the reader told."""
        if isinstance(event.news, Broken):
            self.exit(event.news.failure)
        else:
            self.board.show(event.news)

    def on_panel_opened(self, event: Panel.Opened) -> None:
        """Open what a cursor stands on, of the board or of a screen over it."""
        self._open(event.what)

    def on_board_wanted(self, event: Board.Wanted) -> None:
        """Open what a key of the board asked for."""
        self._open(event.what)

    def _open(self, what: str) -> None:
        if what == "stalls":
            self.push_screen(Told("stalls", self._stalls))
        else:
            kind = "trajectory" if "/" in what else "group"
            self.push_screen(Told(f"{kind} {what}", partial(told_lines, self._folder, what)))

    def _stalls(self) -> list[str]:
        held = self._folder.is_held()
        records = reader_of(self._folder).records()
        report = read_stalls(self._folder.path, records, being_written=held, now_ts=time.time_ns())
        return stalls_lines(report)


def show(folder: RunFolder, at: Point | None, interval_s: float) -> None:
    """Show the run until somebody quits. Raises `CommandFailed` when its log cannot be read at all."""
    failure = Top(folder, at=at, interval_s=interval_s).run()
    if failure is not None:
        raise failure
