"""The shipped run with the real log, payload store and clock: what is on disk is the run."""

from __future__ import annotations

import asyncio
from pathlib import Path

from worlds import config

from eventrain.adapters.clock import SystemClock
from eventrain.adapters.simulated.engine import SimulatedEngine
from eventrain.adapters.simulated.world import (
    NumberedPrompts,
    SimulatedArtifacts,
    SimulatedEnvironment,
    SimulatedLearner,
    SimulatedRenderer,
)
from eventrain.core.ports import Ports
from eventrain.core.projections import View
from eventrain.core.projections.accounting import Ledger
from eventrain.core.run import Run
from eventrain.events.bus import Bus
from eventrain.events.folder import RunFolder
from eventrain.events.log import LogWriter
from eventrain.events.payload import PayloadStore
from eventrain.events.reader import LogReader
from eventrain.events.trajectory import decode_trajectory, int32_list
from eventrain.events.types import TrajectoryCompleted


def test_reading_the_log_back_gives_the_state_and_every_payload(tmp_path: Path) -> None:
    """After a run, folding the files gives the run's own state, and every trajectory's tokens are there."""
    clock, settings = SystemClock(), config(run={"steps": 4})
    folder = RunFolder.create(tmp_path / "run")
    ports = Ports(
        clock=clock,
        engines=[SimulatedEngine(f"engine-{n}", clock, seconds=lambda request: 0.001) for n in range(2)],
        learner=SimulatedLearner(clock, seconds=0.002, start_s=0),
        environments=lambda: SimulatedEnvironment(clock, turns=2, seconds=0),
        prompts=NumberedPrompts(1000),
        renderer=SimulatedRenderer(),
        artifacts=SimulatedArtifacts(),
    )

    async def main() -> Run:
        with folder.lock():
            payloads = PayloadStore(folder.payloads)
            writer = LogWriter(
                folder.events,
                run="r",
                epoch=folder.epoch,
                first_seq=0,
                segment_bytes=8192,
                before_commit=[payloads.sync],
            )
            run = Run(settings, ports, Bus(clock, writer), payloads)
            outcome = await run.conduct(asyncio.Event())
            run.bus.close()
            writer.close()
            payloads.close()
        assert outcome.outcome == "completed"
        return run

    run = asyncio.run(main())
    view, ledger = View(), Ledger()
    trajectories: list[TrajectoryCompleted] = []
    for record in LogReader(folder.events).records():
        view.apply(record)
        ledger.apply(record)
        if isinstance(record.event, TrajectoryCompleted):
            trajectories.append(record.event)
    assert view == run.view
    assert ledger == run.ledger
    assert ledger.breaches == []
    assert len(list(folder.events.iterdir())) > 1
    store = PayloadStore(folder.payloads, read_only=True)
    for event in trajectories:
        payload = decode_trajectory(store.get(event.payload))
        assert len(payload) == event.prompt_tokens + event.completion_tokens
        assert [v for v in int32_list(payload.versions) if v >= 0] == [
            version for version, count in event.version_spans for _ in range(count)
        ]
    store.close()
    assert len(trajectories) == 4 * 4 * 4
