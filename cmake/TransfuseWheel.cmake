# SPDX-License-Identifier: Apache-2.0
# What is different where scikit-build-core makes a Python wheel of this project (it defines SKBUILD), and not of one
# that includes it.

include(TransfuseSbom)

# Otherwise nvcc names its files by its process, and objects have these names.
add_compile_options("$<$<COMPILE_LANG_AND_ID:CUDA,NVIDIA>:--objdir-as-tempdir>")

# Device code for the GPUs that are here, and none where there is no GPU. TRF_CUDA or CMAKE_CUDA_ARCHITECTURES given by
# the user (pip install --config-settings=cmake.define.TRF_CUDA=ON .) are left as they are. To be called before TRF_CUDA
# has its default.
function(trf_default_to_own_gpus)
    if(DEFINED TRF_CUDA OR DEFINED CMAKE_CUDA_ARCHITECTURES)
        return()
    endif()
    execute_process(COMMAND sh -c ". cmake/setup.sh && gpu_architectures"
        WORKING_DIRECTORY "${PROJECT_SOURCE_DIR}"
        OUTPUT_VARIABLE architectures ERROR_QUIET OUTPUT_STRIP_TRAILING_WHITESPACE)
    if(architectures)
        set(TRF_CUDA AUTO CACHE STRING "Device code, for the GPUs that are here")
        set(CMAKE_CUDA_ARCHITECTURES "${architectures}" CACHE STRING "Those of the GPUs that are here")
    else()
        set(TRF_CUDA OFF CACHE STRING "Device code; there is no GPU that it runs on")
    endif()
endfunction()

# A build elsewhere gives the same bytes: what compilers write of paths (in assertions, say) names no folder of this
# machine. To be called before targets are added.
macro(trf_map_paths folder name)
    set(map "-ffile-prefix-map=${folder}=${name}")
    add_compile_options("$<$<COMPILE_LANGUAGE:C,CXX>:${map}>" "$<$<COMPILE_LANGUAGE:CUDA>:-Xcompiler=${map}>")
endmacro()

# The same for device code: nvcc names what stands in an anonymous namespace by the full path of its file. It tells its
# front end that path by an option, which comes once more here, last, and without the folder. Takes full paths.
function(trf_map_device_sources)
    if(NOT CMAKE_CUDA_COMPILER_ID STREQUAL "NVIDIA")
        return()
    endif()
    include(CheckCompilerFlag)
    check_compiler_flag(CUDA -Xcudafe=--orig_src_path_name=transfuse/check.cu TRF_NVCC_TAKES_PATH_NAME)
    if(NOT TRF_NVCC_TAKES_PATH_NAME)
        message(STATUS "transfuse: with this nvcc the wheel's bytes depend on the folder of the sources")
        return()
    endif()
    foreach(source IN LISTS ARGN)
        file(RELATIVE_PATH name "${PROJECT_SOURCE_DIR}" "${source}")
        set_property(SOURCE "${source}" APPEND PROPERTY
            COMPILE_OPTIONS "-Xcudafe=--orig_src_path_name=transfuse/${name}")
    endforeach()
endfunction()

# Library, command and torch ops go into the package, where _library.py, _command.py and torch/_ops_library.py look for
# them. A wheel has no symbolic links, so that the library is one file, by the name under which the others need it.
# Beside the package comes a file that Python reads at each start (python/src/transfuse/_hook.py).
function(trf_install_wheel soversion)
    set(targets transfuse transfuse_cli)
    if(TARGET transfuse_torch)
        list(APPEND targets transfuse_torch)
    endif()
    # A path to the build folder, even one that is taken out again when files are installed, leaves its length behind.
    set_target_properties(${targets} PROPERTIES BUILD_WITH_INSTALL_RPATH ON)
    set_target_properties(transfuse PROPERTIES VERSION ${soversion})
    install(TARGETS transfuse LIBRARY DESTINATION transfuse/lib NAMELINK_SKIP)
    set_target_properties(transfuse_cli PROPERTIES INSTALL_RPATH "$ORIGIN/../lib")
    install(TARGETS transfuse_cli RUNTIME DESTINATION transfuse/bin)
    if(TARGET transfuse_torch)
        install(TARGETS transfuse_torch LIBRARY DESTINATION transfuse/lib)
    endif()
    install(FILES "${PROJECT_SOURCE_DIR}/python/src/transfuse_hook.pth" DESTINATION .)
    trf_install_sbom(${targets})
    # Licences of what tools/build_wheel.sh puts into a wheel beside transfuse's own code.
    if(TRF_WHEEL_NOTICES)
        install(DIRECTORY "${TRF_WHEEL_NOTICES}/" DESTINATION "${SKBUILD_METADATA_DIR}/licenses")
    endif()
endfunction()
