"""What a person watches while a run goes on: one small panel, drawn at most four times a second.

It reads projections, on the event loop, between events; it holds no state of the run, keeps no event in memory, and
a frame costs about two milliseconds, so it cannot hold up the run. It is not a record of anything: the log is.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from statistics import fmean

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from ..core.config import RunConfig
from ..core.projections import View
from .cli.quantities import seconds, sparkline

FRAME_S = 0.25
PACE_STEPS = 10
"""Steps over which time per step is measured."""

WIDTH_MAX = 120
"""Columns of the panel on a wide terminal."""

PHASE_COLOURS = {
    "starting": "grey50",
    "generating": "blue",
    "waiting_for_buffer": "yellow",
    "converting": "cyan",
    "training": "green",
    "weight_sync": "magenta",
    "eval": "bright_blue",
    "checkpoint": "bright_magenta",
    "finished": "grey50",
}


@dataclass
class ProgressPanel:
    """The panel. `now_mono` is the clock that the run's records carry; `notice` is a line of the moment."""

    view: View
    config: RunConfig
    where: str
    now_mono: Callable[[], int]
    notice: str = ""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Yield the panel as the projections are now."""
        rows: list[RenderableType] = [self._steps(), self._reward(), self._flow(), self._time()]
        rows += [row for row in (self._trouble(), self._notice()) if row is not None]
        title = Text.assemble((self.config.run.name, "bold"), "  ", (self.where, "dim"))
        yield Panel(
            Group(*rows),
            title=title,
            title_align="left",
            border_style="grey37",
            padding=(0, 1),
            # Room for what a terminal echoes of Ctrl-C behind the panel: wrapped, it would leave a torn frame.
            width=min(options.max_width - len("^C^C^C"), WIDTH_MAX),
        )

    def pace_s(self) -> float | None:
        """Return seconds per step over the last `PACE_STEPS` steps, None before the second step has ended."""
        rows = self.view.progress.steps[-PACE_STEPS - 1 :]
        if len(rows) < 2:
            return None
        return (rows[-1].ended_ns - rows[0].ended_ns) / 1e9 / (len(rows) - 1)

    def eta_s(self) -> float | None:
        """Return the seconds that the remaining steps will take at this pace, None while it is unknown."""
        pace = self.pace_s()
        if pace is None:
            return None
        left = self.view.trainer.steps_total - self.view.trainer.version
        since_last = (self.now_mono() - self.view.progress.steps[-1].ended_ns) / 1e9
        return max(0.0, left * pace - min(since_last, pace))

    def _steps(self) -> RenderableType:
        trainer = self.view.trainer
        total = max(trainer.steps_total, 1)
        row = Table.grid(padding=(0, 2), expand=True)
        steps = Text.assemble("step   ", (f"{trainer.version}/{trainer.steps_total}", "bold"))
        row.add_column(no_wrap=True, min_width=len(steps))  # on a narrow terminal the pace gives way
        row.add_column(ratio=1)
        row.add_column(no_wrap=True, justify="right")
        pace, eta = self.pace_s(), self.eta_s()
        pace_text = "" if pace is None else f"{seconds(pace)}/step"
        eta_text = "" if eta is None or trainer.finished else f"  ETA {seconds(eta)}"
        row.add_row(
            steps,
            ProgressBar(
                total=total, completed=trainer.version, complete_style="green", finished_style="green"
            ),
            Text(f"{pace_text}{eta_text}" or "warming up"),
        )
        return row

    def _reward(self) -> RenderableType:
        steps = self.view.progress.steps
        if not steps:
            return Text.assemble(("reward ", ""), ("no step has ended yet", "dim"))
        last = steps[-1]
        rewards = [row.reward_mean for row in steps]
        curve = sparkline(rewards[-400:], 24)
        return Text.assemble(
            "reward ",
            (f"{last.reward_mean:.3f}", "bold green"),
            ("  " + curve, "green"),
            (f"  mean of {min(10, len(rewards))} {fmean(rewards[-10:]):.3f}", "dim"),
            f"  lag {last.lag_mean:.2f}",
            (f" (max {last.lag_max})", "dim"),
            f"  loss {last.loss:.3g}",
            no_wrap=True,
            overflow="ellipsis",
        )

    def _flow(self) -> RenderableType:
        view, scheduler = self.view, self.config.scheduler
        trainer, groups = view.trainer, view.groups
        since = seconds(max(0, self.now_mono() - trainer.phase_since_ns) / 1e9)
        engines = view.engines.by_name.values()
        calls = sum(engine.in_flight for engine in engines)
        serving = sum(engine.state == "serving" for engine in engines)
        wanted = max(len(engines), self.config.engine.engines)
        engine_style = "" if serving == len(engines) else "bold red"
        return Text.assemble(
            "phase  ",
            (f"{trainer.phase:<18}", f"bold {PHASE_COLOURS[trainer.phase]}"),
            (f" {'' if trainer.finished else since:>6}", "dim"),
            f"  buffer {groups.buffered}/{scheduler.buffer_or_default}",
            f"  in flight {groups.in_flight}/{scheduler.permits_or_default}",
            (f"  engines {serving}/{wanted}", engine_style),
            (f" ({calls} calls)", "dim"),
            no_wrap=True,
            overflow="ellipsis",
        )

    def _time(self) -> RenderableType:
        """Return one bar in the colours of the phases, and the shares of the largest."""
        spent = self.view.trainer.phase_seconds(self.now_mono())
        spent = {phase: value for phase, value in spent.items() if value > 0 and phase != "finished"}
        total = sum(spent.values())
        text = Text("time   ", no_wrap=True, overflow="ellipsis")
        if total <= 0:
            return text
        width, edge, drawn = 24, 0.0, 0
        for phase in [phase for phase in PHASE_COLOURS if phase in spent]:
            edge += spent[phase] / total * width
            cells = round(edge) - drawn
            drawn += cells
            text.append("█" * cells, PHASE_COLOURS[phase])
        for phase, value in sorted(spent.items(), key=lambda item: -item[1])[:4]:
            text.append(f"  {phase} ", "dim")
            text.append(f"{100 * value / total:.0f} %", PHASE_COLOURS[phase])
        return text

    def _trouble(self) -> RenderableType | None:
        groups = self.view.groups
        failed = sum(count for kind, count in groups.trajectories_failed.items() if kind != "cancelled")
        if not failed and not groups.ended["failed"]:
            return None
        kinds = [kind for kind, _ in groups.trajectories_failed.most_common() if kind != "cancelled"]
        quarantined = len(self.view.prompts.quarantined)
        text = f"failed {failed} attempts ({', '.join(kinds)}), {groups.ended['failed']} groups"
        return Text(
            text + (f", {quarantined} prompts quarantined" if quarantined else ""), "red", no_wrap=True
        )

    def _notice(self) -> RenderableType | None:
        return Text(self.notice, "bold yellow") if self.notice and not self.view.trainer.finished else None


@contextmanager
def live_panel(panel: ProgressPanel, console: Console) -> Iterator[Live]:
    """Show `panel` on the terminal until the block ends; what is written to stderr meanwhile lands above it."""
    with Live(panel, console=console, auto_refresh=False, transient=False, redirect_stdout=True) as live:
        yield live


async def draw(live: Live, sleep: Callable[[float], object] = asyncio.sleep) -> None:
    """Redraw every `FRAME_S` seconds. Never returns; cancelling draws nothing more."""
    while True:
        live.refresh()
        await sleep(FRAME_S)  # type: ignore[misc]
