#!/usr/bin/env bash
# Prints the mirror of Debian that apt here knows. An apt that has fetched no lists yet knows none:
# then they are fetched first, which needs root.
set -euo pipefail

known() {
  apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' 'Origin: Debian' 'Label: Debian'
}

mirrors=$(known)
if [ -z "$mirrors" ] && [ "$(id -u)" -eq 0 ]; then
  apt-get update -qq >&2
  mirrors=$(known)
fi
if [ -z "$mirrors" ]; then
  echo "apt knows no mirror of Debian; what does apt-get update say?" >&2
  exit 1
fi
echo "${mirrors%%$'\n'*}"
