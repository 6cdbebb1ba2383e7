# KVMELD_C_ELEMENTS: names of no element type are refused when kvmeld is configured, before anything compiles for minutes.
include("${CMAKE_CURRENT_LIST_DIR}/steps.cmake")

set(configure "${CMAKE_COMMAND}" -S "${KVMELD_SOURCE_DIR}" -B "${WORK_DIR}/build" ${toolchain} -DKVMELD_BUILD_C=ON
              -DKVMELD_BUILD_TESTS=OFF -DKVMELD_BUILD_EXAMPLES=OFF -DKVMELD_BUILD_BENCHMARKS=OFF)
set(allowed "it must name some of float, float16, bfloat16")
foreach(wrong IN ITEMS float32 double half "FLOAT" "float16 float")
  step_fails("KVMELD_C_ELEMENTS names \"${wrong}\". ${allowed}" ${configure} "-DKVMELD_C_ELEMENTS=${wrong}")
endforeach()
step_fails("KVMELD_C_ELEMENTS names \"double\". ${allowed}" ${configure} "-DKVMELD_C_ELEMENTS=float\\;double")
step_fails("KVMELD_C_ELEMENTS is empty. it must be a list of some of float, float16, bfloat16" ${configure}
           -DKVMELD_C_ELEMENTS=)
foreach(right IN ITEMS "bfloat16" "float16\\;float")
  step(${configure} "-DKVMELD_C_ELEMENTS=${right}")
endforeach()
