#!/usr/bin/env bash
# Measure on a GPU that reaches no network: four parts of less than ten minutes each, continued where they were cut.
#
#   scripts/gpu/measure.sh [--out FOLDER] [PART ...]     parts 1 2 3 4, default: those that are not done
#   scripts/gpu/measure.sh --cpu [PART ...]              every part in thin widths on the CPU: does the script work here?
#   scripts/gpu/measure.sh --carry                       where there is a network and the same Python: fill scripts/gpu/wheels
#
# Results go to results/gpu/ (with --cpu to results/gpu-thin/), a folder with manifest, rows and table a measurement. Where
# the package is not installed, it is installed from scripts/gpu/wheels into .gpu_site/, without a network. PYTHON names
# another interpreter. Exit code 0: all parts asked for are done; 124: one ran out of its time and goes on when called again.
set -euo pipefail
cd "$(dirname "$0")/../.."

part_seconds=570
python=${PYTHON:-python3}
wheels=scripts/gpu/wheels site=.gpu_site
out='' cpu='' carry='' parts=()
while (($#)); do
  case $1 in
    --cpu) cpu=1 ;;
    --carry) carry=1 ;;
    --out) out=${2:?--out needs a folder}; shift ;;
    [1-4]) parts+=("$1") ;;
    *) echo "measure.sh: $1 is no option and no part (1 2 3 4)" >&2; exit 2 ;;
  esac
  shift
done
out=${out:-results/gpu${cpu:+-thin}}

if [[ $carry ]]; then
  mkdir -p "$wheels"
  "$python" -m pip wheel --quiet --no-deps --wheel-dir "$wheels" .
  "$python" -m pip download --quiet --no-deps --dest "$wheels" $("$python" scripts/gpu/carried.py)
  du -sh "$wheels"
  exit
fi

if [[ ! $cpu ]] && ! nvidia-smi --query-gpu=name,memory.total,driver_version --format=csv,noheader; then
  echo "measure.sh: nvidia-smi finds no GPU; try the script itself with --cpu" >&2
  exit 2
fi
export HF_HUB_OFFLINE=1 TRANSFORMERS_OFFLINE=1 HF_DATASETS_OFFLINE=1 PYTHONUNBUFFERED=1
export PYTHONPATH="$PWD/$site${PYTHONPATH:+:$PYTHONPATH}"
there='from importlib.util import find_spec as f; raise SystemExit(not (f("agentbench_spec_drafters") and f("transformers")))'
if ! "$python" -c "$there"; then
  compgen -G "$wheels/*.whl" >/dev/null || {
    echo "measure.sh: $python lacks the package and $wheels is empty: pip install -e . here, or --carry elsewhere" >&2
    exit 2
  }
  "$python" -m pip install --quiet --no-index --no-deps --upgrade --target "$site" "$wheels"/*.whl
fi
((${#parts[@]})) || for part in 1 2 3 4; do [[ -e $out/part$part.done ]] || parts+=("$part"); done

about=('' 'qwen3-4b at 1K launched kernel by kernel and from graphs, facts, GPU tests' 'qwen3-4b, one row, 1K to 64K' \
  'qwen3-4b, 4 to 64 rows, 1K and 8K' 'qwen3-8b, one row and 16, 1K and 32K')
echo "to do: ${#parts[@]} part(s), each less than $((part_seconds / 60 + 1)) minutes, into $out"
for part in "${parts[@]}"; do echo "  $part: ${about[$part]}"; done

deadline=0
limited() { # run a command within what is left of the part's time
  local left=$((deadline - SECONDS))
  ((left > 0)) || return 124
  timeout --signal=INT --kill-after=20 "$left" "$@"
}
bench() { # NAME OUT CONTEXTS CONCURRENCY [OPTION ...]
  local name=$1 folder=$2 contexts=$3 together=$4
  shift 4
  if [[ $cpu ]]; then
    set -- "$@" --thin --device cpu --rounds 2 --repeats 1 --width 2
    contexts=24 together=${together%%,*}
    ((together > 2)) && together=2
  else
    set -- "$@" --device cuda
  fi
  limited "$python" -m agentbench_spec bench geometry "$name" --context "$contexts" --concurrency "$together" \
    --out "$out/$folder" "$@"
}
part1() {
  bench qwen3-4b qwen3-4b-launched 1024 1 --graphs off
  bench qwen3-4b qwen3-4b-graphs 1024 1
  limited "$python" -m agentbench_spec doctor --device "$([[ $cpu ]] && echo cpu || echo cuda)"
  if "$python" -c 'import pytest' 2>/dev/null; then
    if [[ $cpu ]]; then limited "$python" -m pytest -q tests/gpu/test_device.py
    else limited "$python" -m pytest -q -m gpu tests/gpu; fi
  else
    echo "no pytest here: the GPU tests are not run"
  fi
}
part2() { bench qwen3-4b qwen3-4b-one-row 1024,4096,16384,32768,65536 1; }
part3() { bench qwen3-4b qwen3-4b-many-rows 1024,8192 4,16,64; }
part4() { bench qwen3-8b qwen3-8b 1024,32768 1,16; }

mkdir -p "$out"
failed=0
for part in "${parts[@]}"; do
  echo "== part $part: ${about[$part]}"
  began=$SECONDS deadline=$((SECONDS + part_seconds))
  set +e # in "... || rc=$?" no failure inside would end the part
  (set -e; "part$part")
  rc=$?
  set -e
  if ((rc == 0)); then
    touch "$out/part$part.done"
    echo "== part $part done in $((SECONDS - began)) s"
  else
    echo "== part $part ended with code $rc after $((SECONDS - began)) s; call it again: measured rows are kept" >&2
    failed=$rc
  fi
done
exit "$failed"
