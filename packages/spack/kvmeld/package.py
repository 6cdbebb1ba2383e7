# SPDX-License-Identifier: Apache-2.0

from spack_repo.builtin.build_systems.cmake import CMakePackage

from spack.package import *


class Kvmeld(CMakePackage):
    """Merging KV-cache entries in place, for LLM inference engines: headers for C++17."""

    license("Apache-2.0")

    # No release archive has an address yet: spack dev-build takes the sources from a folder.
    version("0.1.0")

    depends_on("cxx", type="build")
    depends_on("cmake@3.25:", type="build")

    def cmake_args(self):
        return [self.define(f"KVMELD_BUILD_{part}", False) for part in ("TESTS", "EXAMPLES", "BENCHMARKS")]
