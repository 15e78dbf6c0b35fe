"""`eventrain export`: what the log says, in the formats of other tools."""

from __future__ import annotations

import click

from .export_perfetto import export_perfetto


@click.group(name="export", short_help="Write what the log says in the formats of other tools.")
def export_command() -> None:
    """Write what the log of a run says in the formats of other tools. The run may still go on."""


export_command.add_command(export_perfetto)
