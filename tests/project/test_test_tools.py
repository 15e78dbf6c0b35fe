"""The script that gets what tests need besides Python says of nothing that it is there unless it is."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "scripts" / "test_tools.sh"
NEEDED = ("bash", "mkdir", "id", "dirname", "timeout")


def told(folder: Path, *programs: str) -> subprocess.CompletedProcess[str]:
    """Run the script where only `programs` are there, besides what it cannot do without."""
    there = folder / "bin"
    there.mkdir()
    for name in NEEDED:
        (there / name).symlink_to(shutil.which(name) or name)
    for name in programs:
        (there / name).write_text("#!/bin/sh\n")
        (there / name).chmod(0o755)
    return subprocess.run(
        ["bash", str(SCRIPT), str(folder / "tools")],
        env={"PATH": str(there)},
        capture_output=True,
        text=True,
        timeout=30,
        check=True,
    )


@pytest.mark.parametrize(
    ("programs", "required"),
    [
        ((), ""),
        (("chromium",), "chromium"),
        (("prometheus",), ""),
        (("prometheus", "promtool"), "prometheus"),
        (("prometheus", "promtool", "chromium"), "prometheus chromium"),
    ],
)
def test_what_is_there_is_required_and_what_is_not_is_named(
    programs: tuple[str, ...], required: str, tmp_path: Path
) -> None:
    """A program that is missing, and cannot be had, is told on stderr; its tests are skipped then."""
    done = told(tmp_path, *programs)
    assert done.stdout.splitlines()[-1] == f"export EVENTRAIN_REQUIRE='{required}'"
    assert ("no Chromium" in done.stderr) == ("chromium" not in required)
    assert ("no Prometheus" in done.stderr) == ("prometheus" not in required)
    if "prometheus" in required:
        assert f"export EVENTRAIN_PROMETHEUS_DIR='{tmp_path / 'bin'}'" in done.stdout
