"""What may import what. The import linter checks the direction too; these run without it and see functions."""

from __future__ import annotations

import subprocess
import sys

import pytest

from .tree import PARTS, ROOT, dotted_names, imports, python_files

HEAVY = (
    "torch",
    "transformers",
    "pyarrow",
    "numpy",
    "safetensors",
    "blake3",
    "reasoning_gym",
    "gguf",
    "ray",
    "aiohttp",
    "vllm",
)
"""What only extras install. None may be needed to import a module of the base install."""

NEVER_IN_CORE = {"time", "random", "uuid", "secrets", "datetime", "threading", "multiprocessing", "socket"}
FORBIDDEN_CALLS = {
    "asyncio.sleep": "time passes through the Clock port",
    "asyncio.to_thread": "what blocks belongs behind a port",
    "os.urandom": "chance comes through ports",
    "os.getpid": "identity comes through ports",
}
NOT_FOR_HELP = (
    "opentelemetry",
    "textual",
    "plotly",
    "jinja2",
    "perfetto",
    "google.protobuf",
    "eventrain.adapters.telemetry.live",
    "eventrain.adapters.telemetry.metrics",
    "eventrain.adapters.telemetry.perfetto.export",
    "eventrain.adapters.telemetry.traces",
    "eventrain.adapters.telemetry.trackers",
)
"""What only some commands use, and most people who type `eventrain` should not wait for."""

OUTSIDE_ALLOWED = {
    "core": {"pydantic", "structlog"},
    "events": {"pydantic", "pydantic_core", "msgspec", "zstandard"},
}


def test_direction_of_imports():
    """core/ never imports adapters/, and events/ imports neither core/ nor adapters/."""
    wrong = {"core": ("eventrain.adapters",), "events": ("eventrain.adapters", "eventrain.core")}
    for part, targets in wrong.items():
        for path in python_files(part):
            for name in imports(path):
                assert not f"{name}.".startswith(tuple(f"{target}." for target in targets)), (
                    f"{path.relative_to(ROOT)} imports {name}"
                )


@pytest.mark.parametrize("part", OUTSIDE_ALLOWED)
def test_outside_libraries(part):
    """core/ and events/ import the standard library and a short list of others, nothing else."""
    allowed = OUTSIDE_ALLOWED[part] | {"eventrain"} | sys.stdlib_module_names
    for path in python_files(part):
        for name in imports(path):
            assert name.split(".")[0] in allowed, f"{path.relative_to(ROOT)} imports {name}"


def test_core_reads_no_clock_and_throws_no_dice():
    """core/ imports neither time nor chance nor identity, and asks asyncio for no delay."""
    for path in python_files("core"):
        where = path.relative_to(ROOT)
        for name in imports(path):
            assert name.split(".")[0] not in NEVER_IN_CORE, f"{where} imports {name}"
        for name, line in dotted_names(path):
            assert name not in FORBIDDEN_CALLS, f"{where}:{line} uses {name}: {FORBIDDEN_CALLS[name]}"


def test_inside_imports_are_relative():
    """Inside the package modules import each other relatively, so that the folders resolve as they lie."""
    for path in python_files(*PARTS):
        source = path.read_text()
        assert "\nfrom eventrain" not in source, (
            f"{path.relative_to(ROOT)} imports eventrain by its absolute name"
        )
        assert "\nimport eventrain" not in source, (
            f"{path.relative_to(ROOT)} imports eventrain by its absolute name"
        )


NEED_AN_EXTRA = (
    "adapters/torch/",
    "adapters/weights/",
    "adapters/vllm/engine_process",  # inside vLLM's own environment, as the next one
    "adapters/vllm/transfer",
    "adapters/vllm/server",
    "adapters/vllm/checking",
    "adapters/vllm/http_link",
)
"""Modules that are imported only where what they need is wanted."""


def base_modules() -> list[str]:
    """Return the modules that must import without any extra."""
    found = []
    for path in python_files(*PARTS):
        parts = path.relative_to(ROOT).with_suffix("").parts
        if not "/".join(parts).startswith(NEED_AN_EXTRA) and parts[-1] != "__main__":
            found.append(".".join(["eventrain", *(part for part in parts if part != "__init__")]))
    return found


def test_base_install_imports_nothing_heavy():
    """Importing every module of the base install loads no library that only an extra installs."""
    script = (
        "import importlib, sys\n"
        f"for name in {base_modules()!r}:\n"
        "    importlib.import_module(name)\n"
        f"    heavy = [top for top in {HEAVY!r} if top in sys.modules]\n"
        "    assert not heavy, f'{name} imports {heavy}'\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 0, done.stderr.strip().splitlines()[-1]


def test_help_waits_for_no_telemetry_and_no_view():
    """`eventrain --help` imports nothing of what only a run, an export, or a view needs."""
    script = (
        "import atexit, sys\n"
        "from eventrain.adapters.cli.main import main\n"
        f"tell = lambda: print('imported', [name for name in {NOT_FOR_HELP!r} if name in sys.modules])\n"
        "atexit.register(tell)\n"
        "sys.argv = ['eventrain', '--help']\n"
        "main()\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60
    )
    assert "Look at a run" in done.stdout
    assert done.stdout.splitlines()[-1] == "imported []"
