"""`eventrain telemetry`: what Prometheus, Grafana and Jaeger need to know of eventrain's runs."""

from __future__ import annotations

import click

from .telemetry_init import telemetry_init


@click.group(name="telemetry", short_help="Set up Prometheus, Grafana and Jaeger for eventrain.")
def telemetry_command() -> None:
    """Set up Prometheus, Grafana and Jaeger for runs of eventrain."""


telemetry_command.add_command(telemetry_init)
