#!/usr/bin/env bash
# Checks and measures this checkout on one GPU: benchmarks/gpu_check.sh [--dry-run] [--only PART,…]
#
# Needs Python 3.11 or newer with torch; no network. PYTHON names the interpreter. Packages that are
# missing there are installed from a folder of wheels, if one is carried along: WHEELS, by default
# wheels/ beside this checkout's root.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
cd "$root"
python=${PYTHON:-$([ -x .venv/bin/python ] && echo .venv/bin/python || echo python3)}
wheels=${WHEELS:-$root/wheels}

missing=$("$python" - <<'PY'
import importlib.util as util

NAMES = {"numpy": "numpy", "safetensors": "safetensors", "tokenizers": "tokenizers",
         "structlog": "structlog", "triton": "triton"}
print(*(package for module, package in NAMES.items() if util.find_spec(module) is None))
PY
)
if [ -n "$missing" ]; then
  [ -d "$wheels" ] || { echo "gpu_check: missing $missing, and no wheels in $wheels" >&2; exit 2; }
  # shellcheck disable=SC2086 # a list of names
  "$python" -m pip install --quiet --no-index --find-links "$wheels" $missing
fi
export PYTHONPATH="$root:services/worker:services/planner:lib:proto/gen${PYTHONPATH:+:$PYTHONPATH}"
# In a dry run the kernels are interpreted.
case " $* " in *" --dry-run "*) export TRITON_INTERPRET=1 ;; esac
exec "$python" -m benchmarks.gpu_check "$@"
