#!/usr/bin/env bash
# Builds the images of the stack where no registry is reached.
#   build.sh FOLDER                            those of deploy/compose/offline.yml
#   build.sh FOLDER gpu.yml [SERVICE…]         those of another overlay, or some of them
# FOLDER keeps the wheel of torch.
# What it needs: a container engine that builds on the machine's network (engine.sh build), a mirror of
# Debian, and a package index. torch is the build that the environment here would install.
set -euo pipefail
wheels=$(mkdir -p "${1:?usage: build.sh FOLDER}/wheels" && cd "$1/wheels" && pwd)
overlay=${2:-offline.yml}
services=("${@:3}")
cd "$(dirname "$0")/../.."
closed=deploy/closed
python=.venv/bin/python
port=${OUTRIDER_WHEELS_PORT:-18431}

has_image() { docker image inspect "$1" >/dev/null 2>&1; }
has_image python:3.11-slim-bookworm || $closed/base_image.sh bookworm python:3.11-slim-bookworm
has_image debian:trixie-slim || $closed/base_image.sh trixie debian:trixie-slim

# The wheel is handed to the build over loopback: its address never changes, so the layer is kept.
version=$($python -c 'from importlib.metadata import version; print(version("torch"))')
wheel=$(find "$wheels" -name "torch-$version-*.whl" | head -n 1)
if [ -z "$wheel" ]; then
  $python -m pip download --quiet --no-deps --dest "$wheels" "torch==$version"
  wheel=$(find "$wheels" -name "torch-$version-*.whl" | head -n 1)
fi
$python -m http.server "$port" --bind 127.0.0.1 --directory "$wheels" >/dev/null 2>&1 &
server=$!
trap 'kill $server' EXIT

name=$(basename "$wheel")
export OUTRIDER_TORCH=http://127.0.0.1:$port/${name//+/%2B} OUTRIDER_BUILD_NETWORK=host
docker compose -f docker-compose.yml -f "deploy/compose/$overlay" build "${services[@]}"
