# Runs Doxygen and lists what it found fault with, by the names of the sources.
#   cmake -DDOXYGEN=... -DDOXYFILE=... -DLOG=<its warnings> -DINPUT=<the copy it reads> -DSOURCE=<repository> -P run.cmake
cmake_minimum_required(VERSION 3.25)
file(REMOVE "${LOG}")
execute_process(COMMAND "${DOXYGEN}" "${DOXYFILE}" RESULT_VARIABLE status ERROR_VARIABLE errors)
set(warnings "")
if(EXISTS "${LOG}")
  file(READ "${LOG}" warnings)
  string(REPLACE "${INPUT}/" "${SOURCE}/" warnings "${warnings}")
endif()
if(NOT status EQUAL 0 OR NOT warnings STREQUAL "")
  message(NOTICE "${errors}${warnings}")
  message(FATAL_ERROR "Doxygen finds fault (${status})")
endif()
