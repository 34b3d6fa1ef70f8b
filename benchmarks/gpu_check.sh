#!/usr/bin/env bash
# Checks and measures this checkout on one GPU: benchmarks/gpu_check.sh [--dry-run] [--only PART,…]
#
# Needs Python 3.11 or newer with torch, and no network. PYTHON names the interpreter. What else is
# missing there is installed from a folder of wheels, WHEELS, by default wheels/ in the checkout.
set -euo pipefail
cd "$(dirname "$0")/.."
python=${PYTHON:-$([ -x .venv/bin/python ] && echo .venv/bin/python || echo python3)}
wheels=${WHEELS:-wheels}

for package in numpy safetensors triton; do
  "$python" -c "import importlib.util as u, sys; sys.exit(not u.find_spec('$package'))" ||
    "$python" -m pip install --quiet --no-index --find-links "$wheels" "$package" ||
    { echo "gpu_check: $package is missing, and there is no wheel of it in $wheels" >&2; exit 2; }
done
export PYTHONPATH="$PWD:services/worker:services/planner:lib:proto/gen${PYTHONPATH:+:$PYTHONPATH}"
# In a dry run the kernels are interpreted.
case " $* " in *" --dry-run "*) export TRITON_INTERPRET=1 ;; esac
exec "$python" -m benchmarks.gpu_check "$@"
