# cmake -P cmake/format.cmake            checks the format of every source file
# cmake -DFIX=ON -P cmake/format.cmake   rewrites them
cmake_minimum_required(VERSION 3.25)

set(wanted_version 14) # other versions read the same .clang-format but break lines differently
find_program(clang_format NAMES clang-format-${wanted_version} clang-format)
if(NOT clang_format)
  message(FATAL_ERROR "clang-format ${wanted_version} is not installed")
endif()
execute_process(COMMAND "${clang_format}" --version OUTPUT_VARIABLE version COMMAND_ERROR_IS_FATAL ANY)
if(NOT version MATCHES "version ${wanted_version}\\.")
  string(STRIP "${version}" version)
  message(FATAL_ERROR "kvmeld is formatted with clang-format ${wanted_version}; here is: ${version}")
endif()

get_filename_component(root "${CMAKE_CURRENT_LIST_DIR}" DIRECTORY)
set(sources)
foreach(folder include testing tools c python tests examples benchmarks)
  file(GLOB_RECURSE found "${root}/${folder}/*.hpp" "${root}/${folder}/*.inl" "${root}/${folder}/*.cpp" "${root}/${folder}/*.cuh"
       "${root}/${folder}/*.h" "${root}/${folder}/*.c"
       "${root}/${folder}/*.cu")
  list(APPEND sources ${found})
endforeach()
list(LENGTH sources count)
if(count EQUAL 0)
  message(FATAL_ERROR "no sources under ${root}")
endif()

if(FIX)
  execute_process(COMMAND "${clang_format}" -i ${sources} COMMAND_ERROR_IS_FATAL ANY)
  message(STATUS "formatted ${count} files")
else()
  execute_process(COMMAND "${clang_format}" --dry-run -Werror ${sources} RESULT_VARIABLE failed)
  if(failed)
    message(FATAL_ERROR "not formatted; to repair: cmake -DFIX=ON -P cmake/format.cmake")
  endif()
  message(STATUS "${count} files are formatted")
endif()
