# Configures, builds and runs tests/install/consumer in WORK_DIR, MODE being find_package or add_subdirectory.
cmake_minimum_required(VERSION 3.25)

function(step)
  execute_process(COMMAND ${ARGN} RESULT_VARIABLE result OUTPUT_VARIABLE output ERROR_VARIABLE output)
  message("${output}")
  if(NOT result EQUAL 0)
    list(JOIN ARGN " " command)
    message(FATAL_ERROR "failed (${result}): ${command}")
  endif()
endfunction()

file(REMOVE_RECURSE "${WORK_DIR}")
set(options "-DMODE=${MODE}")
if(MODE STREQUAL "find_package")
  step("${CMAKE_COMMAND}" --install "${KVMELD_BINARY_DIR}" --prefix "${WORK_DIR}/first")
  file(RENAME "${WORK_DIR}/first" "${WORK_DIR}/prefix") # the package may be moved
  list(APPEND options "-DCMAKE_PREFIX_PATH=${WORK_DIR}/prefix")
  file(GLOB_RECURSE sources RELATIVE "${KVMELD_SOURCE_DIR}/include" "${KVMELD_SOURCE_DIR}/include/*")
  file(GLOB_RECURSE installed RELATIVE "${WORK_DIR}/prefix/include" "${WORK_DIR}/prefix/include/*")
  if(NOT sources STREQUAL installed)
    message(FATAL_ERROR "installed headers are not those of include/:\n${installed}")
  endif()
else()
  list(APPEND options "-DKVMELD_SOURCE_DIR=${KVMELD_SOURCE_DIR}")
endif()

step("${CMAKE_COMMAND}" -S "${CMAKE_CURRENT_LIST_DIR}/consumer" -B "${WORK_DIR}/build" -G "${GENERATOR}"
     "-DCMAKE_MAKE_PROGRAM=${MAKE_PROGRAM}" "-DCMAKE_CXX_COMPILER=${COMPILER}" ${options})
step("${CMAKE_COMMAND}" --build "${WORK_DIR}/build")
step("${WORK_DIR}/build/consumer")
