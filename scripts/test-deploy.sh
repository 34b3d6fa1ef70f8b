#!/usr/bin/env bash
# The deployment, checked: scripts/test-deploy.sh short|long [ARGUMENTS OF PYTEST]
#
# short: what the platform's tools say of the files. Tools that are missing are fetched as packages of
# Debian; a check whose tool cannot be had is skipped.
# long: a real Prometheus over a real stack, the images, and the stack of deploy/compose/offline.yml,
# whose containers are killed, paused and replaced under load. A container engine that `docker` finds
# is used as it is. Without one, Docker is installed (root on Debian) and an engine runs for this
# alone: it builds on the machine's network, with base images made from Debian's packages, and runs
# the stack in a network namespace of its own.
# What was fetched and built is kept in OUTRIDER_DEPLOY_CACHE (~/.cache/outrider-deploy).
set -euo pipefail
form=${1:?usage: test-deploy.sh short|long [ARGUMENTS OF PYTEST]}
shift
cd "$(dirname "$0")/.."
cache=${OUTRIDER_DEPLOY_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/outrider-deploy}
python=.venv/bin/python

fetched=yes
deploy/closed/tools.sh "$cache/tools" || fetched=no
export PATH=$cache/tools/bin:$PATH
docker compose version >/dev/null 2>&1 || export DOCKER_CONFIG=$cache/tools/docker
if [ "$form" = short ]; then
  [ $fetched = yes ] || echo "not every tool could be fetched: some checks are skipped" >&2
  exec $python -m pytest -m deploy tests/deploy/test_tools.py "$@"
fi

[ $fetched = yes ] || exit 1
export OUTRIDER_TEST_STRICT=1
# Before the rest, which may have no network but its own.
$python -m pytest -m index tests/deploy
pytest=($python -m pytest -m "deploy or live or containers" tests/deploy "$@")
# The worker's other target, under a version of its own. Without a registry it gets the machine's own
# build of torch: all else of it is as for GPUs.
gpu_image() { OUTRIDER_VERSION=test OUTRIDER_MODEL=none "$@"; }
if docker info >/dev/null 2>&1; then
  docker compose -f docker-compose.yml -f deploy/compose/offline.yml build
  gpu_image docker compose -f docker-compose.yml -f deploy/compose/gpu.yml build worker-1
  exec "${pytest[@]}"
fi
if ! command -v dockerd >/dev/null || ! command -v debootstrap >/dev/null; then
  echo "no container engine: installing one that runs for this alone"
  export DEBIAN_FRONTEND=noninteractive
  apt-get update -qq
  apt-get install -y -qq --no-install-recommends docker.io debootstrap iptables iproute2 >/dev/null
fi
# A run that was interrupted may have left containers, which an engine starts again with itself.
deploy/closed/engine.sh build "$cache/engine" sh -c \
  "docker ps --all --quiet --filter label=com.docker.compose.project=outrider-test \
     | xargs --no-run-if-empty docker rm --force" >/dev/null
deploy/closed/engine.sh build "$cache/engine" deploy/closed/build.sh "$cache"
gpu_image deploy/closed/engine.sh build "$cache/engine" \
  deploy/closed/build.sh "$cache" gpu.yml worker-1
# Of layers that no image has any more, as many stay as the next build may want.
deploy/closed/engine.sh build "$cache/engine" sh -c \
  "docker image prune --force && docker builder prune --force --keep-storage 6GB" >/dev/null
exec deploy/closed/engine.sh run "$cache/engine" "${pytest[@]}"
