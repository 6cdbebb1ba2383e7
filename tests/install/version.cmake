# The version is written in one place: changed there, it is changed in the package, for pkg-config and in the inline namespace.
include("${CMAKE_CURRENT_LIST_DIR}/steps.cmake")
copy_kvmeld()
set(header "${sources}/include/kvmeld/core/config.hpp")
file(READ "${header}" text)
string(REGEX REPLACE "(#define KVMELD_VERSION_MAJOR) [0-9]+" "\\1 7" text "${text}")
string(REGEX REPLACE "(#define KVMELD_VERSION_MINOR) [0-9]+" "\\1 81" text "${text}")
string(REGEX REPLACE "(#define KVMELD_VERSION_PATCH) [0-9]+" "\\1 92" text "${text}")
file(WRITE "${header}" "${text}")

set(build "${WORK_DIR}/build")
step("${CMAKE_COMMAND}" -S "${sources}" -B "${build}" ${toolchain} -DKVMELD_BUILD_TESTS=OFF -DKVMELD_BUILD_EXAMPLES=OFF
     -DKVMELD_BUILD_BENCHMARKS=OFF)
step("${CMAKE_COMMAND}" --install "${build}" --prefix "${WORK_DIR}/installed kvmeld")
set(prefix "${WORK_DIR}/installed kvmeld")

# The package: as asked for, also from a project without any language, for the files are those of every architecture.
file(WRITE "${WORK_DIR}/wants/CMakeLists.txt"
     "cmake_minimum_required(VERSION 3.25)\nproject(wants LANGUAGES NONE)\n"
     "find_package(kvmeld 7.81.92 EXACT CONFIG REQUIRED)\nset(CMAKE_SIZEOF_VOID_P 2)\nfind_package(kvmeld 7.81 CONFIG REQUIRED)\n")
step("${CMAKE_COMMAND}" -S "${WORK_DIR}/wants" -B "${WORK_DIR}/wants/build" -G "${GENERATOR}"
     "-DCMAKE_MAKE_PROGRAM=${MAKE_PROGRAM}" "-DCMAKE_PREFIX_PATH=${prefix}")

if(PKG_CONFIG)
  step("${CMAKE_COMMAND}" -E env "PKG_CONFIG_PATH=${prefix}/share/pkgconfig" "${PKG_CONFIG}" --exact-version=7.81.92 kvmeld)
endif()

file(WRITE "${WORK_DIR}/names.cpp" "#include <kvmeld/core/bits.hpp>\n"
                                   "auto const key = kvmeld::v7_81::order_key(1.0f);\n")
step("${COMPILER}" -std=c++17 -fsyntax-only "-I${prefix}/include" "${WORK_DIR}/names.cpp")
