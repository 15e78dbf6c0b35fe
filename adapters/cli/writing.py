"""Write a file for the user: whole or not at all, and never over something that is not ours to replace."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, NamedTuple

import click

from .failures import BadInput

HEAD_BYTES = 4096
"""How much of a file is looked at to see what it is."""

force_option = click.option("--force", is_flag=True, help="Write over any file that is there.")


class Output(NamedTuple):
    """What one command writes."""

    what: str
    """For a person: ``report``."""
    name: str
    """What such a file might be called."""
    begins: Callable[[bytes], object]
    """Says of the first `HEAD_BYTES` of a file whether this command wrote it."""

    def check(self, path: Path, *, force: bool) -> None:
        """Raise `BadInput` if it may not be written to `path`.

        A file that is there is replaced if it is empty or an earlier output of the same command, or with `force`.
        """
        if path.is_dir():
            raise BadInput([f"{path}: is a folder; name a file in it, like {path / self.name}"])
        if not path.parent.is_dir():
            raise BadInput([f"{path}: there is no folder {path.parent}"])
        if not path.exists():
            return
        if not path.is_file():
            raise BadInput([f"{path}: is no regular file; name another"])
        if not force and not self._wrote(path):
            way_out = "name another file, or write over it with --force"
            raise BadInput([f"{path}: exists and is no {self.what} of eventrain; {way_out}"])

    def _wrote(self, path: Path) -> bool:
        with path.open("rb") as file:
            head = file.read(HEAD_BYTES)
        return not head or bool(self.begins(head))


@contextlib.contextmanager
def write_whole(path: Path) -> Iterator[IO[bytes]]:
    """Give a file to write to, which becomes `path` when the block ends; whoever opens that sees the old or the new.

    Where the block raises, `path` stays as it was. What cannot be written is an `OSError` about `path`. A link stays
    one, and what it leads to is replaced.
    """
    target = Path(os.path.realpath(path))
    unfinished = ""
    try:
        descriptor, unfinished = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name[:40]}.")
        with os.fdopen(descriptor, "wb") as file:
            yield file
        mask = os.umask(0)
        os.umask(mask)
        Path(unfinished).chmod(0o666 & ~mask)
        Path(unfinished).replace(target)
    except BaseException as error:
        if unfinished:
            Path(unfinished).unlink(missing_ok=True)
        if isinstance(error, OSError) and _is_about(error, target.parent):
            raise OSError(error.errno, error.strerror, str(path)) from error
        raise


def _is_about(error: OSError, folder: Path) -> bool:
    """Return whether `error` is of the unfinished file in `folder`, or of a write, which names no file."""
    return bool(error.strerror) and (
        error.filename is None or Path(os.fsdecode(error.filename)).parent == folder
    )
