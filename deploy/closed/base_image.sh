#!/usr/bin/env bash
# Makes a base image from a Debian mirror, where no registry is reached:
#   base_image.sh bookworm python:3.11-slim-bookworm    with Python as `python`, and pip
#   base_image.sh trixie debian:trixie-slim
# It stands in for the public image of that name as far as the Dockerfiles here need it. The machine's
# own certificates go in, since the mirrors of a closed network often have an authority of their own.
set -euo pipefail
suite=${1:?usage: base_image.sh SUITE IMAGE}
image=${2:?usage: base_image.sh SUITE IMAGE}
if [ "$(id -u)" -ne 0 ] || ! command -v debootstrap >/dev/null; then
  echo "base_image.sh: needs root, and debootstrap (a package of Debian)" >&2
  exit 1
fi
packages=ca-certificates
case $image in python:*) packages+=,python3,python3-venv,python3-pip ;; esac
mirror=$("$(dirname "$0")/mirror.sh")

# In memory: unpacking a distribution waits for a disk at every file.
work=$(mktemp -d)
mount -t tmpfs -o size=2g outrider-base "$work"
trap 'umount "$work" && rmdir "$work"' EXIT
root=$work/root
if ! debootstrap --variant=minbase --include="$packages" "$suite" "$root" \
  "$mirror" > "$work/log" 2>&1; then
  tail -n 20 "$work/log" >&2
  exit 1
fi
if [ -x "$root/usr/bin/python3" ]; then
  ln -s /usr/bin/python3 "$root/usr/local/bin/python"
  rm -f "$root"/usr/lib/python3*/EXTERNALLY-MANAGED
fi
cp /etc/ssl/certs/ca-certificates.crt "$root/etc/ssl/certs/ca-certificates.crt"
rm -rf "$root"/var/cache/apt/*.bin "$root"/var/cache/apt/archives/*.deb \
  "$root"/var/lib/apt/lists/* "$root"/usr/share/{doc,man,locale}/*
tar --create --directory "$root" --one-file-system . | docker import - "$image" >/dev/null
