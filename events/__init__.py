"""The vocabulary of a run and its plumbing: events, bus, log, payloads, run folder."""

from .bus import Bus, Projection, Subscription, Writer
from .errors import LogDamaged, LogWriteError, PayloadDamaged, PayloadMissing, RunFolderError
from .record import Clock, Record, causing, current_cause, current_corr

__all__ = [
    "Bus",
    "Clock",
    "LogDamaged",
    "LogWriteError",
    "PayloadDamaged",
    "PayloadMissing",
    "Projection",
    "Record",
    "RunFolderError",
    "Subscription",
    "Writer",
    "causing",
    "current_cause",
    "current_corr",
]
