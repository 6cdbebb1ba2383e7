# The project named as BACKEND, once with the package's component and once with kvmeld as a subproject. Its program runs; one
# that finds no device ends with 77, after it was built all the same.
include("${CMAKE_CURRENT_LIST_DIR}/steps.cmake")
set(no_device 77)

install_kvmeld()
copy_kvmeld()
build_project(${BACKEND} "-DKVMELD_SOURCE_DIR=${sources}" "-DCMAKE_CUDA_COMPILER=${NVCC}" "-DCMAKE_CUDA_FLAGS=${CUDA_FLAGS}")
file(REMOVE_RECURSE "${build}")
build_project(${BACKEND} "-DCMAKE_PREFIX_PATH=${prefix}" "-DCMAKE_CUDA_COMPILER=${NVCC}" "-DCMAKE_CUDA_FLAGS=${CUDA_FLAGS}")
execute_process(COMMAND "${build}/preset" RESULT_VARIABLE result)
if(result EQUAL no_device)
  message("SKIPPED: built, but there is no device to run it")
elseif(NOT result EQUAL 0)
  message(FATAL_ERROR "failed (${result}): ${build}/preset")
endif()
