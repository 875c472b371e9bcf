# SPDX-License-Identifier: Apache-2.0
# Headers, library, command, and the two ways to find them: find_package(transfuse) and pkg-config.

include(CMakePackageConfigHelpers)

set(package_dir "${CMAKE_INSTALL_LIBDIR}/cmake/transfuse")
set(pkgconfig_dir "${CMAKE_INSTALL_LIBDIR}/pkgconfig")

install(DIRECTORY include/ DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}" FILES_MATCHING PATTERN "*.h")
install(TARGETS transfuse EXPORT transfuseTargets)
install(EXPORT transfuseTargets NAMESPACE transfuse:: DESTINATION "${package_dir}")
if(TARGET transfuse_cli)
    install(TARGETS transfuse_cli)
endif()

configure_package_config_file(cmake/transfuseConfig.cmake.in transfuseConfig.cmake INSTALL_DESTINATION "${package_dir}")
write_basic_package_version_file(transfuseConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES "${PROJECT_BINARY_DIR}/transfuseConfig.cmake" "${PROJECT_BINARY_DIR}/transfuseConfigVersion.cmake"
    DESTINATION "${package_dir}")

# The prefix is relative to the .pc file, so that `cmake --install --prefix` and a moved tree work too.
file(RELATIVE_PATH prefix_from_pc "/${pkgconfig_dir}" "/")
# A static library's own needs are part of every link against it, --static or not.
if(NOT BUILD_SHARED_LIBS)
    set(pc_requires "jansson")
    set(pc_libs "-pthread -lm -ldl")
    if(TRF_HAVE_DEVICE_CODE)
        string(APPEND pc_libs " -L${CUDAToolkit_LIBRARY_DIR} -lcudart_static -lstdc++ -lrt")
    endif()
endif()
configure_file(cmake/transfuse.pc.in transfuse.pc @ONLY)
install(FILES "${PROJECT_BINARY_DIR}/transfuse.pc" DESTINATION "${pkgconfig_dir}")
