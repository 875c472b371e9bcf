# SPDX-License-Identifier: Apache-2.0
# Language standard, warnings, sanitizers, and the flags of the x86 SIMD sources.

if(NOT CMAKE_BUILD_TYPE AND NOT CMAKE_CONFIGURATION_TYPES)
    set(CMAKE_BUILD_TYPE Release CACHE STRING "Build type" FORCE)
endif()

# gnu11 rather than c11 because POSIX calls (mmap, pread, fsync) are hidden under the strict standard.
set(CMAKE_C_STANDARD 11)
set(CMAKE_C_STANDARD_REQUIRED ON)
set(CMAKE_C_EXTENSIONS ON)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)

# Not for projects that include this one: their newer compiler may know warnings that ours does not.
if(PROJECT_IS_TOP_LEVEL AND NOT DEFINED CMAKE_COMPILE_WARNING_AS_ERROR)
    set(CMAKE_COMPILE_WARNING_AS_ERROR ON)
endif()
add_compile_options("$<$<COMPILE_LANGUAGE:C>:-Wall;-Wextra>" "$<$<COMPILE_LANGUAGE:CUDA>:-Xcompiler=-Wall,-Wextra>")
if(CMAKE_C_COMPILER_ID STREQUAL "GNU")
    # A long error message is cut on purpose: trf_error holds one line of fixed size.
    add_compile_options("$<$<COMPILE_LANGUAGE:C>:-Wno-format-truncation>")
endif()

# A product and a sum may not become one fused operation, which rounds once less, wherever a compiler sees a chance: the
# encoder's bytes would depend on compiler and CPU. Products of layers on the CPU promise no bits, and are faster so.
add_compile_options("$<$<COMPILE_LANGUAGE:C>:-ffp-contract=off>")

if(TRF_FUZZ AND NOT TRF_FUZZ_ENGINE)
    if(NOT CMAKE_C_COMPILER_ID STREQUAL "Clang")
        message(FATAL_ERROR "TRF_FUZZ needs clang (libFuzzer); the compiler is ${CMAKE_C_COMPILER_ID}")
    endif()
    if(NOT TRF_SANITIZE)
        set(TRF_SANITIZE "address,undefined")
    endif()
    add_compile_options(-fsanitize=fuzzer-no-link)
endif()
if(TRF_SANITIZE)
    if(CMAKE_C_COMPILER_ID STREQUAL "GNU")
        # False alarms, by gcc's own documentation, once a sanitizer has rewritten the code.
        add_compile_options("$<$<COMPILE_LANGUAGE:C>:-Wno-maybe-uninitialized>")
    endif()
    set(sanitize "-fsanitize=${TRF_SANITIZE}" -fno-sanitize-recover=all -fno-omit-frame-pointer)
    add_compile_options("$<$<COMPILE_LANGUAGE:C>:${sanitize}>")
    add_link_options("-fsanitize=${TRF_SANITIZE}")
endif()

# Only files named *_avx2.c and *_avx512.c get these flags, so that nothing else can use an instruction that the CPU
# lacks before the dispatcher has looked. Elsewhere than on x86-64 those files are left out, and so they are for
# MemorySanitizer, which does not follow shuffles of bytes.
set(avx2_flags -mavx2 -mbmi -mbmi2 -mfma)
set(avx512_flags -mavx512f -mavx512bw -mavx512dq -mavx512vl -mavx512vbmi -mavx512vbmi2 -mbmi -mbmi2 -mfma)
string(REGEX MATCH "(^|[ ,=])memory([ ,]|$)" follows_memory "${TRF_SANITIZE} ${CMAKE_C_FLAGS}")
if(CMAKE_SYSTEM_PROCESSOR MATCHES "^(x86_64|AMD64|amd64)$" AND NOT follows_memory)
    set(TRF_X86_SIMD ON)
    add_compile_definitions(TRF_HAVE_X86_SIMD=1)
endif()

function(trf_prepare_simd_sources list_name)
    set(sources ${${list_name}})
    if(TRF_X86_SIMD)
        foreach(set_name IN ITEMS avx2 avx512)
            set(matching ${sources})
            list(FILTER matching INCLUDE REGEX "_${set_name}\\.c$")
            set_source_files_properties(${matching} PROPERTIES COMPILE_OPTIONS "${${set_name}_flags}")
        endforeach()
    else()
        list(FILTER sources EXCLUDE REGEX "_avx(2|512)\\.c$")
    endif()
    set(products ${sources})
    list(FILTER products INCLUDE REGEX "/trf_matmul[a-z0-9_]*\\.c$")
    set_property(SOURCE ${products} APPEND PROPERTY COMPILE_OPTIONS -ffp-contract=fast)
    set(${list_name} ${sources} PARENT_SCOPE)
endfunction()
