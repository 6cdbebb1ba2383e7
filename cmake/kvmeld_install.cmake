# Install rules: the headers, the package `kvmeld` for find_package, kvmeld.pc for pkg-config. Where libkvmeld is built: the
# library, the package's component c, kvmeld-c.pc.
include(CMakePackageConfigHelpers)
include(GNUInstallDirs)

# Headers only: under share/, the same files for every architecture.
set(package_dir "${CMAKE_INSTALL_DATADIR}/cmake/kvmeld")
set(pkgconfig_dir "${CMAKE_INSTALL_DATADIR}/pkgconfig")
set(c_package_dir "${CMAKE_INSTALL_LIBDIR}/cmake/kvmeld") # libkvmeld is of one architecture

set_property(TARGET kvmeld PROPERTY EXPORT_NAME host)
install(
  TARGETS kvmeld kvmeld_testing kvmeld_calibration
  EXPORT kvmeld_targets
  FILE_SET HEADERS DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}"
  FILE_SET fragments DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}"
  FILE_SET device_headers DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}")
install(
  EXPORT kvmeld_targets
  NAMESPACE kvmeld::
  FILE kvmeldTargets.cmake
  DESTINATION "${package_dir}")

configure_package_config_file(
  "${CMAKE_CURRENT_LIST_DIR}/kvmeldConfig.cmake.in" "${CMAKE_CURRENT_BINARY_DIR}/kvmeldConfig.cmake"
  INSTALL_DESTINATION "${package_dir}"
  PATH_VARS c_package_dir
  NO_SET_AND_CHECK_MACRO NO_CHECK_REQUIRED_COMPONENTS_MACRO)
write_basic_package_version_file("${CMAKE_CURRENT_BINARY_DIR}/kvmeldConfigVersion.cmake"
                                 COMPATIBILITY SameMinorVersion ARCH_INDEPENDENT)
install(FILES "${CMAKE_CURRENT_BINARY_DIR}/kvmeldConfig.cmake" "${CMAKE_CURRENT_BINARY_DIR}/kvmeldConfigVersion.cmake"
              "${CMAKE_CURRENT_LIST_DIR}/kvmeld_components.cmake"
        DESTINATION "${package_dir}")

# Folders below the prefix are named by the way to it; absolute ones, as some distributions have them, as they are.
set(pc_includedir "\${prefix}")
cmake_path(APPEND pc_includedir "${CMAKE_INSTALL_INCLUDEDIR}")
set(absolute_pkgconfig_dir "${CMAKE_INSTALL_PREFIX}")
cmake_path(APPEND absolute_pkgconfig_dir "${pkgconfig_dir}")
cmake_path(RELATIVE_PATH CMAKE_INSTALL_PREFIX BASE_DIRECTORY "${absolute_pkgconfig_dir}" OUTPUT_VARIABLE path_to_prefix)
configure_file("${CMAKE_CURRENT_LIST_DIR}/kvmeld.pc.in" "${CMAKE_CURRENT_BINARY_DIR}/kvmeld.pc" @ONLY)
install(FILES "${CMAKE_CURRENT_BINARY_DIR}/kvmeld.pc" DESTINATION "${pkgconfig_dir}")

# The library belongs to one architecture, and so do its targets and its kvmeld-c.pc. The package finds the targets beside them.
if(KVMELD_BUILD_C)
  set_property(TARGET kvmeld_c PROPERTY EXPORT_NAME c)
  set_property(TARGET kvmeld_c_static PROPERTY EXPORT_NAME c_static)
  install(TARGETS kvmeld_c kvmeld_c_static EXPORT kvmeld_c_targets)
  install(FILES "${include_dir}/kvmeld/kvmeld.h" DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}/kvmeld")
  install(
    EXPORT kvmeld_c_targets
    NAMESPACE kvmeld::
    FILE kvmeld_cTargets.cmake
    DESTINATION "${c_package_dir}")
  set(absolute_pkgconfig_dir "${CMAKE_INSTALL_PREFIX}")
  cmake_path(APPEND absolute_pkgconfig_dir "${CMAKE_INSTALL_LIBDIR}/pkgconfig")
  cmake_path(RELATIVE_PATH CMAKE_INSTALL_PREFIX BASE_DIRECTORY "${absolute_pkgconfig_dir}" OUTPUT_VARIABLE path_to_prefix)
  set(pc_cuda_libs)
  if(KVMELD_C_CUDA)
    get_target_property(runtime CUDA::cudart_static IMPORTED_LOCATION)
    set(pc_cuda_libs " ${runtime} -ldl -lrt")
  endif()
  set(pc_libdir "\${prefix}")
  cmake_path(APPEND pc_libdir "${CMAKE_INSTALL_LIBDIR}")
  configure_file("${CMAKE_CURRENT_LIST_DIR}/kvmeld-c.pc.in" "${CMAKE_CURRENT_BINARY_DIR}/kvmeld-c.pc" @ONLY)
  install(FILES "${CMAKE_CURRENT_BINARY_DIR}/kvmeld-c.pc" DESTINATION "${CMAKE_INSTALL_LIBDIR}/pkgconfig")
endif()

install(FILES "${PROJECT_SOURCE_DIR}/LICENSE" DESTINATION "${CMAKE_INSTALL_DATADIR}/doc/kvmeld")
