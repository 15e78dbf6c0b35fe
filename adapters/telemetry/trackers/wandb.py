"""Weights & Biases: one run per run, which goes on when ours is resumed."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from ...wording import require
from .figures import StepRow


class WandbTracker:
    """A run of `project` with our run's id. Its files lie in ``wandb`` of the run folder.

    ``WANDB_MODE`` decides whether it is sent; without it, it is where an API key is known, and else kept for
    ``wandb sync``. Nothing is asked. Steps are a figure of their own, because W&B's own step only counts up and ours
    come again after a resume. `rows`, the steps so far, are sent if the run is new to this folder. Raises
    `MissingExtra`.
    """

    def __init__(
        self,
        project: str,
        run_id: str,
        folder: Path,
        config: Mapping[str, Any],
        rows: Iterable[StepRow] = (),
    ) -> None:
        library: Any = require("wandb", "wandb")
        name = re.sub(r"[^A-Za-z0-9_.-]", "-", run_id)[:128]
        known = any((folder / "wandb").glob(f"*run-*-{name}"))
        self._run = library.init(
            project=project,
            id=name,
            name=run_id,
            dir=str(folder),
            config=dict(config),
            resume="allow",
            reinit="create_new",
            mode=os.environ.get("WANDB_MODE") or ("online" if library.api.api_key else "offline"),
            settings=library.Settings(
                silent=True, console="off", disable_git=True, disable_code=True, x_disable_stats=True
            ),
        )
        self._run.define_metric("step")
        self._run.define_metric("*", step_metric="step")
        for row in () if known else rows:
            self.log(row)

    def log(self, row: StepRow) -> None:
        """Send the figures of one step."""
        self._run.log({"step": row.step, **row.figures})

    def rewind(self, step: int) -> None:
        """Note where the history goes on; W&B keeps what it was told before."""
        self._run.log({"step": step, "resumed_at": step})

    def close(self) -> None:
        """Finish the run; waits until what is to be sent is sent."""
        self._run.finish()
