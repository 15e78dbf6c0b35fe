"""`eventrain demo`."""

import click


@click.command("demo")
def demo_command() -> None:
    """Show."""
