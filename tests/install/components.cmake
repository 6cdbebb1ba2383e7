# What find_package says of components that are not there, and what a project gets that can do without them.
include("${CMAKE_CURRENT_LIST_DIR}/steps.cmake")
install_kvmeld()
set(asks "${CMAKE_COMMAND}" -S "${CMAKE_CURRENT_LIST_DIR}/asks" ${toolchain} "-DCMAKE_PREFIX_PATH=${prefix}")
# Nothing else is searched, so that neither the CUDA Toolkit nor Kokkos is found wherever this runs.
set(alone -DCMAKE_DISABLE_FIND_PACKAGE_CUDAToolkit=ON -DCMAKE_DISABLE_FIND_PACKAGE_Kokkos=ON)

step(${asks} -B "${WORK_DIR}/1" "-DREQUIRED=host\;testing\;calibrate")
step(${asks} -B "${WORK_DIR}/2" "-DREQUIRED=host" "-DOPTIONAL=cuda\;kokkos\;telepathy" ${alone} "-DMISSING=cuda\;kokkos\;telepathy")
step_fails("component cuda: the CUDA Toolkit was not found" ${asks} -B "${WORK_DIR}/3" "-DREQUIRED=host\;cuda" ${alone})
step_fails("component kokkos: Kokkos 3.4 or newer was not found" ${asks} -B "${WORK_DIR}/4" "-DREQUIRED=kokkos" ${alone})
step_fails("component telepathy: kvmeld has the components host, testing, calibrate, c, cuda and kokkos" ${asks} -B "${WORK_DIR}/5"
           "-DREQUIRED=telepathy")
# libkvmeld, where its targets are not installed with the headers.
file(GLOB_RECURSE c_targets "${prefix}/kvmeld_cTargets*.cmake")
file(REMOVE ${c_targets})
step_fails("component c: libkvmeld is not installed; KVMELD_BUILD_C=ON builds it" ${asks} -B "${WORK_DIR}/10" "-DREQUIRED=c")
step_fails("not compatible|compatible with requested version" ${asks} -B "${WORK_DIR}/6" "-DREQUIRED=host" -DVERSION=99.0)

# A Kokkos that is not found, and leaves its target behind: asked for twice, it is missing twice.
file(WRITE "${WORK_DIR}/lost/KokkosConfig.cmake"
     "if(NOT TARGET Kokkos::kokkos)\nadd_library(Kokkos::kokkos INTERFACE IMPORTED)\nendif()\nset(Kokkos_FOUND FALSE)\n")
step(${asks} -B "${WORK_DIR}/9" "-DREQUIRED=host" "-DOPTIONAL=kokkos" "-DMISSING=kokkos" "-DKokkos_DIR=${WORK_DIR}/lost" -DTWICE=ON)
# A Kokkos that is too old.
file(WRITE "${WORK_DIR}/old/KokkosConfig.cmake"
     "add_library(Kokkos::kokkos INTERFACE IMPORTED)\nset(Kokkos_VERSION 3.3.1)\n")
step_fails("Kokkos 3.4 or newer is needed, in .*old there is 3.3.1" ${asks} -B "${WORK_DIR}/7" "-DREQUIRED=kokkos"
           "-DKokkos_DIR=${WORK_DIR}/old")
# And one whose next major version is as good.
file(WRITE "${WORK_DIR}/new/KokkosConfig.cmake"
     "add_library(Kokkos::kokkos INTERFACE IMPORTED)\nset(Kokkos_VERSION 5.0.0)\n")
step(${asks} -B "${WORK_DIR}/8" "-DREQUIRED=kokkos" "-DKokkos_DIR=${WORK_DIR}/new")
