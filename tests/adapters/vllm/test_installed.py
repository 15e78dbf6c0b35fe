"""A Python that cannot start vLLM is refused in one line, before anything else is loaded."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from eventrain.adapters.vllm import installed
from eventrain.adapters.vllm.arguments import engine_arguments
from eventrain.adapters.vllm.installed import require_vllm
from eventrain.core.config import EngineSection, RolloutSection


def python_that(says: str, folder: Path) -> str:
    """Return a program that answers as a Python with other packages would."""
    path = folder / "python"
    path.write_text(f"#!/bin/sh\n{says}\n")
    path.chmod(0o755)
    return str(path)


def told(vllm: str, eventrain: str = "0.1.0", **other: object) -> str:
    """Return the command that answers as a Python does that has these."""
    return f"echo '{json.dumps({'vllm': vllm, 'eventrain': eventrain, 'blake3': True, **other})}'"


@pytest.mark.parametrize(
    ("says", "words"),
    [
        (told("-"), "vLLM is not installed for engine.python = .*: pip install 'eventrain.vllm.' there"),
        (told("0.31.2"), "has version 0.31.2; supported are 0.32 and later, before 0.33"),
        (told("0.32.0", eventrain="-"), "has vLLM 0.32.0 and no eventrain, which vLLM's workers need"),
        (told("0.32.0", blake3=False), "has vLLM 0.32.0 and no blake3"),
        ("echo what", "is no Python that can be used"),
        ("echo", "is no Python that can be used"),
        ("true", "is no Python that can be used: it says nothing"),
        ("exit 3", "is no Python that can be used: .*exit status 3"),
        ("exec sleep 60", "has not said within 0.2 s whether it has vLLM"),
    ],
)
def test_what_is_missing_is_said_in_one_line(
    says: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The line names the setting, what was found, and what would do."""
    if "sleep" in says:
        monkeypatch.setattr(installed, "ASKED_S", 0.2)
    with pytest.raises(ValueError, match=words) as refused:
        require_vllm(python_that(says, tmp_path))
    assert "\n" not in str(refused.value)


def test_a_python_with_vllm_and_eventrain_is_let_through(tmp_path: Path) -> None:
    """What it says before the answer, such as a warning, does not matter."""
    require_vllm(python_that(f"echo a warning; {told('0.32.0')}", tmp_path))


def test_a_python_that_is_not_there_is_refused(tmp_path: Path) -> None:
    """Also the one that runs this, where it has no vLLM: the line says what to install, and which setting helps."""
    with pytest.raises(ValueError, match=r"none' is no Python that can be used: .*No such file"):
        require_vllm(str(tmp_path / "none"))
    with pytest.raises(ValueError, match=r"vLLM is not installed for this Python: .* or have engine\.python name"):
        require_vllm(None)


def test_options_and_ray_are_asked_for_where_they_are_needed(tmp_path: Path) -> None:
    """An option that this vLLM does not have is refused by name, with the one that was meant."""
    python = python_that(told("0.32.0", options=["max_num_seqs", "enforce_eager"]), tmp_path)
    require_vllm(python, ["enforce_eager"])
    with pytest.raises(ValueError, match=r"engine\.options\.enforce_eagr is no .* did you mean 'enforce_eager'"):
        require_vllm(python, ["enforce_eagr"])
    with pytest.raises(ValueError, match=r"has vLLM 0\.32\.0 and no Ray, .*: pip install 'eventrain.ray.' there"):
        require_vllm(python, ray=True)
    require_vllm(python_that(told("0.32.0", ray=True), tmp_path), ["unknown"], ray=True)  # it could not be read


@pytest.mark.slow
@pytest.mark.vllm
def test_the_options_of_a_real_vllm_are_read() -> None:
    """Those that eventrain sets itself are among them, and no other name is."""
    python = os.environ["EVENTRAIN_VLLM_PYTHON"]
    model, section = Path("model"), EngineSection(kind="vllm", device="cpu")
    require_vllm(python, engine_arguments(model, section, RolloutSection()))
    with pytest.raises(ValueError, match=r"engine\.options\.frobnicate is no engine argument of vLLM"):
        require_vllm(python, ["frobnicate"])
