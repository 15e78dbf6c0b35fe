"""The `eventrain` command: one group of commands, and one place where exceptions become lines."""

from __future__ import annotations

import os
import sys
import traceback
from importlib.metadata import version
from typing import Any

import click

from ...core.failures import first_leaf
from .demo_command import demo_command
from .events_command import events_command
from .export_command import export_command
from .export_openmetrics import openmetrics_command
from .export_traces import traces_command
from .failures import EXIT_DONE, EXIT_INTERRUPTED, CommandFailed, expected_failure
from .fork_command import fork_command
from .frontier_command import frontier_command
from .log_command import log_command
from .plan_command import plan_command
from .replay_command import replay_command
from .report_command import report_command
from .reproduce_command import reproduce_command
from .run_command import run_command
from .show_command import show_command
from .simulate_command import simulate_command
from .stalls_command import stalls_command
from .status_command import status_command
from .telemetry_command import telemetry_command
from .top_command import top_command
from .whatif_command import whatif_command

HELP = """Asynchronous reinforcement learning of language models; a run is the fold of its event log.

\b
Begin with:
  eventrain demo                    a small policy learns a game, in under three minutes
  eventrain plan CONFIG.toml        where it would lie, and what it would take
  eventrain run CONFIG.toml         train what a configuration says
\b
Look at a run, going on or ended:
  eventrain top RUN                 watch it, and go back in its time
  eventrain status RUN              where it stands
  eventrain events RUN --follow     what happens
  eventrain show RUN 57/3           one trajectory
  eventrain stalls RUN              when it stood still, and why
  eventrain report RUN              one HTML page: what bounds it, where its time went
  eventrain replay RUN --at step:9  how it stood at any point
  eventrain replay RUN --check      whether this version would decide the same
  eventrain reproduce RUN           the same again in virtual time, a stall too
  eventrain frontier RUN            what other policies would make of it
  eventrain whatif RUN --set ...    what other settings would make of it
\b
Show it to other tools:
  eventrain telemetry init DIR      what Prometheus, Grafana and Jaeger need to know
  eventrain export openmetrics RUN FILE   its metrics with their times, for Prometheus
  eventrain export traces RUN       its traces, to Jaeger or to a file
  eventrain export perfetto RUN FILE      all of it on one time axis
\b
Look after its log, or go another way from a checkpoint:
  eventrain log verify RUN          check it, with its payloads and checkpoints
  eventrain log redact RUN --out NEW   a copy for a bug report
  eventrain fork RUN --at step:40   a new run from there, with other settings
\b
Try to break it, in virtual time:
  eventrain simulate --chaos --seeds 100
"""


class Commands(click.Group):
    """The commands, with every exception turned into one clear line and an exit code."""

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command that `ctx` names.

        Exit codes: 0 done, 1 failed, 2 bad input, 130 interrupted. A traceback is printed only with --debug.
        """
        try:
            return super().invoke(ctx)
        except (click.exceptions.Exit, click.ClickException) as error:
            if ctx.meta.get("eventrain.debug") and error.__cause__ is not None:
                traceback.print_exception(error.__cause__)
            raise
        except (KeyboardInterrupt, click.Abort):
            ctx.exit(EXIT_INTERRUPTED)
        except BrokenPipeError:
            # The reader (head, less) has seen enough. Nothing may be flushed into the closed pipe at exit.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            ctx.exit(ctx.meta.get("eventrain.exit_code", EXIT_DONE))
        except Exception as error:
            if ctx.meta.get("eventrain.debug"):
                traceback.print_exception(error)
            raise failure_of(error) from error


def failure_of(error: BaseException) -> CommandFailed:
    """Return what the command says of `error`."""
    leaf = first_leaf(error)
    expected = expected_failure(leaf)
    if expected is not None:
        return expected
    text = " ".join(str(leaf).split())
    return CommandFailed(
        [f"eventrain: {type(leaf).__name__}: {text} (a defect; --debug prints the traceback)"]
    )


@click.group(cls=Commands, help=HELP, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(version("eventrain"), prog_name="eventrain", message="%(prog)s %(version)s")
def commands() -> None:
    """Hold the commands."""


for _command in (
    run_command,
    plan_command,
    demo_command,
    top_command,
    status_command,
    events_command,
    show_command,
    replay_command,
    stalls_command,
    report_command,
    frontier_command,
    whatif_command,
    reproduce_command,
    simulate_command,
    log_command,
    fork_command,
    export_command,
    telemetry_command,
):
    commands.add_command(_command)
export_command.add_command(openmetrics_command)
export_command.add_command(traces_command)


def main() -> None:
    """Run the command line; what the `eventrain` script calls."""
    commands.main(prog_name="eventrain")
