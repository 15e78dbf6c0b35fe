"""What is installed: the list of packages, the wheel, the versions."""

from __future__ import annotations

import shutil
import subprocess
import sys
import zipfile

import pytest
from packaging.requirements import Requirement

from .tree import PARTS, ROOT, project


def folders_with_packages() -> set[str]:
    """Return the import names of all folders that hold Python modules."""
    folders = {path.parent.relative_to(ROOT) for part in PARTS for path in (ROOT / part).rglob("*.py")}
    return {"eventrain." + ".".join(folder.parts) for folder in folders}


def test_packages_are_listed():
    """pyproject.toml lists every folder with modules in it, and no other."""
    assert set(project()["tool"]["setuptools"]["packages"]) == folders_with_packages()


def test_packages_have_an_init_file():
    """Every package has an __init__.py, so that no folder becomes a namespace by accident."""
    for name in folders_with_packages():
        folder = ROOT.joinpath(*name.split(".")[1:])
        assert (folder / "__init__.py").exists(), f"{folder.relative_to(ROOT)} has no __init__.py"


AHEAD = {"vllm"}
"""Extras that are not in `all`, and not pinned for the tests: they bring a PyTorch of their own."""


def requirements() -> list[Requirement]:
    """Return everything that pyproject.toml asks for: base, extras and dependency groups."""
    said = project()
    extras = said["project"]["optional-dependencies"]
    lists = [said["project"]["dependencies"], *(extras[name] for name in extras if name not in AHEAD)]
    lists += said["dependency-groups"].values()
    return [Requirement(line) for lines in lists for line in lines if not line.startswith("eventrain[")]


def pins() -> dict[str, Requirement]:
    """Return the lines of constraints-cpu.txt by name."""
    lines = (line.split("#")[0].strip() for line in (ROOT / "constraints-cpu.txt").read_text().splitlines())
    return {pin.name: pin for pin in map(Requirement, filter(None, lines))}


def test_constraints_pin_every_direct_dependency():
    """Each dependency of pyproject.toml has one exact version in constraints-cpu.txt, within its range."""
    exact = pins()
    assert set(exact) == {requirement.name for requirement in requirements()}
    for requirement in requirements():
        (specifier,) = exact[requirement.name].specifier
        assert specifier.operator == "=="
        assert requirement.specifier.contains(specifier.version), (
            f"{requirement} excludes {exact[requirement.name]}"
        )


def test_all_extra_names_every_extra():
    """The extra `all` is the union of those that something here uses."""
    extras = project()["project"]["optional-dependencies"]
    (everything,) = map(Requirement, extras["all"])
    assert everything.extras == set(extras) - {"all"} - AHEAD


@pytest.fixture(scope="module")
def wheel_names(tmp_path_factory) -> set[str]:
    """Build a wheel from a copy of the sources and return the names of the files in it."""
    copy = tmp_path_factory.mktemp("sources")
    for part in PARTS:
        shutil.copytree(ROOT / part, copy / part, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "LICENSE", "README.md"):
        shutil.copy(ROOT / name, copy)
    build = "import setuptools.build_meta as backend; print(backend.build_wheel('.'))"
    done = subprocess.run(
        [sys.executable, "-c", build], cwd=copy, capture_output=True, text=True, check=False, timeout=100
    )
    assert done.returncode == 0, done.stderr
    with zipfile.ZipFile(copy / done.stdout.strip().splitlines()[-1]) as wheel:
        return set(wheel.namelist())


@pytest.mark.slow
def test_wheel_holds_every_source_file(wheel_names):
    """The wheel carries all modules, the markers of typed packages, and the demo's configuration."""
    for part in PARTS:
        for path in (ROOT / part).rglob("*"):
            if path.suffix in {".py", ".typed", ".toml", ".json"} and "__pycache__" not in path.parts:
                assert f"eventrain/{path.relative_to(ROOT)}" in wheel_names


@pytest.mark.slow
def test_wheel_holds_nothing_else(wheel_names):
    """The wheel installs `eventrain` and its metadata, never a bare `core`, `events`, `adapters` or `tests`."""
    assert {name.split("/")[0].split("-")[0] for name in wheel_names} == {"eventrain"}
    assert any(name.endswith("licenses/LICENSE") for name in wheel_names)
