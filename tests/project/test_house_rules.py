"""Rules that hold for every file of the project."""

from __future__ import annotations

import ast
import re

import pytest

from .tree import PARTS, ROOT, committed_files, dotted_names, python_files

PLACE = re.compile(r"(?<![\w.~:/])/(?:home|root|Users|work|opt|mnt|srv)/\w")
"""The beginning of a path that exists on somebody's machine only."""

TEXT = {".py", ".md", ".toml", ".txt", ".svg", ".yml", ".json", ""}


def test_no_file_names_a_place_on_a_machine():
    """No committed text holds a path of the machine it was written on."""
    for path in committed_files():
        if path.suffix in TEXT:
            for number, line in enumerate(path.read_text(errors="replace").splitlines(), start=1):
                assert not PLACE.search(line), f"{path.relative_to(ROOT)}:{number}: {line.strip()}"


def test_every_test_states_what_it_shows():
    """Every test has a docstring."""
    for path in python_files("tests"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_"):
                assert ast.get_docstring(node), f"{path.relative_to(ROOT)}:{node.lineno} {node.name}"


@pytest.mark.parametrize(
    "name", ["asyncio.Condition", "asyncio.wait_for", "asyncio.create_task", "asyncio.ensure_future"]
)
def test_hazards_of_asyncio_are_not_used(name):
    """No code waits in a way that can lose a wakeup or a cancellation, or starts a task outside a group."""
    for path in python_files(*PARTS):
        for used, line in dotted_names(path):
            assert used != name, f"{path.relative_to(ROOT)}:{line} uses {name}"


def test_tests_do_not_sleep_in_real_time():
    """No test waits for the clock on the wall: time in tests is virtual, or an event is awaited."""
    for path in python_files("tests"):
        if path.name.startswith("test_"):
            for used, line in dotted_names(path):
                assert used != "time.sleep", f"{path.relative_to(ROOT)}:{line} sleeps"


def test_nothing_is_pickled():
    """No module imports a library that executes code when it reads a file."""
    for path in python_files(*PARTS):
        found = {"pickle", "cloudpickle", "dill", "marshal", "shelve"} & set(
            re.findall(r"^\s*(?:import|from) (\w+)", path.read_text(), re.MULTILINE)
        )
        assert not found, f"{path.relative_to(ROOT)} imports {found}"
