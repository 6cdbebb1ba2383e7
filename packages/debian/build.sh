#!/usr/bin/env bash
# Builds libkvmeld-dev in a copy of the sources: packages/debian/build.sh FOLDER puts the package there.
# Packages of Debian: build-essential debhelper cmake.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
out=$(mkdir -p "${1:?a folder for the package}" && cd "$1" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

mkdir "$work/kvmeld"
cp -r "$root"/{CMakeLists.txt,LICENSE,cmake,include} "$work/kvmeld"
cp -r "$root/packages/debian" "$work/kvmeld/debian"
rm "$work/kvmeld/debian/build.sh"
(cd "$work/kvmeld" && dpkg-buildpackage -us -uc -b)
cp "$work"/*.{deb,buildinfo,changes} "$out"
