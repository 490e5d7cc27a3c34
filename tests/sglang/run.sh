#!/usr/bin/env bash
# The one command: builds a real SGLang 0.5.23 for CPU in a virtual environment of its own (about 3 GB) and runs
# `pytest -m sglang` against it. Timings of this build are void (see standin/sgl_kernel).
#   tests/sglang/run.sh [pytest arguments]
# SGLANG_VENV: where it is built; kept and used again. PYTHON: the interpreter it is built with. TEST_PYTHON: the one
# that has agentbench-spec.
set -euo pipefail
cd "$(dirname "$0")/../.."
export SGLANG_VENV="${SGLANG_VENV:-${XDG_CACHE_HOME:-$HOME/.cache}/agentbench-spec/sglang-0.5.23-cpu}"
TEST_PYTHON="${TEST_PYTHON:-.venv/bin/python}"

if [ ! -e "$SGLANG_VENV/.complete" ]; then
    "${PYTHON:-python3}" -m venv --clear "$SGLANG_VENV"
    pip=("$SGLANG_VENV/bin/pip" install --quiet --disable-pip-version-check)
    "${pip[@]}" torch==2.13.0
    # --no-deps: the rest of what these declare is CUDA only, or not to be had for a CPU
    "${pip[@]}" --no-deps sglang==0.5.23
    "${pip[@]}" numpy transformers==5.19.0 tokenizers==0.23.2 msgspec orjson pyzmq requests aiohttp fastapi \
        'uvicorn>=0.51' uvloop psutil setproctitle pydantic prometheus-client pillow packaging tqdm einops scipy \
        sentencepiece==0.2.1 tiktoken partial_json_parser pybase64 python-multipart regex interegular xxhash zstandard \
        watchfiles IPython py-spy compressed-tensors==0.18.0 triton
    "${pip[@]}" --no-deps torchvision==0.28.0 dill apache-tvm-ffi==0.1.11 gguf openai==2.8.0 sniffio distro jsonschema \
        referencing rpds-py jsonschema-specifications python-dateutil docstring_parser jiter xgrammar==0.2.7 \
        soundfile==0.13.1 cffi pycparser
    touch "$SGLANG_VENV/.complete"
fi
exec "$TEST_PYTHON" -m pytest -m sglang tests/sglang "$@"
