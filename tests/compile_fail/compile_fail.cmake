#   cmake -DCOMPILER=<c++> -DCOMPILER_ID=<GNU or Clang> -DSOURCE=<case> -DINCLUDE_DIR=<include> [-DSYSTEM_DIRS=<folder>|<folder>...]
#         -P compile_fail.cmake
cmake_minimum_required(VERSION 3.25)

file(READ "${SOURCE}" text)
if(NOT text MATCHES "^// expect: ([^\n]+)\n")
  message(FATAL_ERROR "${SOURCE}: the first line has to be `// expect: REGEX`")
endif()
set(expected "${CMAKE_MATCH_1}")
if(NOT text MATCHES "#[ \t]*if[^\n]*KVMELD_CONTROL")
  message(FATAL_ERROR "${SOURCE}: no corrected form under KVMELD_CONTROL")
endif()

# Without the quoted source lines: the message has to come from a diagnostic, not from the text of the case.
if(COMPILER_ID MATCHES "Clang")
  set(no_quotes -fno-caret-diagnostics)
else()
  set(no_quotes -fno-diagnostics-show-caret)
endif()
set(command "${COMPILER}" -std=c++17 -fsyntax-only ${no_quotes} "-I${INCLUDE_DIR}")
string(REPLACE "|" ";" folders "${SYSTEM_DIRS}")
foreach(folder IN LISTS folders)
  list(APPEND command -isystem "${folder}")
endforeach()

execute_process(COMMAND ${command} -DKVMELD_CONTROL "${SOURCE}" RESULT_VARIABLE result OUTPUT_VARIABLE output
                ERROR_VARIABLE output)
if(NOT result EQUAL 0)
  message(FATAL_ERROR "the corrected form (KVMELD_CONTROL) does not compile:\n${output}")
endif()

execute_process(COMMAND ${command} "${SOURCE}" RESULT_VARIABLE result OUTPUT_VARIABLE output ERROR_VARIABLE output)
if(result EQUAL 0)
  message(FATAL_ERROR "compiles, but has to be refused with: ${expected}")
endif()
if(NOT output MATCHES "${expected}")
  message(FATAL_ERROR "refused, but not with: ${expected}\n${output}")
endif()
message(STATUS "refused as expected: ${CMAKE_MATCH_0}")
