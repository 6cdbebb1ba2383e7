# kvmeld's own tests, examples and benchmarks where optional packages are absent. Each case configures all of them with some
# packages hidden, and looks at what was said and at which targets there are. A search that fails may leave a target behind.
include("${CMAKE_CURRENT_LIST_DIR}/steps.cmake")

# absent(NAME SAID expression... TARGETS expression OPTIONS option...): says each SAID, has no target that TARGETS matches.
function(absent name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "TARGETS" "SAID;OPTIONS")
  set(build "${WORK_DIR}/without ${name}")
  step("${CMAKE_COMMAND}" -S "${KVMELD_SOURCE_DIR}" -B "${build}" ${toolchain} "-DKVMELD_DOCTEST_INCLUDE_DIR=${DOCTEST}"
       -DKVMELD_BUILD_TESTS=ON -DKVMELD_BUILD_EXAMPLES=ON -DKVMELD_BUILD_CUDA_TESTS=ON ${arg_OPTIONS})
  string(REGEX REPLACE "[ \n]+" " " output "${output}") # CMake breaks lines of messages
  foreach(expression IN LISTS arg_SAID)
    if(NOT output MATCHES "${expression}")
      message(FATAL_ERROR "without ${name}: did not say \"${expression}\"")
    endif()
  endforeach()
  step("${CMAKE_COMMAND}" --build "${build}" --target help)
  if(NOT output MATCHES "example_preset") # which needs no package
    message(FATAL_ERROR "without ${name}: example_preset is not built")
  endif()
  if(output MATCHES "${arg_TARGETS}")
    message(FATAL_ERROR "without ${name}: has a target ${CMAKE_MATCH_0}")
  endif()
endfunction()

find_program(no_compiler false REQUIRED) # where an MPI compiler would be
set(ENV{PKG_CONFIG_LIBDIR} "${WORK_DIR}")
file(WRITE "${WORK_DIR}/kokkos/KokkosConfig.cmake"
     "add_library(Kokkos::kokkos INTERFACE IMPORTED)\nset(Kokkos_VERSION 4.0.0)\nset(Kokkos_FOUND FALSE)\n")
file(WRITE "${WORK_DIR}/modules/FindOpenMP.cmake"
     "add_library(OpenMP::OpenMP_CXX INTERFACE IMPORTED)\nset(OpenMP_CXX_FOUND FALSE)\nset(OpenMP_FOUND FALSE)\n")
absent("MPI and Kokkos"
       SAID "no MPI here" "nothing of its own runs on Kokkos: Kokkos 3.4 or newer was not found"
       TARGETS "kvmeld_paged_mpi|test_kokkos|example_kokkos|kvmeld_kokkos"
       OPTIONS "-DMPI_CXX_COMPILER=${no_compiler}" "-DKokkos_DIR=${WORK_DIR}/kokkos" -DKVMELD_BUILD_BENCHMARKS=ON -DKVMELD_NVCC=OFF)
absent("nvcc, OpenMP and OpenBLAS"
       SAID "no nvcc here, the CUDA tests are not built" "no nvcc here, the CUDA examples are not built"
            "no nvcc here, the device annotations are not checked" "no OpenMP here" "no OpenBLAS"
       TARGETS "kvmeld_emulator|_emulated|kvmeld_cuda|kvmeld_paged_device"
       OPTIONS -DKVMELD_NVCC=OFF "-DCMAKE_MODULE_PATH=${WORK_DIR}/modules" -DKVMELD_OPENBLAS_LIBRARY=OFF
               -DKVMELD_BUILD_BENCHMARKS=ON -DKVMELD_KOKKOS=OFF)
absent("what the demo needs"
       SAID "the demo is left out, it needs \\(packages of Debian\\): nlohmann-json3-dev"
       TARGETS "tiny_llama|kvmeld_demo|kvmeld_paged|kvmeld_slot"
       OPTIONS -DCMAKE_DISABLE_FIND_PACKAGE_nlohmann_json=ON -DKVMELD_NVCC=OFF
               -DKVMELD_KOKKOS=OFF -DKVMELD_BUILD_BENCHMARKS=OFF)
