# The targets of the optional backends, made only when asked for: by the package's find_package(... COMPONENTS ...) and by
# KVMELD_COMPONENTS where kvmeld is built as part of another project.
include_guard()

# An interface target kvmeld::NAME on top of kvmeld::host, its other name in `result`. Beside an installed kvmeld it is
# imported; in the source tree it is not, so that kvmeld's headers are no system headers there either.
function(kvmeld_backend_target name result)
  get_target_property(imported kvmeld::host IMPORTED)
  if(imported)
    add_library(kvmeld::${name} INTERFACE IMPORTED)
    set(target kvmeld::${name})
  else()
    add_library(kvmeld_${name} INTERFACE)
    add_library(kvmeld::${name} ALIAS kvmeld_${name})
    set(target kvmeld_${name})
  endif()
  target_link_libraries(${target} INTERFACE kvmeld::host)
  set(${result} ${target} PARENT_SCOPE)
endfunction()

# kvmeld::cuda, what <kvmeld/cuda.cuh> needs: the CUDA runtime, and CUB's folder.
function(kvmeld_find_cuda problem)
  find_package(CUDAToolkit QUIET)
  if(NOT CUDAToolkit_FOUND)
    set(${problem} "the CUDA Toolkit was not found; CUDAToolkit_ROOT may say where it is" PARENT_SCOPE)
    return()
  endif()
  find_path(cub cub/cub.cuh PATHS ${CUDAToolkit_INCLUDE_DIRS} PATH_SUFFIXES cccl NO_DEFAULT_PATH NO_CACHE)
  if(NOT cub)
    set(${problem} "CUB is not in the CUDA Toolkit of ${CUDAToolkit_INCLUDE_DIRS}" PARENT_SCOPE)
    return()
  endif()
  kvmeld_backend_target(cuda target)
  target_include_directories(${target} SYSTEM INTERFACE "${cub}")
  # Where nvcc links, CMake adds the runtime itself, static or shared as the project has chosen.
  target_link_libraries(${target} INTERFACE CUDA::toolkit "$<$<NOT:$<LINK_LANGUAGE:CUDA>>:CUDA::cudart>")
endfunction()

# kvmeld::kokkos, what <kvmeld/kokkos.hpp> needs: Kokkos 3.4 or newer, with whatever backends it was built.
function(kvmeld_find_kokkos problem)
  set(oldest 3.4) # asked here: Kokkos' own version file takes a request for 3.4 as one for 3.x
  set(CMAKE_CXX_EXTENSIONS OFF) # packages of Kokkos 3 would otherwise set this in the user's cache
  set(imported TRUE)
  if(TARGET Kokkos::kokkos)
    get_target_property(imported Kokkos::kokkos IMPORTED)
  endif()
  set(found TRUE) # a Kokkos that is part of the project
  if(imported) # a package that was not found may have left its target behind: only a search tells
    find_package(Kokkos CONFIG QUIET)
    set(found ${Kokkos_FOUND})
  endif()
  if(NOT found OR NOT TARGET Kokkos::kokkos)
    set(${problem} "Kokkos ${oldest} or newer was not found; Kokkos_ROOT may say where it is" PARENT_SCOPE)
    return()
  endif()
  if(Kokkos_VERSION AND Kokkos_VERSION VERSION_LESS oldest)
    set(${problem} "Kokkos ${oldest} or newer is needed, in ${Kokkos_DIR} there is ${Kokkos_VERSION}" PARENT_SCOPE)
    return()
  endif()
  kvmeld_backend_target(kokkos target)
  # Debian 12's Kokkos, a part of Trilinos, has a target whose include folder does not exist, which CMake refuses. The
  # variables of the same package are right.
  get_target_property(folders Kokkos::kokkos INTERFACE_INCLUDE_DIRECTORIES)
  foreach(folder IN LISTS folders)
    if(IS_ABSOLUTE "${folder}" AND NOT EXISTS "${folder}" AND Kokkos_INCLUDE_DIRS)
      target_include_directories(${target} SYSTEM INTERFACE ${Kokkos_INCLUDE_DIRS})
      target_link_libraries(${target} INTERFACE ${Kokkos_LIBRARIES})
      return()
    endif()
  endforeach()
  target_link_libraries(${target} INTERFACE Kokkos::kokkos)
endfunction()

# kvmeld::c and kvmeld::c_static, where libkvmeld was installed with the headers.
function(kvmeld_find_c problem)
  if(NOT kvmeld_c_targets OR NOT EXISTS "${kvmeld_c_targets}")
    set(${problem} "libkvmeld is not installed; KVMELD_BUILD_C=ON builds it" PARENT_SCOPE)
    return()
  endif()
  file(STRINGS "${kvmeld_c_targets}" with_cuda REGEX "CUDA::cudart_static")
  if(with_cuda)
    find_package(CUDAToolkit QUIET)
    if(NOT CUDAToolkit_FOUND)
      set(${problem} "libkvmeld has CUDA, and the CUDA Toolkit was not found; CUDAToolkit_ROOT may say where it is" PARENT_SCOPE)
      return()
    endif()
  endif()
  include("${kvmeld_c_targets}")
endfunction()

# kvmeld_find_component(NAME PROBLEM): makes kvmeld::NAME unless it is there; PROBLEM is empty or says what is missing.
function(kvmeld_find_component name problem)
  set(found_problem)
  if(name STREQUAL "c" AND NOT TARGET kvmeld::c)
    kvmeld_find_c(found_problem)
  elseif(name STREQUAL "cuda" AND NOT TARGET kvmeld::cuda)
    kvmeld_find_cuda(found_problem)
  elseif(name STREQUAL "kokkos" AND NOT TARGET kvmeld::kokkos)
    kvmeld_find_kokkos(found_problem)
  elseif(NOT name MATCHES "^(host|testing|calibrate|c|cuda|kokkos)$")
    set(found_problem "kvmeld has the components host, testing, calibrate, c, cuda and kokkos")
  endif()
  set(${problem} "${found_problem}" PARENT_SCOPE)
endfunction()
