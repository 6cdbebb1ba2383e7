# Compiles a .cu with warnings as errors and looks at what ptxas says of its kernels: tuned ones may not spill registers, the
# generic ones only a few around the calls they make. Arrays that a thread indexes at run time lie on its stack, which is
# memory of the device: few bytes, except in remaining_rounds_phase, which keeps a view of the wave for each of its phases.
#   cmake -DNVCC=nvcc -DARCHITECTURES=90,121 -DSTANDARD=17 -DINCLUDE=include -DSOURCE=tests/cuda/kernels.cu -DOBJECT=kernels.o \
#         -P cmake/check_kernels.cmake
# PTX is that of the first architecture; host code is not what this looks at.
set(max_spilled 512) # bytes per thread of a generic kernel
set(max_stack 512)
string(REPLACE "," ";" architectures "${ARCHITECTURES}")
list(GET architectures 0 oldest)
list(TRANSFORM architectures REPLACE "(.+)" "-gencode=arch=compute_${oldest},code=sm_\\1")
execute_process(
  COMMAND "${NVCC}" -std=c++${STANDARD} -O0 ${architectures} -Werror all-warnings -Xcompiler -Wall,-Wextra -Xptxas -v
          "-I${INCLUDE}" -c -o "${OBJECT}" "${SOURCE}"
  RESULT_VARIABLE result
  OUTPUT_VARIABLE output
  ERROR_VARIABLE output)
if(NOT result EQUAL 0)
  message(FATAL_ERROR "nvcc failed for sm_${ARCHITECTURES}, C++${STANDARD}:\n${output}")
endif()
string(REGEX MATCHALL "Compiling entry function '[^']*'" kernels "${output}")
string(REGEX MATCHALL "Function properties for [^ \n]+[ \n]+[0-9]+ bytes stack frame, [0-9]+ bytes spill stores" reports
              "${output}")
string(REGEX MATCHALL "Used [0-9]+ registers" registers "${output}")
list(LENGTH kernels count)
list(LENGTH reports told)
if(count EQUAL 0 OR told LESS count) # functions that were not inlined report too
  message(FATAL_ERROR "ptxas reported on ${told} of ${count} kernels; is its output of another form?")
endif()
set(spilling 0)
set(worst 0)
foreach(report IN LISTS reports)
  string(REGEX MATCH "([0-9]+) bytes stack" stack "${report}")
  if(CMAKE_MATCH_1 GREATER max_stack AND NOT report MATCHES "remaining_rounds_phase")
    message(FATAL_ERROR "sm_${ARCHITECTURES}: ${report}")
  endif()
  string(REGEX MATCH "([0-9]+) bytes spill" spilled "${report}")
  set(bytes ${CMAKE_MATCH_1})
  if(bytes EQUAL 0)
    continue()
  endif()
  math(EXPR spilling "${spilling} + 1")
  if(bytes GREATER worst)
    set(worst ${bytes})
  endif()
  if(report MATCHES "tuned" OR bytes GREATER max_spilled)
    message(FATAL_ERROR "sm_${ARCHITECTURES}: ${report}")
  endif()
endforeach()
list(LENGTH registers told)
if(NOT told EQUAL count)
  message(FATAL_ERROR "ptxas told the registers of ${told} of ${count} kernels; is its output of another form?")
endif()
set(most 0)
foreach(kernel used IN ZIP_LISTS kernels registers)
  string(REGEX MATCH "[0-9]+" used "${used}")
  if(used GREATER most)
    set(most ${used})
  endif()
  if(kernel MATCHES "attend_few.*Lj1E" AND used GREATER 128) # two blocks of 256 threads share a multiprocessor
    message(FATAL_ERROR "sm_${ARCHITECTURES}: ${used} registers. ${kernel}")
  endif()
endforeach()
message(STATUS "sm_${ARCHITECTURES}, C++${STANDARD}: ${count} kernels, at most ${most} registers; no tuned one spills, ${spilling} "
               "generic ones do, at most ${worst} bytes")
