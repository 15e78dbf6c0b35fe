"""What the ports of one reproduced run share: the log's answers, and where the run is."""

from __future__ import annotations

from dataclasses import dataclass

from .recorded_answers import Answers, RecordedBus
from .recorded_data import RecordedPayloads
from .recording import Recording


@dataclass
class RecordedWorld:
    """What the ports of one reproduced run share."""

    recording: Recording
    answers: Answers
    bus: RecordedBus
    payloads: RecordedPayloads
    newest: int = -1
    """Newest version that an engine was asked to load."""
