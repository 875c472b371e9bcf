# SPDX-License-Identifier: Apache-2.0
# Finds CUDA, which is optional, and adds the device code to the library. Sets TRF_HAVE_DEVICE_CODE.

set(TRF_HAVE_DEVICE_CODE OFF)
if(NOT TRF_CUDA MATCHES "^(AUTO|ON|OFF)$")
    message(FATAL_ERROR "TRF_CUDA is '${TRF_CUDA}'; it must be AUTO, ON or OFF")
elseif(NOT TRF_CUDA STREQUAL "OFF")
    find_package(CUDAToolkit 12.0 QUIET)
    # The two-step path and the bench are written against it; the library itself is loaded at run time.
    find_file(TRF_CUBLASLT_HEADER cublasLt.h PATHS ${CUDAToolkit_INCLUDE_DIRS} NO_DEFAULT_PATH)
    mark_as_advanced(TRF_CUBLASLT_HEADER)
    if(CUDAToolkit_FOUND AND TRF_CUBLASLT_HEADER)
        # Otherwise check_language could take another nvcc than the one of the toolkit just found.
        if(NOT DEFINED ENV{CUDACXX})
            set(ENV{CUDACXX} "${CUDAToolkit_NVCC_EXECUTABLE}")
        endif()
        # Code for 8.0 runs on 8.6 and 8.9 too; the cuda preset compiles for each, in twice the time. Newer GPUs than
        # 9.0 get what their driver makes of the PTX: of 9.0, as that of 9.0a is for 9.0 alone.
        if(NOT DEFINED CMAKE_CUDA_ARCHITECTURES)
            set(CMAKE_CUDA_ARCHITECTURES "80-real;90a-real;90-virtual")
        endif()
        include(CheckLanguage)
        check_language(CUDA)
        if(CMAKE_CUDA_COMPILER)
            enable_language(CUDA)
            trf_harden_cuda()
            set(CMAKE_CUDA_STANDARD 17)
            set(CMAKE_CUDA_STANDARD_REQUIRED ON)
            set(TRF_HAVE_DEVICE_CODE ON)
            # Code for four architectures takes a sixth of the room with `size`. nvcc has the option since 12.8; what
            # 12.8 and 12.9 compress so needs a driver of CUDA 12.4 or newer, which `speed` and `none` do not.
            set(TRF_CUDA_COMPRESS_MODE size CACHE STRING "nvcc's --compress-mode, where nvcc has it")
            set_property(CACHE TRF_CUDA_COMPRESS_MODE PROPERTY STRINGS size balance speed none)
            if(CMAKE_CUDA_COMPILER_ID STREQUAL "NVIDIA" AND CMAKE_CUDA_COMPILER_VERSION VERSION_GREATER_EQUAL 12.8)
                add_compile_options("$<$<COMPILE_LANGUAGE:CUDA>:--compress-mode=${TRF_CUDA_COMPRESS_MODE}>")
            endif()
            option(TRF_CUDA_FAST_COMPILE "Compile device code fast, to run slowly; where nvcc knows how" OFF)
            if(TRF_CUDA_FAST_COMPILE)
                include(CheckCompilerFlag)
                check_compiler_flag(CUDA --Ofast-compile=max TRF_NVCC_HAS_FAST_COMPILE)
                if(TRF_NVCC_HAS_FAST_COMPILE)
                    add_compile_options("$<$<COMPILE_LANGUAGE:CUDA>:--Ofast-compile=max>")
                else()
                    message(STATUS "transfuse: this nvcc has no --Ofast-compile; TRF_CUDA_FAST_COMPILE changes nothing")
                endif()
            endif()
        endif()
    endif()
endif()

if(TRF_HAVE_DEVICE_CODE)
    # cuBLASLt is opened at run time (runtime/products/trf_gemm_cuda.c). What is run from the build folder finds the
    # toolkit's; what is installed knows no folder of the build.
    list(APPEND CMAKE_BUILD_RPATH "${CUDAToolkit_LIBRARY_DIR}")
    message(STATUS "transfuse: CUDA ${CUDAToolkit_VERSION}, device code for ${CMAKE_CUDA_ARCHITECTURES}")
elseif(TRF_CUDA STREQUAL "ON")
    message(FATAL_ERROR "TRF_CUDA is ON, but no working CUDA 12.0 or newer, with cuBLAS, was found")
elseif(TRF_CUDA STREQUAL "AUTO")
    message(STATUS "transfuse: no working CUDA 12.0 or newer; building without device code")
else()
    message(STATUS "transfuse: TRF_CUDA is OFF; building without device code")
endif()

# Leaves in a folder's .c files those that this build takes. Host code over the CUDA runtime is all of decoder_gpu/ but
# its planning and, elsewhere, what ends in _cuda.c; trf_no_device_code.c takes its place. What fused/ has in C plans
# products, and needs no CUDA.
function(trf_choose_device_sources list_name folder)
    set(sources ${${list_name}})
    if(TRF_HAVE_DEVICE_CODE)
        list(FILTER sources EXCLUDE REGEX "/trf_no_device_code\\.c$")
    elseif(folder STREQUAL "decoder_gpu")
        list(FILTER sources INCLUDE REGEX "/trf_decode_choice\\.c$")
    else()
        list(FILTER sources EXCLUDE REGEX "_cuda\\.c$")
    endif()
    set(${list_name} ${sources} PARENT_SCOPE)
endfunction()

# Adds a folder's .cu files to target as an object library, so that users still link one library only.
function(trf_add_device_folder target folder)
    file(GLOB sources CONFIGURE_DEPENDS
        "${PROJECT_SOURCE_DIR}/${folder}/*.cu" "${PROJECT_SOURCE_DIR}/${folder}/*/*.cu")
    if(NOT sources)
        return()
    endif()
    add_library(transfuse_${folder} OBJECT ${sources})
    set(folders ${TRF_LIBRARY_FOLDERS})
    list(FILTER folders INCLUDE REGEX "^(base|format|decoder_gpu|packing|fused/.*)$")
    target_include_directories(transfuse_${folder} PRIVATE include ${folders})
    target_link_libraries(transfuse_${folder} PRIVATE CUDA::cudart_static)
    target_compile_definitions(transfuse_${folder} PRIVATE $<$<BOOL:${TRF_FOR_RACECHECK}>:TRF_FOR_RACECHECK=1>)
    if(BUILD_SHARED_LIBS)
        set_target_properties(transfuse_${folder} PROPERTIES CUDA_VISIBILITY_PRESET hidden)
    endif()
    target_sources(${target} PRIVATE $<TARGET_OBJECTS:transfuse_${folder}>)
endfunction()

# Writes CMAKE_CUDA_ARCHITECTURES as trf_get_build_info has them: "80-real;90a-real;90-virtual" is "8.0 9.0a 9.0+PTX".
# What has neither suffix is both.
function(trf_name_architectures variable)
    set(names "")
    foreach(architecture IN LISTS CMAKE_CUDA_ARCHITECTURES)
        string(REGEX REPLACE "^([0-9]+)([0-9][a-z]?)(-real|-virtual)?$" "\\1.\\2" name "${architecture}")
        if(NOT architecture MATCHES "-virtual$")
            list(APPEND names "${name}")
        endif()
        if(NOT architecture MATCHES "-real$")
            list(APPEND names "${name}+PTX")
        endif()
    endforeach()
    list(JOIN names " " names)
    set(${variable} "${names}" PARENT_SCOPE)
endfunction()

function(trf_add_device_code target)
    if(NOT TRF_HAVE_DEVICE_CODE)
        return()
    endif()
    trf_name_architectures(architectures)
    set_source_files_properties("${PROJECT_SOURCE_DIR}/runtime/device/trf_build_info.c" PROPERTIES
        COMPILE_DEFINITIONS "TRF_DEVICE_CODE=\"${architectures}\"")
    trf_add_device_folder(${target} decoder_gpu)
    trf_add_device_folder(${target} packing)
    trf_add_device_folder(${target} fused)
    target_compile_definitions(${target} PRIVATE TRF_HAVE_CUDA=1)
    # The C++ library by name: a C program that links a static transfuse does not bring it along.
    target_link_libraries(${target} PRIVATE CUDA::cudart_static stdc++)
endfunction()
