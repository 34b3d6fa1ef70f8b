#!/usr/bin/env bash
# Runs a command with a container engine that is there for it alone; its data stays under FOLDER.
#   engine.sh build FOLDER COMMAND…    containers use the machine's network: they reach the mirrors
#   engine.sh run FOLDER COMMAND…      in a network namespace that is gone with the command, so that
#                                      no address, rule or port of the machine is touched
# Needs root on Linux, and dockerd. The command finds the engine by DOCKER_HOST.
set -euo pipefail
mode=${1:?usage: engine.sh build|run FOLDER COMMAND…}
folder=$(mkdir -p "${2:?usage: engine.sh build|run FOLDER COMMAND…}" && cd "$2" && pwd)
shift 2
fail() { echo "engine.sh: $1" >&2; exit 1; }
[ "$(uname -s)" = Linux ] || fail "an engine of one's own needs Linux"
[ "$(id -u)" -eq 0 ] || fail "an engine of one's own needs root"
command -v dockerd >/dev/null || fail "dockerd is missing"

options=()
case $mode in
  build) options=(--bridge none --iptables=false --ip6tables=false --ip-forward=false) ;;
  run) unshare --net true || fail "the kernel refuses a network namespace"
       exec unshare --net -- "$0" inside "$folder" "$@" ;;
  inside) ip link set lo up ;;
  *) fail "no such mode: $mode" ;;
esac

export DOCKER_HOST=unix://$folder/docker.sock
! docker info >/dev/null 2>&1 || fail "an engine with its data in $folder runs already"
dockerd --data-root "$folder/data" --exec-root "$folder/exec" --pidfile "$folder/dockerd.pid" \
  --host "$DOCKER_HOST" "${options[@]}" > "$folder/dockerd.log" 2>&1 &
daemon=$!
command=
stop() {
  [ -z "$command" ] || kill "$command" 2>/dev/null || true
  kill "$daemon" 2>/dev/null && wait "$daemon" || true
}
trap stop EXIT
trap 'exit 130' INT TERM
until docker info >/dev/null 2>&1; do
  if ! kill -0 "$daemon" 2>/dev/null; then
    tail -n 20 "$folder/dockerd.log" >&2
    fail "the container engine does not start; its last words are above"
  fi
  sleep 0.2
done
# Waited for, not run in the foreground: a signal is heeded at once.
"$@" &
command=$!
wait "$command"
