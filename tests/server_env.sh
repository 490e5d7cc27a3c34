# Sourced by tests/sglang/run.sh and tests/vllm/run.sh: builds a server's environment from pinned packages, once.
#
# Set before: here, SERVER_VENV, NEEDED_GB, and check_build, which ends with an error where the environment is not usable.
#
# PYTHON        builds the server's environment: a Python 3.11 (default: python3.11, else python3)
# TEST_PYTHON   runs the tests: has agentbench-spec with its dev extra (default: .venv/bin/python, made by `make setup`)
# TORCH_INDEX   a further package index with CPU builds of torch, where the default one has CUDA builds only:
#               https://download.pytorch.org/whl/cpu
PYTHON="${PYTHON:-$(command -v python3.11 || echo python3)}"
CACHE="${XDG_CACHE_HOME:-$HOME/.cache}/agentbench-spec"

fail() {
    echo "run.sh: $*" >&2
    exit 2
}

check_machine() {
    [ "$(uname -sm)" = "Linux x86_64" ] || fail "the pinned wheels are for Linux on x86-64, this is $(uname -sm)"
    "$PYTHON" -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))' ||
        fail "the pinned wheels are for Python 3.11, $PYTHON is none: PYTHON=/path/to/python3.11 $0"
    "$PYTHON" -c 'import ensurepip, venv' || fail "$PYTHON has no venv module (Debian: apt install python3.11-venv)"
    local free_gb
    free_gb=$(($(df -Pk "$(dirname "$SERVER_VENV")" | awk 'NR == 2 { print $4 }') / 1024 / 1024))
    [ "$free_gb" -ge "$NEEDED_GB" ] ||
        fail "$(dirname "$SERVER_VENV") has $free_gb GB free, $NEEDED_GB are needed: set ${here##*/}'s VENV elsewhere"
}

# Names what the environment is made from; another digest is another environment.
digest() {
    cat "$here/requirements.txt" | sha256sum | cut -c1-16
}

build() {
    check_machine
    echo "building $SERVER_VENV" >&2
    "$PYTHON" -m venv --clear "$SERVER_VENV"
    local index=()
    [ -z "${TORCH_INDEX:-}" ] || index=(--extra-index-url "$TORCH_INDEX")
    "$SERVER_VENV/bin/python" -m pip install --quiet --disable-pip-version-check --no-deps "${index[@]}" \
        -r "$here/requirements.txt" || fail "a package could not be installed, see above; nothing of it will be used"
    "$SERVER_VENV/bin/python" - <<'CHECK' || fail "the environment is not usable, see above"
import sys, torch
if torch.version.cuda:
    sys.exit(f"torch {torch.__version__} is a CUDA build: TORCH_INDEX=https://download.pytorch.org/whl/cpu")
CHECK
    check_build || fail "the environment is not usable, see above"
    digest >"$SERVER_VENV/.complete"
    echo "built in $SECONDS s" >&2
}

# The environment as the pinned list says, built now or before; a second call waits for the first one's build.
server_env() {
    mkdir -p "$(dirname "$SERVER_VENV")"
    exec 9>"$SERVER_VENV.lock"
    flock 9
    [ "$(cat "$SERVER_VENV/.complete" 2>/dev/null)" = "$(digest)" ] || build
    exec 9>&-
}

# TEST_PYTHON, made by `make setup` where there is none.
test_python() {
    if [ -z "${TEST_PYTHON:-}" ]; then
        TEST_PYTHON=.venv/bin/python
        [ -x "$TEST_PYTHON" ] || make setup PYTHON="$PYTHON"
    fi
    "$TEST_PYTHON" -c 'import agentbench_spec, httpx, pytest, pytest_timeout' ||
        fail "$TEST_PYTHON lacks agentbench-spec with its dev extra: run \`make setup\`, or set TEST_PYTHON"
}
