# Tools that cannot read config.hpp have the version written in their files: it is the same one.
#   cmake -DPACKAGES=<packages> -DVERSION=<x.y.z> -P packages_have_the_version.cmake
cmake_minimum_required(VERSION 3.25)

set(in_debian/changelog "^kvmeld \\(([^)]*)\\)")
set(in_spack/kvmeld/package.py "\n    version\\(\"([^\"]*)\"")
set(in_vcpkg/ports/kvmeld/vcpkg.json "\"version-semver\": \"([^\"]*)\"")
foreach(file IN ITEMS debian/changelog spack/kvmeld/package.py vcpkg/ports/kvmeld/vcpkg.json)
  file(READ "${PACKAGES}/${file}" text)
  if(NOT text MATCHES "${in_${file}}" OR NOT CMAKE_MATCH_1 STREQUAL VERSION)
    message(SEND_ERROR "packages/${file} has version ${CMAKE_MATCH_1}, config.hpp ${VERSION}")
  endif()
endforeach()
