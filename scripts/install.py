"""Set up the virtual environment that the Makefile's targets run in. Needs nothing but Python.

    python3 scripts/install.py demo     # what a run needs
    python3 scripts/install.py test     # the same, with all extras and the development tools
    python3 scripts/install.py bench    # the same, with the libraries that the benchmarks compare with

A second call returns at once: a stamp in the environment holds a digest of everything that was asked for.

PyTorch is the reason why this is a script and not one line of pip. On Linux the package index hands out a CUDA
build, with 3 to 5 GB of NVIDIA's libraries, whether or not the machine has a GPU. So pip is asked first, without
installing anything, what it would take. If that is a CUDA build and there is no NVIDIA driver, PyTorch alone comes
from its project's own index of CPU builds (about 200 MB). A PyTorch that the environment already has is kept.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CONSTRAINTS = ROOT / "constraints-cpu.txt"
CPU_INDEX = "https://download.pytorch.org/whl/cpu"
PYTHON_OLDEST = (3, 11)

LEVELS = {
    "demo": (".[torch,telemetry,view]", None),
    "test": (".[all]", "dev"),
    "bench": (".[all]", "bench"),
}
"""What each level installs: the project with its extras, and a dependency group of pyproject.toml."""


class SetupError(Exception):
    """The environment could not be made; the message says what to do."""


def needs_cpu_index(report: dict, nvidia_driver: bool) -> bool:
    """Tell whether PyTorch must come from the index of CPU builds.

    `report` is what ``pip install --dry-run --report`` says it would install for ``torch``. It names NVIDIA's
    libraries exactly if the build is for CUDA *and* meant for this platform: pip has read the markers.
    """
    if nvidia_driver:
        return False
    names = [item["metadata"]["name"].lower() for item in report["install"]]
    return any(name.startswith(("nvidia-", "nvidia_", "cuda-", "cuda_")) for name in names)


def has_nvidia_driver() -> bool:
    """Tell whether this machine (or the Windows below this Linux) has an NVIDIA driver."""
    places = ("/proc/driver/nvidia/version", "/usr/lib/wsl/lib/nvidia-smi")
    return shutil.which("nvidia-smi") is not None or any(Path(place).exists() for place in places)


def digest(level: str) -> str:
    """Return what changes whenever `level` has to be installed again."""
    parts = [level, str(ROOT), os.environ.get("TORCH_INDEX", "")]
    parts += [path.read_text() for path in (ROOT / "pyproject.toml", CONSTRAINTS, Path(__file__))]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


def interpreter(venv: Path) -> Path:
    """Return the Python of the environment `venv`."""
    return venv / ("Scripts/python.exe" if os.name == "nt" else "bin/python")


def works(python: Path) -> bool:
    """Tell whether an interpreter is there and has pip, unlike what an interrupted set-up leaves behind."""
    if not python.exists():
        return False
    command = [str(python), "-m", "pip", "--version"]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


def run(*command: object) -> str:
    """Run `command` in the project's folder and return its output.

    Raises SetupError with the end of what the command said, when it fails.
    """
    done = subprocess.run(
        [str(part) for part in command],
        cwd=str(ROOT),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        said = "\n".join((done.stderr or done.stdout).strip().splitlines()[-8:])
        raise SetupError(f"{' '.join(str(part) for part in command)}\n{said}")
    return done.stdout


def make_environment(venv: Path) -> None:
    """Create `venv` with a pip that reads dependency groups; keep what is there, if it works.

    Raises SetupError when this Python is too old to create it.
    """
    if not works(interpreter(venv)):
        version = sys.version.split()[0]
        if sys.version_info < PYTHON_OLDEST:
            said = f"eventrain needs Python 3.11 or newer, and {sys.executable} is {version}."
            raise SetupError(f"{said}\nName another one: make PYTHON=python3.12 ...")
        print(f"creating {venv.name} with Python {version}", flush=True)
        try:
            run(sys.executable, "-m", "venv", "--clear", venv)
        except SetupError as error:
            advice = "On Debian and Ubuntu, 'apt install python3-venv' adds what is missing."
            raise SetupError(f"{error}\n{advice}") from None
    pip(venv, "install", "--upgrade", "pip>=25.1")


def pip(venv: Path, *arguments: object) -> str:
    """Run the environment's pip and return its output."""
    return run(interpreter(venv), "-m", "pip", "--quiet", "--disable-pip-version-check", *arguments)


def install_torch(venv: Path) -> None:
    """Install PyTorch in a build that fits this machine; do nothing if the environment has a fitting one."""
    asked = ("-c", CONSTRAINTS, "torch")
    report = json.loads(pip(venv, "install", "--dry-run", "--report", "-", *asked))
    if not any(item["metadata"]["name"] == "torch" for item in report["install"]):
        return
    index = os.environ.get("TORCH_INDEX")
    if index is None and needs_cpu_index(report, has_nvidia_driver()):
        index = CPU_INDEX
    print("installing PyTorch" + (f", CPU build from {index}" if index else ""), flush=True)
    if index is None:
        pip(venv, "install", *asked)
        return
    try:
        pip(venv, "install", "--no-deps", "--index-url", index, *asked)
    except SetupError as error:
        raise SetupError(
            f"{error}\nTORCH_INDEX names another index to take PyTorch from: a mirror of {CPU_INDEX}, or\n"
            "https://pypi.org/simple for the CUDA build, which is several GB larger and runs on a CPU too."
        ) from None


def install(venv: Path, level: str) -> None:
    """Bring `venv` to `level`, or return at once if it is there."""
    stamp = venv / f".eventrain-{level}"
    wanted = digest(level)
    if stamp.exists() and stamp.read_text() == wanted and interpreter(venv).exists():
        return
    make_environment(venv)
    install_torch(venv)
    project, group = LEVELS[level]
    print(f"installing eventrain ({level}) and what it needs; the first time takes some minutes", flush=True)
    pip(venv, "install", "-c", CONSTRAINTS, "-e", project, *(("--group", group) if group else ()))
    stamp.write_text(wanted)


def main() -> int:
    """Parse the command line, install, and return the exit code."""
    parser = argparse.ArgumentParser(description="Set up the virtual environment of this project.")
    parser.add_argument("level", choices=sorted(LEVELS))
    parser.add_argument("--venv", type=Path, default=ROOT / ".venv", help="the environment (default: .venv)")
    arguments = parser.parse_args()
    try:
        install(arguments.venv.resolve(), arguments.level)
    except SetupError as error:
        print(f"set-up failed: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
