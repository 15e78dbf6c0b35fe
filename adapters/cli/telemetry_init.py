"""`eventrain telemetry init`: write what Prometheus, Grafana and Jaeger need into a folder."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path

import click

from .debug_option import debug_option
from .failures import BadInput

HELP = """Write rules, alerts, a dashboard and a compose file for Prometheus, Grafana and Jaeger into DIR.

Nothing of yours is lost: a file that you changed is not written over without --force.

\b
Examples:
  eventrain telemetry init telemetry
  eventrain telemetry init telemetry --target 10.0.0.7:9464
"""

SHIPPED = "eventrain.adapters.telemetry.shipped"
KINDS = (".yml", ".yaml", ".json", ".md")
TARGET = "host.docker.internal:9464"
"""The target that the shipped file names: a run on the host of the containers, on the usual port of exporters."""
_TARGETS_FILE = "targets/run.yml"


@click.command("init", help=HELP, short_help="Write what Prometheus, Grafana and Jaeger need into a folder.")
@click.argument("folder", metavar="DIR", type=click.Path(path_type=Path))
@click.option(
    "--target",
    default=TARGET,
    show_default=True,
    metavar="HOST:PORT",
    help="Where the run shows /metrics, as Prometheus reaches it.",
)
@click.option("--force", is_flag=True, help="Write over files that were changed.")
@debug_option
def telemetry_init(folder: Path, target: str, force: bool) -> None:
    """Write what Prometheus, Grafana and Jaeger need into a folder."""
    port = _port(target)
    if folder.exists() and not folder.is_dir():
        raise BadInput([f"{folder}: is no folder; name one, or a new one"])
    wanted = {name: text.replace(TARGET, target) for name, text in shipped_files().items()}
    changed = [name for name, text in wanted.items() if _differs(folder / name, text)]
    if changed and not force:
        raise BadInput(
            [f"{folder}: {', '.join(changed)} changed since; --force writes over, another folder keeps both"]
        )
    for name, text in wanted.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    click.echo(f"{folder}: {len(wanted)} files; README.md there says what each is for. Next:")
    click.echo(f"  docker compose -f {folder / 'compose.yaml'} up -d")
    click.echo(
        f"  eventrain run CONFIG.toml --set telemetry.prometheus_port={port} "
        "--set telemetry.prometheus_host=0.0.0.0"
    )


def shipped_files() -> Mapping[str, str]:
    """Return the text of every file that ships, by its path in the folder."""
    return dict(sorted(_below(files(SHIPPED), "")))


def _below(place: Traversable, prefix: str) -> Iterator[tuple[str, str]]:
    for found in place.iterdir():
        if found.is_dir():
            yield from _below(found, f"{prefix}{found.name}/")
        elif found.name.endswith(KINDS):
            yield f"{prefix}{found.name}", found.read_text(encoding="utf-8")


def _differs(path: Path, text: str) -> bool:
    """Return whether a file is there that says something else.."""
    if not path.exists():
        return False
    try:
        return path.read_text(encoding="utf-8") != text
    except (UnicodeDecodeError, IsADirectoryError):
        return True


def _port(target: str) -> int:
    """Return the port of `target`. Raises `BadInput` when it is not HOST:PORT."""
    matched = re.fullmatch(r"(\[[0-9a-fA-F:]+\]|[A-Za-z0-9._-]+):([0-9]{1,5})", target)
    if matched is None or not 0 < int(matched[2]) < 65536:
        raise BadInput([f"--target {target}: is not HOST:PORT, as in {TARGET}"])
    return int(matched[2])
