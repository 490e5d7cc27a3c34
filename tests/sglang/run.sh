#!/usr/bin/env bash
# The one command: builds a real SGLang 0.5.23 for CPU in a virtual environment of its own (3 GB) and runs
# `pytest -m sglang` against it. A second call uses the same environment. Timings of that server are void, see
# standin/sgl_kernel.
#
#   tests/sglang/run.sh [pytest arguments]
#
# SGLANG_VENV   where the environment is kept (default: below the user's cache folder)
# further variables: tests/server_env.sh
set -euo pipefail
cd "$(dirname "$0")/../.."
here=tests/sglang
NEEDED_GB=5
. tests/server_env.sh
export SGLANG_VENV="${SGLANG_VENV:-$CACHE/sglang-0.5.23-cpu}"
SERVER_VENV="$SGLANG_VENV"

# The stand-in kernel package and the server's own modules, without starting anything.
check_build() {
    PYTHONPATH="$here/standin" "$SERVER_VENV/bin/python" - <<'CHECK'
import sys
from importlib import metadata
import sgl_kernel, torchvision, transformers
plugins = [entry.name for entry in metadata.entry_points(group="sglang.srt.plugins")]
if metadata.version("sglang") != "0.5.23" or "cpu_standin" not in plugins:
    sys.exit(f"sglang {metadata.version('sglang')}, plugins {plugins}: expected 0.5.23 with cpu_standin")
CHECK
}

test_python
server_env

# DLite's plugin and what it imports of ours, installed from this checkout beside the environment, which another checkout
# may be using. Without dependencies, as docs/serving.md says.
SGLANG_PLUGIN="$(mktemp -d)"
export SGLANG_PLUGIN
trap 'rm -rf "$SGLANG_PLUGIN"' EXIT
"$SGLANG_VENV/bin/python" -m pip install --quiet --disable-pip-version-check --no-deps --target "$SGLANG_PLUGIN" \
    . ./sglang_plugin || fail "the plugin could not be installed, see above"

"$TEST_PYTHON" -m pytest -m sglang "$here" "$@"
