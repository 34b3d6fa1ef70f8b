#!/usr/bin/env bash
# Prepares the environment: scripts/setup.sh FOLDER. Running it again installs only what is missing.
set -euo pipefail
venv=${1:?usage: scripts/setup.sh FOLDER}
python=$venv/bin/python
torch=${TORCH:-torch==2.13.0}

has_torch() {
  "$python" - <<'PY'
import importlib.metadata as metadata
import sys

try:
    version = metadata.version("torch")
except metadata.PackageNotFoundError:
    sys.exit(1)
sys.exit(tuple(int(part) for part in version.split(".")[:2]) < (2, 11))
PY
}

if [ ! -x "$python" ]; then
  echo "setup: creating $venv"
  "${PYTHON3:-python3}" -m venv "$venv"
fi
# The pip that comes with Python 3.11 takes twice as long to resolve.
"$python" -m pip install --quiet --upgrade "pip>=26"
# torch comes first and alone, so that the build chosen here is the one every extra finds.
if ! has_torch; then
  echo "setup: installing $torch (about a minute)"
  "$python" -m pip install --quiet "$torch"
fi
echo "setup: installing outrider with all its extras (about a minute the first time)"
"$python" -m pip install --quiet -e ".[router,planner,worker,observe,test,dev]"
"$venv/bin/outrider" fetch-model demo
echo "setup: done"
