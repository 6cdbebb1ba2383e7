# Two programs print the same.
#   cmake -DFIRST=<program> -DSECOND=<program> -DARGUMENTS=<argument|argument|...> -P same_output.cmake
cmake_minimum_required(VERSION 3.25)

string(REPLACE "|" ";" arguments "${ARGUMENTS}")
foreach(which FIRST SECOND)
  execute_process(COMMAND "${${which}}" ${arguments} OUTPUT_VARIABLE said_${which} COMMAND_ERROR_IS_FATAL ANY)
endforeach()
if(said_FIRST STREQUAL "" OR NOT said_FIRST STREQUAL said_SECOND)
  message(FATAL_ERROR "${FIRST} says:\n${said_FIRST}\n${SECOND} says:\n${said_SECOND}")
endif()
message(STATUS "${said_FIRST}")
