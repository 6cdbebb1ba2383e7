# An installed and moved kvmeld: all of its headers are there, and the project `host` finds, builds and runs it.
include("${CMAKE_CURRENT_LIST_DIR}/steps.cmake")
install_kvmeld()
file(GLOB_RECURSE written RELATIVE "${KVMELD_SOURCE_DIR}/include" "${KVMELD_SOURCE_DIR}/include/*")
file(GLOB_RECURSE installed RELATIVE "${prefix}/include" "${prefix}/include/*")
list(REMOVE_ITEM written kvmeld/kvmeld.h) # which comes with libkvmeld
list(REMOVE_ITEM installed kvmeld/kvmeld.h)
if(NOT written STREQUAL installed)
  message(FATAL_ERROR "installed headers are not those of include/:\n${installed}")
endif()

build_project(host "-DCMAKE_PREFIX_PATH=${prefix}" "-DVERSION=${KVMELD_VERSION}")
foreach(program preset_cxx17 preset_cxx20 preset_cxx23 bare)
  step("${build}/${program}")
endforeach()
