"""The pages say what the code says."""

from __future__ import annotations

import importlib.util
import inspect
import re

import pytest

from eventrain.adapters.cli.config_errors import known_keys
from eventrain.adapters.cli.main import commands
from eventrain.core.config import RunConfig
from eventrain.events.types import EVENT_CLASSES

from .tree import ROOT

PAGES = [*sorted((ROOT / "docs").glob("*.md")), ROOT / "README.md", ROOT / "CHANGELOG.md"]


@pytest.fixture(scope="module")
def generator():
    """Load docs/generate.py, which is no package."""
    spec = importlib.util.spec_from_file_location("generate_docs", ROOT / "docs" / "generate.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_generated_pages_are_fresh(generator):
    """docs/events.md and docs/configuration.md are what `make docs` would write now."""
    assert generator.stale() == []


@pytest.mark.parametrize("cls", EVENT_CLASSES, ids=lambda cls: cls.__name__)
def test_every_event_is_explained(generator, cls):
    """Each event has a sentence of its own, and each of its fields a meaning, on the page."""
    page = generator.event_page()
    assert cls.__doc__
    assert inspect.getdoc(cls).split("\n")[0].replace("``", "`") in page
    for name, field in cls.model_fields.items():
        assert name == "kind" or field.description or name in generator.SHARED_FIELDS, (
            f"{cls.__name__}.{name}"
        )


def test_shared_fields_exist(generator):
    """The list of shared meanings names no field that no event has."""
    assert set(generator.SHARED_FIELDS) <= {name for cls in EVENT_CLASSES for name in cls.model_fields}


def test_every_group_of_events_is_on_the_page(generator):
    """The groups of the page hold every event exactly once."""
    assert [cls for _, members in generator.groups() for cls in members] == list(EVENT_CLASSES)


def test_every_setting_is_explained():
    """Each section and each key of the configuration has a description."""
    for name, section in RunConfig.model_fields.items():
        assert section.annotation.__doc__, name
        for key, field in section.annotation.model_fields.items():
            assert field.description, f"{name}.{key}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page):
    """Every relative link and picture of a page names a file of the project."""
    for target in re.findall(r"\]\(([^)#\s]+)[^)]*\)", page.read_text()):
        if "://" not in target:
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


SHELL = re.compile(r"(?:^ {4}(?:\$ )?|`)eventrain (\w[^`#|\n]*)", re.MULTILINE)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_of_a_page_exist(page):
    """Every `eventrain ...` of a page names a command, with options that this command has, and settings that exist."""
    settings = set(known_keys())
    for said in SHELL.findall(page.read_text()):
        words = said.replace("...", "").split()
        command = commands.commands.get(words[0])
        assert command is not None, f"{page.name}: eventrain {said}"
        while hasattr(command, "commands") and len(words) > 1 and words[1] in command.commands:
            words = words[1:]
            command = command.commands[words[0]]
        options = {"--help", *(option for parameter in command.params for option in parameter.opts)}
        for word, after in zip(words, [*words[1:], ""], strict=True):
            if word.startswith("--"):
                assert word.split("=")[0] in options, f"{page.name}: eventrain {said}"
            if word in ("--set", "--sweep") and "=" in after:
                assert after.split("=")[0] in settings, f"{page.name}: eventrain {said}"
