"""What can go wrong below the events: a small closed set, each with one line for a person."""

from __future__ import annotations


class LogWriteError(Exception):
    """The log could not be written (disk full, read-only, I/O error); ends the run."""


class LogDamaged(Exception):
    """The log cannot be trusted beyond `last_seq`; the message names segment, offset and reason."""

    def __init__(self, segment: str, offset: int, last_seq: int, reason: str) -> None:
        super().__init__(
            f"log damaged in segment {segment} at byte {offset}: {reason}; "
            f"the last good event is seq {last_seq}"
        )
        self.segment = segment
        self.offset = offset
        self.last_seq = last_seq
        self.reason = reason


class LogTooNew(Exception):
    """The log holds events that this version does not know: it was written by a newer one."""


class PayloadMissing(Exception):
    """The bytes that a payload reference names are not there."""


class PayloadDamaged(Exception):
    """The bytes that a payload reference names are not the ones that were written."""


class RunFolderError(Exception):
    """The folder is no run, already holds one, or is in use by a live writer."""
