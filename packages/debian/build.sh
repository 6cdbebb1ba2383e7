#!/usr/bin/env bash
# packages/debian/build.sh FOLDER: builds libkvmeld-dev in a copy of the sources and puts the package into FOLDER.
# Needs Debian's packages build-essential, debhelper and cmake.
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
