"""Whole runs of released versions: how one is made, and what its log must fold to for ever.

A log is made once, for a release::

    python tests/support/golden_runs.py run_0_1

It refuses to touch one that is there. See tests/golden/README.md.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from eventrain.adapters.simulated.scenario import Scenario
from eventrain.adapters.simulated.simulation import simulate
from eventrain.adapters.simulated.tape import Tape
from eventrain.core.projections import View
from eventrain.core.projections.accounting import Ledger
from eventrain.events.log import LogWriter
from eventrain.events.record import Record

GOLDEN = Path(__file__).parent.parent / "golden"
WORLD: dict[str, Any] = {
    "name": "golden",
    "config": {
        "run": {"name": "golden", "steps": 6},
        "data": {"size": 40},
        "scheduler": {"policy": "windowed", "groups_per_step": 2, "max_staleness": 1},
        "rollout": {"group_size": 3, "group_floor": 2, "max_turns": 2},
        "algorithm": {"drop_zero_variance": True},
        "eval": {"every_steps": 2, "prompts": 2},
        "checkpoint": {"every_steps": 2},
        "failures": {"backoff_s": 0.5, "attempts_max": 2, "strikes_max": 2},
    },
    "world": {"engines": 2, "turns": 2, "spread": 8.0, "rewards": "every_third_equal"},
    "fault": [
        {"where": "engine.generate", "what": "too_long", "prompt": 3},
        {"where": "environment.step", "what": "error", "prompt": 4},
        {"where": "engine", "what": "die", "engine": "engine-1", "at_event": 300},
        {"where": "run", "what": "kill", "at_event": 700},
    ],
}
"""A little of everything: retries, a dropped trajectory, a quarantine, filters, evictions, a lost engine, a resume."""
SEED = 1


def summary(records: Iterable[Record]) -> dict[str, Any]:
    """Return what a log folds to, in plain values that a new field of a projection does not change."""
    view, ledger, kinds = View(), Ledger(), Counter[str]()
    for record in records:
        view.apply(record)
        ledger.apply(record)
        kinds[record.event.kind] += 1  # type: ignore[attr-defined]
    trainer, groups, prompts = view.trainer, view.groups, view.prompts
    table = {
        "events": dict(sorted(kinds.items())),
        "last_seq": view.last_seq,
        "outcome": trainer.outcome,
        "step": trainer.step,
        "version": trainer.version,
        "published": trainer.published,
        "checkpoints": trainer.checkpoints,
        "evals": trainer.evals,
        "phase_seconds": trainer.phase_seconds(),
        "steps": [
            {"step": row.step, "loss": row.loss, "reward_mean": row.reward_mean, "lag_mean": row.lag_mean}
            for row in view.progress.steps
        ],
        "groups": dict(groups.ended),
        "dispatched": groups.dispatched,
        "live": sorted(groups.live),
        "trajectories": [
            groups.trajectories_started,
            groups.trajectories_completed,
            groups.trajectories_dropped,
            dict(groups.trajectories_failed),
        ],
        "prompts": {
            "drawn": prompts.drawn,
            "next": prompts.next_prompt,
            "ended": dict(prompts.ended),
            "returned": prompts.returned,
            "set_aside": prompts.set_aside,
            "strikes": {str(index): count for index, count in prompts.strikes.items()},
            "quarantined": {str(index): why for index, why in prompts.quarantined.items()},
        },
        "engines": {
            engine.name: [engine.state, engine.version, engine.restarts, engine.in_flight]
            for engine in view.engines.by_name.values()
        },
        "breaches": [breach.law for breach in ledger.breaches],
    }
    plain: dict[str, Any] = json.loads(json.dumps(table))
    return plain


def make(name: str) -> None:
    """Run the world, and write its log and what it folds to into a new folder of tests/golden."""
    folder = GOLDEN / name
    folder.mkdir()  # raises where there is one: a released log is never written anew
    records = simulate(Scenario.model_validate(WORLD), Tape(SEED)).records
    events = folder / "events"
    events.mkdir()
    writer = LogWriter(events, run="golden", epoch=1, first_seq=0, segment_bytes=1 << 26)
    writer.start(lambda _seq: None, lambda _error: None)
    for record in records:
        writer.append(record)
    writer.close()
    expected = {"ignore_kinds": {}, "state": summary(records)}
    (folder / "expected.json").write_text(json.dumps(expected, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    make(sys.argv[1])
