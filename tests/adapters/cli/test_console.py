"""The live panel shows the run as the projections are, on any terminal width, and never raises."""

from __future__ import annotations

import asyncio
import io

import pytest
from rich.console import Console

from eventrain.adapters.console import FRAME_S, ProgressPanel, draw, live_panel
from eventrain.core.config import RunConfig
from eventrain.core.projections import View

CONFIG = RunConfig.model_validate(
    {
        "run": {"name": "hunt", "steps": 3},
        "model": {"path": "m"},
        "data": {"kind": "generated", "size": 100},
        "environment": {"kind": "number_hunt"},
        "scheduler": {"groups_per_step": 2},
    }
)


def shown(view: View, width: int = 100, notice: str = "") -> str:
    panel = ProgressPanel(view, CONFIG, "runs/hunt", lambda: view.last_mono + 300_000_000, notice)
    console = Console(width=width, record=True, file=io.StringIO())
    console.print(panel)
    return console.export_text()


def test_the_panel_says_what_a_person_wants_to_know(small_run) -> None:
    """Step, pace, ETA, reward, lag, phase, buffer, in flight, engines and failures stand in one panel."""
    view = View()
    for record in small_run.records:
        view.apply(record)
    text = shown(view, notice="finishing")
    for part in (
        "step   2/3",
        "/step",
        "ETA",
        "reward 0.875",
        "mean of 2 0.812",
        "lag 0.50 (max 1)",
        "phase  generating",
        "buffer 0/4",
        "in flight 1/4",
        "engines 1/1",
        "failed 2 attempts (env_error, prompt_too_long), 1 groups, 1 prompts quarantined",
        "finishing",
        "starting",
    ):
        assert part in text


def test_the_panel_can_be_drawn_after_every_event(small_run) -> None:
    """There is no moment of a run, the empty one included, at which a frame fails or grows beyond its width."""
    view = View()
    assert "step   0/0" in shown(view)
    assert "engines 0/1" in shown(view)  # it is one that is wanted, and not up yet
    for record in small_run.records:
        view.apply(record)
        assert max(map(len, shown(view, width=60).splitlines())) <= 60


def test_a_narrow_terminal_shows_the_steps_whole(small_run) -> None:
    """At 40 columns the pace is cut, not how far the run has come, and no row is longer than the terminal."""
    view = View()
    for record in small_run.records:
        view.apply(record)
    view.trainer.steps_total = 3000
    text = shown(view, width=40)
    assert "step   2/3000" in text
    assert max(map(len, text.splitlines())) <= 40


def test_drawing_ends_with_its_task_and_leaves_the_last_frame(small_run) -> None:
    """The panel is drawn at most once per frame time until its task is cancelled; the last state stays visible."""
    view = View()
    slept: list[float] = []

    async def sleep(frame_s: float) -> None:
        slept.append(frame_s)
        for record in small_run.records:
            view.apply(record)
        await asyncio.sleep(0)
        if len(slept) == 3:
            raise asyncio.CancelledError

    console = Console(width=100, record=True, force_terminal=True, file=io.StringIO())
    panel = ProgressPanel(view, CONFIG, "runs/hunt", lambda: view.last_mono)
    with live_panel(panel, console) as live, pytest.raises(asyncio.CancelledError):
        asyncio.run(draw(live, sleep))
    assert slept == [FRAME_S] * 3
