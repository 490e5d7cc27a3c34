#!/usr/bin/env bash
# First measurements on a GPU: the gpu tests, then the demo's rollouts on a real target with both clocks.
#   scripts/gpu/measure.sh [TARGET] [OUT]      TARGET: hub id or folder (default: the embedded model)
set -euo pipefail
target=${1:-smollm2-135m}
out=${2:-results/gpu}
python -m pytest -m gpu tests/gpu
agentbench-spec doctor --device cuda
agentbench-spec run --config examples/demo.toml --target "$target" --device cuda --out "$out/demo"
python benchmarks/decode_verify.py --target "$target"
