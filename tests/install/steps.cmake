# What the scripts of this folder do: set up, install, copy, build and run.
cmake_minimum_required(VERSION 3.25)
file(REMOVE_RECURSE "${WORK_DIR}")
file(MAKE_DIRECTORY "${WORK_DIR}")
set(examples "${KVMELD_SOURCE_DIR}/examples")
set(toolchain -G "${GENERATOR}" "-DCMAKE_MAKE_PROGRAM=${MAKE_PROGRAM}" "-DCMAKE_CXX_COMPILER=${COMPILER}")

# Runs a command, or ends the script. What it wrote is in `output`.
function(step)
  execute_process(COMMAND ${ARGN} RESULT_VARIABLE result OUTPUT_VARIABLE output ERROR_VARIABLE output)
  message("${output}")
  if(NOT result EQUAL 0)
    list(JOIN ARGN " " command)
    message(FATAL_ERROR "failed (${result}): ${command}")
  endif()
  set(output "${output}" PARENT_SCOPE)
endfunction()

# The same for a command that has to fail, and to say what the expression wants.
function(step_fails expression)
  execute_process(COMMAND ${ARGN} RESULT_VARIABLE result OUTPUT_VARIABLE output ERROR_VARIABLE output)
  message("${output}")
  list(JOIN ARGN " " command)
  if(result EQUAL 0)
    message(FATAL_ERROR "was to fail: ${command}")
  endif()
  string(REGEX REPLACE "[ \n]+" " " output "${output}") # CMake breaks lines of messages
  if(NOT output MATCHES "${expression}")
    message(FATAL_ERROR "did not say \"${expression}\": ${command}")
  endif()
endfunction()

# Installs kvmeld, moves what was installed, and leaves the folder in `prefix`.
function(install_kvmeld)
  step("${CMAKE_COMMAND}" --install "${KVMELD_BINARY_DIR}" --prefix "${WORK_DIR}/first prefix")
  file(RENAME "${WORK_DIR}/first prefix" "${WORK_DIR}/installed kvmeld")
  set(prefix "${WORK_DIR}/installed kvmeld" PARENT_SCOPE)
endfunction()

# Copies what a release archive would need to be built from into `sources`.
function(copy_kvmeld)
  set(sources "${WORK_DIR}/sources of kvmeld")
  foreach(part c include testing tools cmake CMakeLists.txt LICENSE)
    file(COPY "${KVMELD_SOURCE_DIR}/${part}" DESTINATION "${sources}")
  endforeach()
  set(sources "${sources}" PARENT_SCOPE)
endfunction()

# Configures and builds a project of this folder, in the folder that `build` then names.
function(build_project name)
  set(build "${WORK_DIR}/build of ${name}")
  file(COPY "${CMAKE_CURRENT_LIST_DIR}/${name}" DESTINATION "${WORK_DIR}/a project")
  step("${CMAKE_COMMAND}" -S "${WORK_DIR}/a project/${name}" -B "${build}" ${toolchain} "-DEXAMPLES=${examples}" ${ARGN})
  step("${CMAKE_COMMAND}" --build "${build}" --parallel 2)
  set(build "${build}" PARENT_SCOPE)
endfunction()
