"""The set-up script: which PyTorch it takes, and when it does nothing."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from .tree import ROOT


@pytest.fixture
def installer():
    """Load scripts/install.py, which is no package."""
    spec = importlib.util.spec_from_file_location("install_script", ROOT / "scripts" / "install.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def report(*names: str) -> dict:
    """Return what pip would say that it installs."""
    return {"version": "1", "install": [{"metadata": {"name": name, "version": "1"}} for name in names]}


CUDA_BUILD = report("torch", "cuda-toolkit", "nvidia-cudnn-cu13", "nvidia-nccl-cu13", "triton", "sympy")
OLDER_CUDA_BUILD = report("torch", "nvidia_cublas_cu12", "sympy")
CPU_BUILD = report("torch", "filelock", "sympy")


@pytest.mark.parametrize(
    ("build", "driver", "wanted"),
    [
        (CUDA_BUILD, False, True),
        (OLDER_CUDA_BUILD, False, True),
        (CUDA_BUILD, True, False),
        (CPU_BUILD, False, False),
        (CPU_BUILD, True, False),
        (report(), False, False),
    ],
)
def test_cpu_index_is_used_for_a_cuda_build_without_driver(installer, build, driver, wanted):
    """PyTorch comes from the CPU index exactly if pip would take a CUDA build and there is no NVIDIA driver."""
    assert installer.needs_cpu_index(build, driver) is wanted


@pytest.fixture
def recorded_pip(installer, monkeypatch):
    """Replace pip by a recorder that answers the question with a CUDA build."""
    calls = []

    def pip(_venv, *arguments):
        calls.append(arguments)
        return json.dumps(CUDA_BUILD)

    monkeypatch.setattr(installer, "pip", pip)
    monkeypatch.delenv("TORCH_INDEX", raising=False)
    return calls


def test_torch_alone_comes_from_the_cpu_index(installer, recorded_pip, monkeypatch, tmp_path):
    """From the CPU index only PyTorch itself is taken; what it needs comes from the usual one."""
    monkeypatch.setattr(installer, "has_nvidia_driver", lambda: False)
    installer.install_torch(tmp_path)
    _question, answer = recorded_pip
    assert answer[:4] == ("install", "--no-deps", "--index-url", installer.CPU_INDEX)


def test_torch_comes_as_it_is_with_a_driver(installer, recorded_pip, monkeypatch, tmp_path):
    """On a machine with an NVIDIA driver no index is named."""
    monkeypatch.setattr(installer, "has_nvidia_driver", lambda: True)
    installer.install_torch(tmp_path)
    assert "--index-url" not in recorded_pip[-1]


def test_torch_index_can_be_named(installer, recorded_pip, monkeypatch, tmp_path):
    """TORCH_INDEX decides, whatever the machine has."""
    monkeypatch.setattr(installer, "has_nvidia_driver", lambda: True)
    monkeypatch.setenv("TORCH_INDEX", "https://mirror.example/cpu")
    installer.install_torch(tmp_path)
    assert "https://mirror.example/cpu" in recorded_pip[-1]


def test_a_fitting_torch_is_kept(installer, monkeypatch, tmp_path):
    """When pip would install no PyTorch, because one is there, nothing is installed."""
    calls = []
    monkeypatch.setattr(installer, "pip", lambda _venv, *said: calls.append(said) or json.dumps(report()))
    installer.install_torch(tmp_path)
    assert len(calls) == 1


def test_second_set_up_does_nothing(installer, monkeypatch, tmp_path):
    """An environment whose stamp fits is left alone; one whose stamp differs is installed again."""
    python = installer.interpreter(tmp_path)
    python.parent.mkdir()
    python.touch()
    installs = []
    monkeypatch.setattr(installer, "make_environment", installs.append)
    monkeypatch.setattr(installer, "install_torch", lambda _venv: None)
    monkeypatch.setattr(installer, "pip", lambda *_: "")
    installer.install(tmp_path, "demo")
    installer.install(tmp_path, "demo")
    assert len(installs) == 1
    installer.install(tmp_path, "test")
    assert len(installs) == 2
    (tmp_path / ".eventrain-demo").write_text("of another pyproject.toml")
    installer.install(tmp_path, "demo")
    assert len(installs) == 3


def test_failed_command_says_what_it_said(installer):
    """A failing command raises SetupError with the command and the end of its output."""
    with pytest.raises(installer.SetupError, match="no room on the disk"):
        installer.run(sys.executable, "-c", "import sys; sys.exit('no room on the disk')")


def test_old_python_is_refused(installer, monkeypatch, capsys, tmp_path):
    """A Python older than 3.11 creates nothing and says in one sentence why, and how to name another."""
    old = SimpleNamespace(
        version_info=(3, 9), version="3.9.2 (main)", executable="python3", stderr=sys.stderr
    )
    monkeypatch.setattr(installer, "sys", old)
    monkeypatch.setattr(sys, "argv", ["install.py", "demo", "--venv", str(tmp_path / "venv")])
    assert installer.main() == 1
    said = capsys.readouterr().err
    assert "set-up failed: eventrain needs Python 3.11 or newer, and python3 is 3.9.2.\n" in said
    assert "make PYTHON=" in said
    assert not (tmp_path / "venv").exists()


def test_half_made_environment_is_made_anew(installer, tmp_path):
    """What an interrupted set-up left behind, an interpreter without pip, does not count as an environment."""
    python = installer.interpreter(tmp_path)
    python.parent.mkdir()
    assert not installer.works(python)
    python.write_text("#!/bin/sh\nexit 1\n")
    python.chmod(0o755)
    assert not installer.works(python)
    assert installer.works(Path(sys.executable))
