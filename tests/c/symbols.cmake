# The symbols that a library defines for others are the functions that a header declares with KVMELD_API.
#   cmake -DNM=nm -DLIBRARY=<libkvmeld.so> -DHEADER=<kvmeld.h> -P symbols.cmake
cmake_minimum_required(VERSION 3.25)

file(READ "${HEADER}" text)
string(REGEX MATCHALL "KVMELD_API[ a-z0-9_*]* [*]*kvmeld_[a-z_]+[(]" declared "${text}")
list(TRANSFORM declared REPLACE "^.*[ *](kvmeld_[a-z_]+)[(]$" "\\1")
list(LENGTH declared count)
if(count LESS 30)
  message(FATAL_ERROR "only ${count} functions were found in ${HEADER}; this check does not see them")
endif()

execute_process(COMMAND "${NM}" -D --defined-only "${LIBRARY}" OUTPUT_VARIABLE listed COMMAND_ERROR_IS_FATAL ANY)
string(REGEX MATCHALL "[^ \n]+ [A-Za-z] [^ \n]+" lines "${listed}")
set(exported)
foreach(line IN LISTS lines)
  if(line MATCHES " A KVMELD_[0-9]+$") # the name of the version itself
    continue()
  endif()
  string(REGEX REPLACE "^[^ ]+ [A-Za-z] ([^@]+).*$" "\\1" name "${line}")
  list(APPEND exported "${name}")
  if(NOT line MATCHES "@@KVMELD_1$")
    message(FATAL_ERROR "${name} has not the version KVMELD_1: ${line}")
  endif()
endforeach()

list(SORT declared)
list(SORT exported)
if(NOT declared STREQUAL exported)
  message(FATAL_ERROR "the header declares\n  ${declared}\nthe library exports\n  ${exported}")
endif()
message(STATUS "${count} functions are declared and exported")
