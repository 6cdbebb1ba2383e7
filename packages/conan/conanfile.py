import os
import re

from conan import ConanFile
from conan.tools.build import check_min_cppstd
from conan.tools.cmake import CMake, CMakeToolchain
from conan.tools.files import copy, load

required_conan_version = ">=2"


class KvmeldConan(ConanFile):
    name = "kvmeld"
    description = "Merging KV-cache entries in place, for LLM inference engines"
    license = "Apache-2.0"
    topics = ("llm", "kv-cache", "inference", "header-only")
    package_type = "header-library"
    settings = "os", "arch", "compiler", "build_type"
    implements = ["auto_header_only"]  # one package for all settings
    no_copy_source = True

    def _sources(self):
        return os.path.join(self.recipe_folder, "..", "..")  # it packages the sources around it

    def set_version(self):
        config = load(self, os.path.join(self._sources(), "include", "kvmeld", "core", "config.hpp"))
        self.version = ".".join(re.findall(r"#define KVMELD_VERSION_(?:MAJOR|MINOR|PATCH) (\d+)", config))

    def export_sources(self):
        for pattern in ("CMakeLists.txt", "LICENSE", "cmake/*", "include/*", "testing/*", "tools/*"):
            copy(self, pattern, self._sources(), self.export_sources_folder)

    def validate(self):
        if self.settings.get_safe("compiler.cppstd"):
            check_min_cppstd(self, 17)

    def generate(self):
        toolchain = CMakeToolchain(self)
        for part in ("TESTS", "EXAMPLES", "BENCHMARKS"):
            toolchain.cache_variables[f"KVMELD_BUILD_{part}"] = False
        toolchain.generate()

    def build(self):
        CMake(self).configure()

    def package(self):
        CMake(self).install()
        copy(self, "LICENSE", self.source_folder, os.path.join(self.package_folder, "licenses"))

    def package_info(self):
        # kvmeld's own package for CMake: it has the components host, cuda and kokkos.
        self.cpp_info.set_property("cmake_find_mode", "none")
        self.cpp_info.builddirs = [os.path.join("share", "cmake", "kvmeld")]
        self.cpp_info.set_property("pkg_config_name", "kvmeld")
        self.cpp_info.bindirs = []
        self.cpp_info.libdirs = []
        if self.settings.get_safe("os") in ("Linux", "FreeBSD"):
            self.cpp_info.system_libs = ["pthread"]
