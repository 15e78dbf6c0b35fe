"""A Python that cannot start vLLM is refused in one line, before anything else is loaded."""

from __future__ import annotations

from pathlib import Path

import pytest

from eventrain.adapters.vllm import installed
from eventrain.adapters.vllm.installed import require_vllm


def python_that(says: str, folder: Path) -> str:
    """Return a program that answers as a Python with other packages would."""
    path = folder / "python"
    path.write_text(f"#!/bin/sh\n{says}\n")
    path.chmod(0o755)
    return str(path)


@pytest.mark.parametrize(
    ("says", "words"),
    [
        ("echo - 0.1.0 True", "vLLM is not installed for engine.python = .*: pip install 'eventrain.vllm.' there"),
        ("echo 0.31.2 0.1.0 True", "has version 0.31.2; supported are 0.32 and later, before 0.33"),
        ("echo 0.32.0 - True", "has vLLM 0.32.0 and no eventrain, which vLLM's workers need"),
        ("echo 0.32.0 0.1.0 False", "has vLLM 0.32.0 and no blake3"),
        ("echo what", "is no Python that can be used"),
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
    require_vllm(python_that("echo a warning; echo 0.32.0 0.1.0 True", tmp_path))


def test_a_python_that_is_not_there_is_refused(tmp_path: Path) -> None:
    """Also the one that runs this, where it has no vLLM: the line says what to install, and which setting helps."""
    with pytest.raises(ValueError, match=r"none' is no Python that can be used: .*No such file"):
        require_vllm(str(tmp_path / "none"))
    with pytest.raises(ValueError, match=r"vLLM is not installed for this Python: .* or have engine\.python name"):
        require_vllm(None)
