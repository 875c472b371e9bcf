# SPDX-License-Identifier: Apache-2.0
# The bill of materials in a wheel (PEP 770): what a build may link or compile in, of which tools/make_sbom.py finds
# what it did.

# Writes what may become part of the wheel to a file, by the versions that were found.
function(trf_list_known_parts file)
    set(known
        "jansson|${TRF_JANSSON_VERSION}|MIT|pkg:github/akheron/jansson@v${TRF_JANSSON_VERSION}|libjansson"
        "lz4|${TRF_LZ4_VERSION}|BSD-2-Clause|pkg:github/lz4/lz4@v${TRF_LZ4_VERSION}|liblz4"
        "xxhash|${TRF_XXHASH_VERSION}|BSD-2-Clause|pkg:github/cyan4973/xxhash@v${TRF_XXHASH_VERSION}|headers"
        "zstd|${TRF_ZSTD_VERSION}|BSD-3-Clause|pkg:github/facebook/zstd@v${TRF_ZSTD_VERSION}|libzstd")
    if(TRF_HAVE_DEVICE_CODE)
        string(CONCAT cuda "cuda-cudart|${CUDAToolkit_VERSION}|NVIDIA CUDA Toolkit EULA|"
            "pkg:generic/nvidia/cuda-cudart@${CUDAToolkit_VERSION}")
        list(APPEND known "${cuda}|libcudart_static")
    endif()
    if(TARGET transfuse_torch)
        list(APPEND known "torch|${TRF_TORCH_VERSION}|BSD-3-Clause|pkg:pypi/torch@${TRF_TORCH_VERSION}|headers")
    endif()
    list(JOIN known "\n" lines)
    file(WRITE "${file}" "${lines}\n")
endfunction()

# Makes the bill of these targets when they are installed, and installs it.
function(trf_install_sbom)
    find_package(Python3 COMPONENTS Interpreter REQUIRED)
    set(known "${PROJECT_BINARY_DIR}/known_parts.txt")
    set(bill "${PROJECT_BINARY_DIR}/transfuse.cdx.json")
    trf_list_known_parts("${known}")
    set(maps "")
    set(files "")
    foreach(target IN LISTS ARGN)
        target_link_options(${target} PRIVATE "-Wl,-Map=${PROJECT_BINARY_DIR}/${target}.map")
        string(APPEND maps " --map \"${PROJECT_BINARY_DIR}/${target}.map\"")
        string(APPEND files " \"$<TARGET_FILE:${target}>\"")
    endforeach()
    install(CODE "execute_process(COMMAND \"${Python3_EXECUTABLE}\" -B \"${PROJECT_SOURCE_DIR}/tools/make_sbom.py\"
        --version \"${PROJECT_VERSION}\" --known \"${known}\" --out \"${bill}\"${maps}${files}
        COMMAND_ERROR_IS_FATAL ANY)")
    install(FILES "${bill}" DESTINATION "${SKBUILD_METADATA_DIR}/sboms")
endfunction()
