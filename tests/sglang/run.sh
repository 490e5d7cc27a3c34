#!/usr/bin/env bash
# The one command: builds a real SGLang 0.5.23 for CPU in a virtual environment of its own (3 GB) and runs
# `pytest -m sglang` against it. A second call uses the same environment. Timings of that server are void, see
# standin/sgl_kernel.
#
#   tests/sglang/run.sh [pytest arguments]
#
# PYTHON        builds the server's environment: a Python 3.11 (default: python3.11, else python3)
# TEST_PYTHON   runs the tests: has agentbench-spec with its dev extra (default: .venv/bin/python, made by `make setup`)
# SGLANG_VENV   where the environment is kept (default: below the user's cache folder)
# TORCH_INDEX   a further package index with CPU builds of torch, where the default one has CUDA builds only:
#               https://download.pytorch.org/whl/cpu
set -euo pipefail
cd "$(dirname "$0")/../.."
here=tests/sglang
export SGLANG_VENV="${SGLANG_VENV:-${XDG_CACHE_HOME:-$HOME/.cache}/agentbench-spec/sglang-0.5.23-cpu}"
PYTHON="${PYTHON:-$(command -v python3.11 || echo python3)}"
NEEDED_GB=5

fail() {
    echo "run.sh: $*" >&2
    exit 2
}

check_machine() {
    [ "$(uname -sm)" = "Linux x86_64" ] || fail "SGLang's wheel is for Linux on x86-64, this is $(uname -sm)"
    "$PYTHON" -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))' ||
        fail "the pinned wheels are for Python 3.11, $PYTHON is none: PYTHON=/path/to/python3.11 $0"
    "$PYTHON" -c 'import ensurepip, venv' || fail "$PYTHON has no venv module (Debian: apt install python3.11-venv)"
    local free_gb
    free_gb=$(($(df -Pk "$(dirname "$SGLANG_VENV")" | awk 'NR == 2 { print $4 }') / 1024 / 1024))
    [ "$free_gb" -ge "$NEEDED_GB" ] ||
        fail "$(dirname "$SGLANG_VENV") has $free_gb GB free, $NEEDED_GB are needed: SGLANG_VENV=/elsewhere $0"
}

# Names what the environment is made from; another digest is another environment.
digest() {
    cat "$here/requirements.txt" | sha256sum | cut -c1-16
}

build() {
    check_machine
    echo "building $SGLANG_VENV" >&2
    "$PYTHON" -m venv --clear "$SGLANG_VENV"
    local index=()
    [ -z "${TORCH_INDEX:-}" ] || index=(--extra-index-url "$TORCH_INDEX")
    "$SGLANG_VENV/bin/python" -m pip install --quiet --disable-pip-version-check --no-deps "${index[@]}" \
        -r "$here/requirements.txt" || fail "a package could not be installed, see above; nothing of it will be used"
    check_build
    digest >"$SGLANG_VENV/.complete"
    echo "built in $SECONDS s" >&2
}

# The stand-in kernel package and the server's own modules, without starting anything.
check_build() {
    PYTHONPATH="$here/standin" "$SGLANG_VENV/bin/python" - <<'CHECK' || fail "the environment is not usable, see above"
import sys
from importlib import metadata
import torch
if torch.version.cuda:
    sys.exit(f"torch {torch.__version__} is a CUDA build: TORCH_INDEX=https://download.pytorch.org/whl/cpu")
import sgl_kernel, torchvision, transformers
plugins = [entry.name for entry in metadata.entry_points(group="sglang.srt.plugins")]
if metadata.version("sglang") != "0.5.23" or "cpu_standin" not in plugins:
    sys.exit(f"sglang {metadata.version('sglang')}, plugins {plugins}: expected 0.5.23 with cpu_standin")
CHECK
}

if [ -z "${TEST_PYTHON:-}" ]; then
    TEST_PYTHON=.venv/bin/python
    [ -x "$TEST_PYTHON" ] || make setup PYTHON="$PYTHON"
fi
"$TEST_PYTHON" -c 'import agentbench_spec, httpx, pytest, pytest_timeout' ||
    fail "$TEST_PYTHON lacks agentbench-spec with its dev extra: run \`make setup\`, or set TEST_PYTHON"

mkdir -p "$(dirname "$SGLANG_VENV")"
exec 9>"$SGLANG_VENV.lock"
flock 9 # a second call waits for the first one's build
[ "$(cat "$SGLANG_VENV/.complete" 2>/dev/null)" = "$(digest)" ] || build
exec 9>&-

# DLite's plugin and what it imports of ours, installed from this checkout beside the environment, which another checkout
# may be using. Without dependencies, as docs/serving.md says.
SGLANG_PLUGIN="$(mktemp -d)"
export SGLANG_PLUGIN
trap 'rm -rf "$SGLANG_PLUGIN"' EXIT
"$SGLANG_VENV/bin/python" -m pip install --quiet --disable-pip-version-check --no-deps --target "$SGLANG_PLUGIN" \
    . ./sglang_plugin || fail "the plugin could not be installed, see above"

"$TEST_PYTHON" -m pytest -m sglang "$here" "$@"
