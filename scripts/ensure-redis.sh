#!/usr/bin/env bash
# Makes sure that redis-server is there: the tests of the Redis store start a real one.
set -euo pipefail

command -v redis-server >/dev/null && exit 0
if ! command -v apt-get >/dev/null; then
  echo "redis-server is missing: install Redis 7 (or Valkey) with your package manager" >&2
  exit 1
fi
if [ "$(id -u)" -ne 0 ]; then
  echo "redis-server is missing: run 'sudo apt-get install redis-server'" >&2
  exit 1
fi
echo "installing redis-server"
export DEBIAN_FRONTEND=noninteractive
apt-get update -qq
apt-get install -y -qq --no-install-recommends redis-server >/dev/null
