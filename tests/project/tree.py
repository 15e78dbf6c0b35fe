"""The repository as the tests of the project see it: its files and what each imports and calls."""

from __future__ import annotations

import ast
import tomllib
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PARTS = ("core", "events", "adapters")
FOLDERS = (*PARTS, "tests", "benchmarks", "examples", "docs", "scripts", ".ci")
"""Everything that is committed, but for files that lie at the top."""


def project() -> dict:
    """Return pyproject.toml."""
    return tomllib.loads((ROOT / "pyproject.toml").read_text())


def python_files(*folders: str) -> Iterator[Path]:
    """Yield the Python files below `folders`."""
    for folder in folders:
        yield from sorted((ROOT / folder).rglob("*.py"))


def committed_files() -> Iterator[Path]:
    """Yield every file of the project, without what tools and runs leave behind."""
    yield from (path for path in ROOT.iterdir() if path.is_file() and path.name != ".coverage")
    for folder in FOLDERS:
        for path in (ROOT / folder).rglob("*"):
            if path.is_file() and "__pycache__" not in path.parts:
                yield path


def imports(path: Path) -> Iterator[str]:
    """Yield the absolute names of all that `path` imports, wherever in the file: modules and what is in them."""
    package = ["eventrain", *path.relative_to(ROOT).parent.parts]
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else []
            source = ".".join([*above, *([node.module] if node.module else [])])
            yield source
            yield from (f"{source}.{alias.name}" for alias in node.names)


def dotted_names(path: Path) -> Iterator[tuple[str, int]]:
    """Yield ``(name, line)`` of every dotted name in `path`, such as ``asyncio.sleep``."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            yield f"{node.value.id}.{node.attr}", node.lineno
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield from ((f"{node.module}.{alias.name}", node.lineno) for alias in node.names)
