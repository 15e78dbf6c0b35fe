"""`eventrain simulate --exhaustive`: every order of messages of a tiny scenario, and one line about it."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

import click

from ...core.config import RunConfig
from ...events.log import LogWriter
from ...events.record import Record
from ..simulated.exhaustive import STATES_MAX, Counterexample, Searched, search
from ..simulated.message_world import setting
from ..simulated.scenario import Scenario
from .execution import new_folder
from .failures import BadInput


def search_whole(name: str, scenario: Scenario, *, evaluating: bool, log: Path | None) -> bool:
    """Search, print what came out, and return whether no order broke a law and all were seen."""
    try:
        given = setting(scenario, evaluating=evaluating)
    except ValueError as error:
        raise BadInput([f"{name}: {error}"]) from None
    began = time.perf_counter()
    searched = search(given, outcomes=scenario.expect.outcome)
    seconds = time.perf_counter() - began
    click.echo(f"{name}: {_sentence(searched)}, in {seconds:.1f} s")
    if searched.found is not None:
        _tell(searched.found)
        if log is not None:
            write_log(given.config, searched.found.log, log)
    return searched.found is None and searched.whole


def _sentence(searched: Searched) -> str:
    counts = f"{searched.states:,} states, {searched.transitions:,} moves"
    if searched.found is not None:
        return f"{counts}: BROKE '{searched.found.law}'"
    if not searched.whole:
        return (
            f"{counts}: no law broken so far, but there are more than {STATES_MAX:,} states; make it smaller"
        )
    ends = ", ".join(f"{outcome} in {number:,}" for outcome, number in searched.outcomes.most_common())
    return f"{counts}: no deadlock, no broken law; ends as {ends}"


def _tell(found: Counterexample) -> None:
    click.echo(f"  {found.how}")
    click.echo(f"  shortest way there, {len(found.moves)} moves:")
    for number, move in enumerate(found.moves, start=1):
        click.echo(f"  {number:>4}  {move}")


def write_log(config: RunConfig, records: Sequence[Record], path: Path) -> None:
    """Write events to a new run folder at `path`, as a run does."""
    with new_folder(path) as folder, folder.lock():
        writer = LogWriter(
            folder.events,
            run=config.run.name,
            epoch=folder.epoch,
            first_seq=0,
            segment_bytes=config.log.segment_bytes,
        )
        for record in records:
            writer.append(record)
        writer.close()
