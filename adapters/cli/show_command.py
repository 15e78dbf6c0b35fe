"""`eventrain show`: one trajectory, or one group, from its first token to the step that trained it."""

from __future__ import annotations

import re
from contextlib import closing
from pathlib import Path

import click

from ...events.folder import RunFolder
from ...events.payload import PayloadStore
from ...events.trajectory import TrajectoryPayload, decode_trajectory
from ...events.types import GroupDispatched
from .debug_option import debug_option
from .failures import BadInput
from .opening import open_run, reader_of
from .story import TrajectoryStory, read_group, read_trajectory
from .story_lines import group_lines, trajectory_lines

HELP = """Show one trajectory: the prompt, every turn, the tokens with the weights that sampled them, the times, the
reward, and what became of it. With a group's number, show the group.

RUN is the run's folder. WHICH is a trajectory (57/3), one of an evaluation (eval0/2), or a group (57).

\b
Examples:
  eventrain show runs/demo 57/3
  eventrain show runs/demo 57/3 --tokens
  eventrain show runs/demo 57
"""


@click.command("show", help=HELP, short_help="Show one trajectory or one group.")
@click.argument("run", type=click.Path(path_type=Path))
@click.argument("which")
@click.option("--tokens", is_flag=True, help="Print every token id, also the prompt's, with log-probs.")
@debug_option
def show_command(run: Path, which: str, tokens: bool) -> None:
    """Show one trajectory or one group."""
    for line in told_lines(open_run(run), which, all_tokens=tokens):
        click.echo(line)


def told_lines(folder: RunFolder, which: str, *, all_tokens: bool = False) -> list[str]:
    """Return what is told of group or trajectory `which`, styled for a terminal. Raises `BadInput` if there is none."""
    if re.fullmatch(r"\d+", which):
        group = read_group(reader_of(folder).records(), int(which))
        if group is None:
            raise BadInput([_absent(folder, f"group {which}")])
        return group_lines(group)
    if not re.fullmatch(r"(eval)?\d+/\d+", which):
        raise BadInput([f"{which}: must be a trajectory like 57/3 or eval0/2, or a group like 57"])
    story = read_trajectory(reader_of(folder).records(), which)
    if story is None:
        raise BadInput([_absent(folder, f"trajectory {which}")])
    return trajectory_lines(story, _payload(folder, story), all_tokens=all_tokens)


def _payload(folder: RunFolder, story: TrajectoryStory) -> TrajectoryPayload | None:
    if story.completed is None:
        return None
    with closing(PayloadStore(folder.payloads, read_only=True)) as store:
        return decode_trajectory(store.get(story.completed.payload))


def _absent(folder: RunFolder, what: str) -> str:
    """Return a line that says what the run has instead."""
    last = max(
        (e.group for *_, e in reader_of(folder).records() if isinstance(e, GroupDispatched)), default=None
    )
    has = "no group was dispatched yet" if last is None else f"its groups go from 0 to {last}"
    return f"{folder.path}: has no {what}; {has}"
