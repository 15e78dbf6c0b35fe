"""How a command ends badly: one clear line on stderr and an exit code, never a traceback unless asked for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import IO, Any

import click
from pydantic import ValidationError

from ...core.ports import PortError
from ...events.errors import (
    LogDamaged,
    LogTooNew,
    LogWriteError,
    PayloadDamaged,
    PayloadMissing,
    RunFolderError,
)
from ...events.trajectory import PayloadInvalid
from ..wording import MissingExtra

EXIT_DONE = 0
EXIT_FAILED = 1
EXIT_BAD_INPUT = 2
EXIT_DATA_EXHAUSTED = 3
EXIT_INTERRUPTED = 130


class CommandFailed(click.ClickException):
    """The command cannot go on; `lines` say why, one problem each."""

    exit_code = EXIT_FAILED

    def __init__(self, lines: Sequence[str]) -> None:
        super().__init__("\n".join(lines))
        self.lines = tuple(lines)

    def show(self, file: IO[Any] | None = None) -> None:
        """Print the lines to stderr, each as it stands."""
        for line in self.lines:
            click.echo(line, file=file, err=file is None)


class BadInput(CommandFailed):
    """What the user gave (a file, a key, a number, a folder) cannot be worked with."""

    exit_code = EXIT_BAD_INPUT


def expected_failure(error: BaseException) -> CommandFailed | None:
    """Return the line and exit code for an exception that says something about the user's world, else None.

    None means a defect of ours: the exception's type and message are then all that can be said in one line.
    """
    text = " ".join(str(error).split())
    match error:
        case CommandFailed():
            return error
        case RunFolderError() | MissingExtra():
            return BadInput([text])
        case (
            LogWriteError()
            | LogDamaged()
            | LogTooNew()
            | PayloadMissing()
            | PayloadDamaged()
            | PayloadInvalid()
            | PortError()
        ):
            return CommandFailed([text])
        case ValidationError() if (
            error.title == "RunConfig"
        ):  # of a log: what a user writes is judged where it is read
            wrong = error.errors(include_url=False)[0]
            key = ".".join(map(str, wrong["loc"]))
            return CommandFailed(
                [f"the configuration in the log is not one of this version: {key}: {wrong['msg']}"]
            )
        case OSError() if error.strerror:
            about = f"{error.filename}: " if error.filename else ""
            return CommandFailed([f"{about}{error.strerror.lower()}"])
    return None
