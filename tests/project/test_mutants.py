"""Rules that are weakened are noticed: the short form of scripts/mutants.py."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parent.parent.parent


def script() -> ModuleType:
    """Load scripts/mutants.py, which is no package."""
    spec = importlib.util.spec_from_file_location("mutants_script", ROOT / "scripts" / "mutants.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def test_every_rule_can_be_weakened() -> None:
    """Each rule's text is in the source exactly once, so that it is the rule that is taken out."""
    for mutant in script().MUTANTS:
        text = (ROOT / mutant.path).read_text()
        for old in filter(None, (mutant.old, mutant.also)):
            assert text.count(old) == 1, (mutant.name, old)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_six_weakened_rules_are_noticed_within_a_hundred_worlds(capsys: pytest.CaptureFixture[str]) -> None:
    """Six rules are noticed by one of 100 worlds each, and those worlds find nothing in the source as it is."""
    rules = ["window-start", "lag", "end-of-run", "masking", "group-floor", "surplus-fencing"]
    assert script().main(["--only", *rules, "--seeds", "100"]) == 0
    assert "nobody, as it should be" in capsys.readouterr().out
