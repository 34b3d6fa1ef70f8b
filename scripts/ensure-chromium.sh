#!/usr/bin/env bash
# Makes sure that a browser is there for the tests of the pages, and axe-core, which looks for what
# people who do not use a mouse or a screen would stumble over: scripts/ensure-chromium.sh FOLDER
#
# The browser is Debian's Chromium, or the one that OUTRIDER_CHROMIUM names; axe-core comes from npm
# into FOLDER.
set -euo pipefail
folder=${1:?usage: ensure-chromium.sh FOLDER}
axe=axe-core@4.11.0

has_chromium() {
  [ -n "${OUTRIDER_CHROMIUM:-}" ] || command -v chromium >/dev/null || command -v chromium-browser >/dev/null
}

install() {
  local what=$1
  if ! command -v apt-get >/dev/null || [ "$(id -u)" -ne 0 ]; then
    echo "$what is missing: install it with your package manager, on Debian: sudo apt-get install $what" >&2
    exit 1
  fi
  echo "installing $what"
  export DEBIAN_FRONTEND=noninteractive
  apt-get update -qq
  apt-get -o DPkg::Lock::Timeout=300 install -y -qq --no-install-recommends "$what" >/dev/null
}

has_chromium || install chromium
if [ ! -f "$folder/node_modules/axe-core/axe.min.js" ]; then
  command -v npm >/dev/null || install npm
  echo "installing $axe"
  mkdir -p "$folder"
  npm install --silent --ignore-scripts --no-save --no-audit --no-fund --prefix "$folder" "$axe"
fi
