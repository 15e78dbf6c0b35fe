"""The vocabulary of a run and its plumbing: events, bus, log, payloads, run folder."""

from .bus import Bus, Projection, Subscription, Writer
from .errors import LogDamaged, LogTooNew, LogWriteError, PayloadDamaged, PayloadMissing, RunFolderError
from .folder import RunFolder
from .log import LogWriter
from .payload import PayloadStore
from .reader import LogReader, TornTail, cut_torn_tail
from .record import Clock, Record, causing, current_cause, current_corr

__all__ = [
    "Bus",
    "Clock",
    "LogDamaged",
    "LogReader",
    "LogTooNew",
    "LogWriteError",
    "LogWriter",
    "PayloadDamaged",
    "PayloadMissing",
    "PayloadStore",
    "Projection",
    "Record",
    "RunFolder",
    "RunFolderError",
    "Subscription",
    "TornTail",
    "Writer",
    "causing",
    "current_cause",
    "current_corr",
    "cut_torn_tail",
]
