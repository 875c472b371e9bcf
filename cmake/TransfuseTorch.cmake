# SPDX-License-Identifier: Apache-2.0
# The torch ops: libtransfuse_torch.so, which torch loads by torch.ops.load_library. It uses torch's stable ABI alone,
# so that one library is for every torch from 2.10 on, whichever it was built with.

set(torch_default OFF)
if(SKBUILD AND PROJECT_IS_TOP_LEVEL)
    set(torch_default AUTO)
endif()
set(TRF_TORCH ${torch_default} CACHE STRING "torch ops: AUTO (if torch 2.10 or newer is found), ON (fail without), OFF")
set_property(CACHE TRF_TORCH PROPERTY STRINGS AUTO ON OFF)
set(TRF_TORCH_DIR "" CACHE PATH "torch's package folder; empty: that of the Python that builds")

# Sets ${variable} to torch's folder, or to "". The Python is the one that runs the build. In pip's isolated build its
# sys.path has no torch, but sysconfig still names the environment's own folder. torch is not imported: seconds.
function(trf_find_torch variable)
    set(found "${TRF_TORCH_DIR}")
    if(NOT found)
        find_package(Python3 COMPONENTS Interpreter QUIET)
        if(Python3_Interpreter_FOUND)
            execute_process(COMMAND "${Python3_EXECUTABLE}" -c [[
import importlib.util, os, sysconfig
folder = os.path.join(sysconfig.get_paths()["purelib"], "torch")
if not os.path.isdir(folder):
    spec = importlib.util.find_spec("torch")
    folder = os.path.dirname(spec.origin) if spec and spec.origin else ""
print(folder, end="")
]]
                OUTPUT_VARIABLE found ERROR_QUIET)
        endif()
    endif()
    set(${variable} "${found}" PARENT_SCOPE)
endfunction()

# Sets ${variable} to why there are no torch ops to be had from this torch, or to "", and TRF_TORCH_VERSION.
function(trf_refuse_torch variable folder)
    set(reason "")
    set(header "${folder}/include/torch/headeronly/version.h")
    if(NOT BUILD_SHARED_LIBS)
        set(reason "they need the shared library (BUILD_SHARED_LIBS)")
    elseif(NOT folder)
        set(reason "the Python that builds has no torch (TRF_TORCH_DIR says where one is)")
    elseif(NOT EXISTS "${header}" OR NOT EXISTS "${folder}/lib/libtorch_cpu.so")
        set(reason "${folder} has no headers or libraries of torch 2.10 or newer")
    else()
        foreach(part IN ITEMS MAJOR MINOR PATCH)
            file(STRINGS "${header}" line REGEX "^#define TORCH_VERSION_${part} ")
            string(REGEX REPLACE "^#define TORCH_VERSION_${part} +" "" ${part} "${line}")
        endforeach()
        set(TRF_TORCH_VERSION "${MAJOR}.${MINOR}.${PATCH}" PARENT_SCOPE)
        if("${MAJOR}.${MINOR}" VERSION_LESS 2.10)
            set(reason "${folder} is torch ${MAJOR}.${MINOR}, and 2.10 is needed")
        endif()
    endif()
    set(${variable} "${reason}" PARENT_SCOPE)
endfunction()

# Sets ${variable} to torch's folder, or to "" if there are to be no ops.
function(trf_choose_torch variable)
    set(${variable} "" PARENT_SCOPE)
    if(NOT TRF_TORCH)
        return()
    endif()
    trf_find_torch(folder)
    trf_refuse_torch(reason "${folder}")
    if(NOT reason)
        message(STATUS "transfuse: torch ops, by the headers of ${folder}")
        set(TRF_TORCH_VERSION "${TRF_TORCH_VERSION}" PARENT_SCOPE)
        set(${variable} "${folder}" PARENT_SCOPE)
    elseif(TRF_TORCH STREQUAL "AUTO")
        message(STATUS "transfuse: no torch ops: ${reason}")
    else()
        message(FATAL_ERROR "TRF_TORCH is ON, but torch ops cannot be built: ${reason}")
    endif()
endfunction()

function(trf_add_torch_ops torch)
    add_library(trf_torch_cpu SHARED IMPORTED)
    set_target_properties(trf_torch_cpu PROPERTIES IMPORTED_LOCATION "${torch}/lib/libtorch_cpu.so")
    target_include_directories(trf_torch_cpu SYSTEM INTERFACE "${torch}/include")

    file(GLOB sources CONFIGURE_DEPENDS "${PROJECT_SOURCE_DIR}/python/torch_ops/*.cpp")
    add_library(transfuse_torch SHARED ${sources})
    target_compile_definitions(transfuse_torch PRIVATE TORCH_TARGET_VERSION=0x020a000000000000)
    target_compile_options(transfuse_torch PRIVATE -Wall -Wextra)
    target_link_libraries(transfuse_torch PRIVATE transfuse trf_torch_cpu ${CMAKE_DL_LIBS})
    # Beside libtransfuse.so in the build folder as in the package. torch is there already when this one is loaded.
    set_target_properties(transfuse_torch PROPERTIES
        CXX_STANDARD 17 CXX_STANDARD_REQUIRED ON CXX_EXTENSIONS OFF
        CXX_VISIBILITY_PRESET hidden VISIBILITY_INLINES_HIDDEN ON
        LIBRARY_OUTPUT_DIRECTORY "${PROJECT_BINARY_DIR}" BUILD_WITH_INSTALL_RPATH ON INSTALL_RPATH "$ORIGIN")
endfunction()

trf_choose_torch(torch)
if(torch)
    enable_language(CXX)
    trf_harden_language(CXX)
    if(COMMAND trf_map_paths)
        trf_map_paths("${torch}" torch)
    endif()
    trf_add_torch_ops("${torch}")
endif()
