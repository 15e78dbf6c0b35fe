"""What an engine is made of, whatever its kind."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ..core.config import DeadlineSection, EngineSection, RolloutSection


@dataclass(frozen=True, slots=True)
class EngineSetup:
    """One engine of a run: its name, its model's folder and settings, and the file that its output is appended to."""

    name: str
    model_path: Path
    section: EngineSection
    rollout: RolloutSection
    log_path: Path
    deadlines: DeadlineSection
