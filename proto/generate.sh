#!/usr/bin/env bash
# Regenerates the committed stubs: proto/generate.sh [OUTPUT_FOLDER]. The generators are pinned
# exactly in pyproject.toml (extra `dev`), so the output is the same on every machine.
# Whoever imports the stubs meanwhile finds each module, the old one or the new.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
mkdir -p "${1:-$here/gen}"
out=$(cd "${1:-$here/gen}" && pwd)
python=${PYTHON:-$here/../.venv/bin/python}
PATH="$(dirname "$python"):$PATH"   # the mypy plug-ins are found on PATH
fresh=$(mktemp -d -p "$out")   # on the same disk, so that files are moved by renaming
trap 'rm -rf "$fresh"' EXIT

cd "$here"
mapfile -t sources < <(find outrider -name '*.proto' | sort)
"$python" -m grpc_tools.protoc -I. \
  --python_out="$fresh" --mypy_out=quiet:"$fresh" \
  --grpc_python_out="$fresh" --mypy_grpc_out=quiet:"$fresh" \
  "${sources[@]}"
find "$fresh/outrider" -type d -exec touch {}/__init__.py \;
# A file without services needs no gRPC module.
find "$fresh/outrider/common" -name '*_pb2_grpc.py*' -delete

files() { (cd "$1" && find outrider -type f -not -path '*/__pycache__/*' | sort); }
mkdir -p "$out/outrider"
mapfile -t stale < <(comm -13 <(files "$fresh") <(files "$out"))
mapfile -t made < <(files "$fresh")
for file in "${made[@]}"; do
  mkdir -p "$out/$(dirname "$file")"
  mv "$fresh/$file" "$out/$file"
done
for file in "${stale[@]}"; do
  rm "$out/$file"
done
find "$out/outrider" -type d -empty -delete
