# Units with and without exceptions and fast math in one program, optimised as one at link time; tests/static builds the same
# program unit by unit.
include("${CMAKE_CURRENT_LIST_DIR}/steps.cmake")
install_kvmeld()
build_project(mixed_units "-DCMAKE_PREFIX_PATH=${prefix}" "-DUNITS=${KVMELD_SOURCE_DIR}/tests/static/one_program")
if(EXISTS "${build}/mixed_units")
  step("${build}/mixed_units")
endif()
