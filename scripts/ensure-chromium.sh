#!/usr/bin/env bash
# Makes sure that a browser is there for the tests of the pages: Debian's Chromium, or the one that
# OUTRIDER_CHROMIUM names.
set -euo pipefail

has_chromium() {
  [ -n "${OUTRIDER_CHROMIUM:-}" ] || command -v chromium >/dev/null || command -v chromium-browser >/dev/null
}

if has_chromium; then
  exit
fi
if ! command -v apt-get >/dev/null || [ "$(id -u)" -ne 0 ]; then
  echo "chromium is missing: install it with your package manager, on Debian: sudo apt-get install chromium" >&2
  exit 1
fi
echo "installing chromium"
export DEBIAN_FRONTEND=noninteractive
apt-get update -qq
apt-get -o DPkg::Lock::Timeout=300 install -y -qq --no-install-recommends chromium >/dev/null
