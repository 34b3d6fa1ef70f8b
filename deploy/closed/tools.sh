#!/usr/bin/env bash
# Unpacks into FOLDER the tools that deploy/ is checked and run with, as far as the machine lacks
# them: prometheus, promtool, kubectl, and docker's plug-ins compose and buildx.
#   tools.sh FOLDER      then: PATH=FOLDER/bin:$PATH DOCKER_CONFIG=FOLDER/docker
# They come from packages of a newer Debian, by the mirror that apt here knows. Nothing is installed.
set -euo pipefail
mkdir -p "${1:?usage: tools.sh FOLDER}"
closed=$(cd "$(dirname "$0")" && pwd)
folder=$(cd "$1" && pwd)
suite=${OUTRIDER_TOOLS_SUITE:-trixie}
export PATH=$folder/bin:$PATH
mkdir -p "$folder/bin" "$folder/docker"

packages=()
command -v prometheus >/dev/null || packages+=(prometheus)
command -v promtool >/dev/null || packages+=(promtool)
command -v kubectl >/dev/null || packages+=(kubernetes-client)
for plugin in compose buildx; do
  docker "$plugin" version >/dev/null 2>&1 \
    || DOCKER_CONFIG=$folder/docker docker "$plugin" version >/dev/null 2>&1 \
    || packages+=("docker-$plugin")
done
[ ${#packages[@]} -gt 0 ] || exit 0
if ! command -v apt-get >/dev/null; then
  echo "missing, and no apt to fetch them with: ${packages[*]}" >&2
  exit 1
fi

echo "tools: fetching ${packages[*]} of $suite"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
chmod 755 "$work"
mkdir -p "$work"/{lists/partial,cache/archives/partial,debs,tree}
mirror=$("$closed/mirror.sh")
keys=/usr/share/keyrings/debian-archive-keyring.gpg
echo "deb [signed-by=$keys] $mirror $suite main" > "$work/sources.list"
apart=(-qq -o "Dir::Etc::SourceList=$work/sources.list" -o Dir::Etc::SourceParts=/dev/null
  -o "Dir::State::Lists=$work/lists" -o "Dir::Cache=$work/cache" -o APT::Sandbox::User=root)
apt-get "${apart[@]}" update
(cd "$work/debs" && apt-get "${apart[@]}" download "${packages[@]}")
for package in "$work"/debs/*.deb; do
  dpkg-deb --extract "$package" "$work/tree"
done
for tool in prometheus promtool kubectl; do
  [ ! -e "$work/tree/usr/bin/$tool" ] || cp "$work/tree/usr/bin/$tool" "$folder/bin/"
done
[ ! -d "$work/tree/usr/libexec/docker/cli-plugins" ] \
  || cp -r "$work/tree/usr/libexec/docker/cli-plugins" "$folder/docker/"
