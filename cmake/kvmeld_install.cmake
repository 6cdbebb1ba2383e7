# Install rules and the package `kvmeld`, target `kvmeld::kvmeld`.
include(CMakePackageConfigHelpers)
include(GNUInstallDirs)

set(package_dir "${CMAKE_INSTALL_DATADIR}/cmake/kvmeld") # headers only: the same files for every architecture

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

configure_package_config_file("${CMAKE_CURRENT_LIST_DIR}/kvmeldConfig.cmake.in"
                              "${CMAKE_CURRENT_BINARY_DIR}/kvmeldConfig.cmake" INSTALL_DESTINATION "${package_dir}")
write_basic_package_version_file("${CMAKE_CURRENT_BINARY_DIR}/kvmeldConfigVersion.cmake"
                                 COMPATIBILITY SameMinorVersion ARCH_INDEPENDENT)
install(FILES "${CMAKE_CURRENT_BINARY_DIR}/kvmeldConfig.cmake" "${CMAKE_CURRENT_BINARY_DIR}/kvmeldConfigVersion.cmake"
        DESTINATION "${package_dir}")
install(FILES "${PROJECT_SOURCE_DIR}/LICENSE" DESTINATION "${CMAKE_INSTALL_DATADIR}/doc/kvmeld")
