#!/usr/bin/env bash
# Regenerates the committed stubs: proto/generate.sh [OUTPUT_FOLDER]. The generators are pinned
# exactly in pyproject.toml (extra `dev`), so the output is the same on every machine.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
out=${1:-$here/gen}
python=${PYTHON:-$here/../.venv/bin/python}
PATH="$(dirname "$python"):$PATH"   # the mypy plug-ins are found on PATH
rm -rf "$out/outrider" && mkdir -p "$out"
cd "$here"
mapfile -t sources < <(find outrider -name '*.proto' | sort)
"$python" -m grpc_tools.protoc -I. \
  --python_out="$out" --mypy_out=quiet:"$out" \
  --grpc_python_out="$out" --mypy_grpc_out=quiet:"$out" \
  "${sources[@]}"
find "$out/outrider" -type d -exec touch {}/__init__.py \;
# A file without services needs no gRPC module.
find "$out/outrider/common" -name '*_pb2_grpc.py*' -delete
