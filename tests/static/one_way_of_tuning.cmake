# Only backends and primitives know the kernels that a team may bring: no header outside backend/ and exec/ names
# them, or asks a team for them. Other rooms call the primitives of exec/.
#   cmake -DSOURCE_DIR=<repository> -P one_way_of_tuning.cmake
cmake_minimum_required(VERSION 3.25)
include("${CMAKE_CURRENT_LIST_DIR}/headers.cmake")

headers_below(headers *.hpp *.cuh)
set(table "kernels\\(\\)|with_kernels|has_kernels|host_kernels|typed_kernels|kernels_of|tuned->")

set(warnings)
set(primitives 0)
foreach(header IN LISTS headers)
  file(STRINGS "${SOURCE_DIR}/${header}" lines REGEX "${table}")
  if(header MATCHES "^include/kvmeld/exec/")
    list(LENGTH lines n)
    math(EXPR primitives "${primitives} + ${n}")
  elseif(NOT header MATCHES "^include/kvmeld/backend/")
    foreach(line IN LISTS lines)
      string(REPLACE ";" "" line "${line}") # lists of CMake know semicolons
      list(APPEND warnings "  ${header}: ${line}")
    endforeach()
  endif()
endforeach()

if(warnings)
  list(JOIN warnings "\n" warnings)
  message(FATAL_ERROR "headers that ask for kernels; they must call a primitive of exec/:\n${warnings}")
endif()
if(primitives LESS 10)
  message(FATAL_ERROR "only ${primitives} lines of exec/ name kernels; this check does not see them")
endif()
message(STATUS "kernels are named in backend/ and exec/ alone")
