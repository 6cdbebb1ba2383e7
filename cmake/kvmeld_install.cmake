# Install rules: the headers, the package `kvmeld` for find_package, kvmeld.pc for pkg-config.
include(CMakePackageConfigHelpers)
include(GNUInstallDirs)

# Headers only: under share/, the same files for every architecture.
set(package_dir "${CMAKE_INSTALL_DATADIR}/cmake/kvmeld")
set(pkgconfig_dir "${CMAKE_INSTALL_DATADIR}/pkgconfig")

set_property(TARGET kvmeld PROPERTY EXPORT_NAME host)
install(
  TARGETS kvmeld
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

install(FILES "${PROJECT_SOURCE_DIR}/LICENSE" DESTINATION "${CMAKE_INSTALL_DATADIR}/doc/kvmeld")
