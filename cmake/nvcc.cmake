# Programs by nvcc itself, so that nobody needs CMake's CUDA language: include(), then kvmeld_nvcc_program().
# KVMELD_NVCC is false where there is none.
include_guard()
find_program(KVMELD_NVCC nvcc PATHS /usr/local/cuda/bin)
set(KVMELD_CUDA_ARCHITECTURE sm_90 CACHE STRING "Architecture that CUDA programs are compiled for; compute_90: PTX alone")
file(GLOB_RECURSE kvmeld_nvcc_headers CONFIGURE_DEPENDS "${PROJECT_SOURCE_DIR}/include/kvmeld/*.hpp"
     "${PROJECT_SOURCE_DIR}/include/kvmeld/*.cuh" "${PROJECT_SOURCE_DIR}/tests/device/*.hpp" "${PROJECT_SOURCE_DIR}/tests/cuda/*.cuh")

# PTX alone is for the emulated device. Without the slowest optimisations nvcc takes about half of the time.
set(kvmeld_nvcc_quick)
if(KVMELD_NVCC AND KVMELD_CUDA_ARCHITECTURE MATCHES "^compute_")
  execute_process(COMMAND "${KVMELD_NVCC}" --help OUTPUT_VARIABLE kvmeld_nvcc_help)
  if(kvmeld_nvcc_help MATCHES "--Ofast-compile")
    set(kvmeld_nvcc_quick --Ofast-compile=min)
  endif()
endif()

if(NOT TARGET cuda_programs)
  add_custom_target(cuda_programs)
endif()

# kvmeld_nvcc_objects(OUT NAME SOURCES ... [OPTIONS ...]): the objects NAME.<unit>.o in the current binary directory, in OUT.
function(kvmeld_nvcc_objects out name)
  cmake_parse_arguments(PARSE_ARGV 2 arg "" "" "SOURCES;OPTIONS")
  # The emulated device reads PTX as it is.
  set(options -std=c++17 -arch=${KVMELD_CUDA_ARCHITECTURE} --no-compress -Werror all-warnings -Xcompiler
              -Wall,-Wextra "-I${PROJECT_SOURCE_DIR}/include" ${arg_OPTIONS})
  # Of the host's code alone: the device's is optimised anyway. Tests run for less time than an optimiser takes.
  if(CMAKE_BUILD_TYPE STREQUAL "Release")
    list(PREPEND options -O2)
  endif()
  list(PREPEND options ${kvmeld_nvcc_quick})
  set(objects)
  foreach(source IN LISTS arg_SOURCES)
    cmake_path(ABSOLUTE_PATH source BASE_DIRECTORY "${CMAKE_CURRENT_SOURCE_DIR}")
    get_filename_component(unit "${source}" NAME_WE)
    get_filename_component(folder "${source}" DIRECTORY)
    file(GLOB headers CONFIGURE_DEPENDS "${folder}/*.cuh" "${CMAKE_CURRENT_SOURCE_DIR}/*.cuh" "${CMAKE_CURRENT_SOURCE_DIR}/*.hpp")
    set(object "${CMAKE_CURRENT_BINARY_DIR}/${name}.${unit}.o")
    file(RELATIVE_PATH shown "${PROJECT_SOURCE_DIR}" "${source}")
    add_custom_command(
      OUTPUT "${object}"
      COMMAND "${KVMELD_NVCC}" ${options} -c -o "${object}" "${source}"
      DEPENDS "${source}" ${headers} ${kvmeld_nvcc_headers}
      COMMENT "Compiling ${shown} with nvcc"
      VERBATIM)
    list(APPEND objects "${object}")
  endforeach()
  set(${out} "${objects}" PARENT_SCOPE)
endfunction()

# kvmeld_nvcc_program(NAME TEST name SOURCES ... [OPTIONS ...] [LIBRARIES static library targets ...] [EMULATED [arguments ...]]):
# the executable NAME in the current binary directory, its target NAME.program, and a test which is skipped where the program
# ends with 77. With EMULATED, where the emulated device is built (tests/emulator), the same objects once more as
# NAME_emulated, run with these arguments, or once for the doctest cases of each *_test.cu. ONLY_EMULATED: nothing else.
function(kvmeld_nvcc_program name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "ONLY_EMULATED" "TEST" "SOURCES;OPTIONS;LIBRARIES;EMULATED")
  kvmeld_nvcc_objects(objects ${name} SOURCES ${arg_SOURCES} OPTIONS ${arg_OPTIONS})
  set(archives ${arg_LIBRARIES})
  list(TRANSFORM archives REPLACE "(.+)" "$<TARGET_FILE:\\1>")
  set(program "${CMAKE_CURRENT_BINARY_DIR}/${name}")
  if(NOT arg_ONLY_EMULATED)
    add_custom_command(
      OUTPUT "${program}"
      COMMAND "${KVMELD_NVCC}" -arch=${KVMELD_CUDA_ARCHITECTURE} -Xcompiler -pthread -o "${program}" ${objects} ${archives}
      DEPENDS ${objects} ${arg_LIBRARIES}
      COMMENT "Linking ${name}"
      VERBATIM)
    add_custom_target(${name}.program ALL DEPENDS "${program}")
    add_dependencies(cuda_programs ${name}.program)
    add_dependencies(optional_programs ${name}.program)
    add_test(NAME ${arg_TEST} COMMAND "${program}")
    set_tests_properties(${arg_TEST} PROPERTIES LABELS cuda SKIP_RETURN_CODE 77 TIMEOUT 600)
  endif()
  if(NOT TARGET kvmeld_emulator OR NOT ("EMULATED" IN_LIST ARGV OR arg_ONLY_EMULATED))
    return()
  endif()
  add_custom_command(
    OUTPUT "${program}_emulated"
    COMMAND "${CMAKE_CXX_COMPILER}" -pthread -o "${program}_emulated" ${objects} ${archives} $<TARGET_FILE:kvmeld_emulator>
    DEPENDS ${objects} ${arg_LIBRARIES} kvmeld_emulator
    COMMENT "Linking ${name} with the emulated device"
    VERBATIM)
  add_custom_target(${name}_emulated.program ALL DEPENDS "${program}_emulated")
  add_dependencies(optional_programs ${name}_emulated.program)
  set(runs ${arg_TEST}.emulated)
  set(cases ${arg_SOURCES})
  list(FILTER cases INCLUDE REGEX "_test\\.cu$")
  if(cases)
    set(runs)
    foreach(file IN LISTS cases)
      string(REGEX REPLACE "(.*/|_test\\.cu)" "" unit "${file}")
      list(APPEND runs ${arg_TEST}.emulated.${unit})
      add_test(NAME ${arg_TEST}.emulated.${unit} COMMAND "${program}_emulated" "--source-file=*/${file}" ${arg_EMULATED})
    endforeach()
  else()
    add_test(NAME ${arg_TEST}.emulated COMMAND "${program}_emulated" ${arg_EMULATED})
  endif()
  set_tests_properties(${runs} PROPERTIES LABELS "cuda;emulated" TIMEOUT 1200 ENVIRONMENT KVMELD_BRIEF_DEVICE_TESTS=1)
endfunction()
