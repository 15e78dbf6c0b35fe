"""`eventrain telemetry init`: what it writes, and what it leaves alone."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from click.testing import Result

from eventrain.adapters.cli.telemetry_init import SHIPPED, shipped_files

Command = Callable[..., Result]


def test_everything_that_ships_is_written(tmp_path: Path, command: Command) -> None:
    """The folder holds each file as it ships, and the next two commands are printed."""
    result = command("telemetry", "init", tmp_path / "new" / "telemetry")
    assert result.exit_code == 0
    written = {
        str(path.relative_to(tmp_path / "new" / "telemetry")): path.read_text(encoding="utf-8")
        for path in (tmp_path / "new" / "telemetry").rglob("*")
        if path.is_file()
    }
    assert written == dict(shipped_files())
    assert {"prometheus.yml", "compose.yaml", "rules/alerts.yml", "grafana/dashboards/eventrain.json"} <= set(
        written
    )
    _, *commands = result.output.splitlines()
    assert [line.split()[0] for line in commands] == ["docker", "eventrain"]
    assert "prometheus_port=9464" in commands[1]


def test_the_target_is_what_prometheus_scrapes(tmp_path: Path, command: Command) -> None:
    """Another target stands in the one file that names targets, and its port in the command to type."""
    result = command("telemetry", "init", tmp_path, "--target", "10.0.0.7:9500")
    assert "prometheus_port=9500" in result.output
    assert yaml.safe_load((tmp_path / "targets" / "run.yml").read_text()) == [{"targets": ["10.0.0.7:9500"]}]
    assert "9464" not in (tmp_path / "prometheus.yml").read_text()


def test_a_changed_file_is_not_written_over(tmp_path: Path, command: Command) -> None:
    """One changed file is named in one line and nothing is written; with --force all is as it ships."""
    command("telemetry", "init", tmp_path)
    changed = tmp_path / "rules" / "alerts.yml"
    changed.write_text("groups: []\n")
    (tmp_path / "compose.yaml").unlink()
    result = command("telemetry", "init", tmp_path)
    assert result.exit_code == 2
    assert result.output.splitlines() == [
        f"{tmp_path}: rules/alerts.yml changed since; --force writes over, another folder keeps both"
    ]
    assert not (tmp_path / "compose.yaml").exists()
    assert command("telemetry", "init", tmp_path, "--force").exit_code == 0
    assert changed.read_text() == shipped_files()["rules/alerts.yml"]


def test_files_that_are_as_they_ship_are_written_again(tmp_path: Path, command: Command) -> None:
    """A second init of the same folder is content, and leaves files of others in it alone."""
    command("telemetry", "init", tmp_path)
    (tmp_path / "targets" / "second.yml").write_text("- targets: [box:9465]\n")
    assert command("telemetry", "init", tmp_path).exit_code == 0
    assert (tmp_path / "targets" / "second.yml").exists()


@pytest.mark.parametrize(
    "target", ["10.0.0.7", "box:", "box:0", "box:99999", "http://box:9464", "box:9464/metrics", ""]
)
def test_a_target_without_a_host_and_a_port_is_refused(target: str, tmp_path: Path, command: Command) -> None:
    """One line says what a target looks like, and nothing is written."""
    result = command("telemetry", "init", tmp_path / "new", "--target", target)
    assert result.exit_code == 2
    assert result.output == f"--target {target}: is not HOST:PORT, as in host.docker.internal:9464\n"
    assert not (tmp_path / "new").exists()


def test_a_file_where_the_folder_should_be_is_refused(tmp_path: Path, command: Command) -> None:
    """One line says so."""
    (tmp_path / "telemetry").write_text("")
    result = command("telemetry", "init", tmp_path / "telemetry")
    assert (result.exit_code, len(result.output.splitlines())) == (2, 1)
    assert "is no folder" in result.output


def test_the_package_ships_each_file() -> None:
    """The patterns of the package's data take in every file that init writes."""
    import tomllib
    from fnmatch import fnmatch

    project = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text(encoding="utf-8"))
    patterns = project["tool"]["setuptools"]["package-data"][SHIPPED]
    for name in shipped_files():
        assert any(
            fnmatch(name, pattern.replace("**/", "*/")) or fnmatch(name, pattern) for pattern in patterns
        )
