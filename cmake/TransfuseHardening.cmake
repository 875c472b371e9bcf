# SPDX-License-Identifier: Apache-2.0
# Flags that make a memory fault of ours harder to exploit. They stand before the user's own flags, which therefore win:
# -DCMAKE_C_FLAGS=-fno-stack-protector or -DCMAKE_SHARED_LINKER_FLAGS=-Wl,-z,lazy take one of them back, and
# -DTRF_HARDEN=OFF all. tests/builds/check_hardening.py looks for each of them in what was built.
#
# Control-flow integrity is what the CPU checks (-fcf-protection: indirect branches land on marked instructions, and
# returns go by a shadow stack). clang's -fsanitize=cfi is not among them: it takes clang, link-time optimization and
# hidden symbols in all that is linked, and its check of indirect calls refuses the functions that programs, ctypes and
# torch hand to the library, as no library of theirs is built so. Releases are built by gcc, which has nothing like it.

option(TRF_HARDEN "Stack protector, checked libc calls, marked branch targets, read-only relocations" ON)
include(CheckCCompilerFlag)
include(CheckCSourceCompiles)
include(CheckLinkerFlag)
include(CheckPIESupported)
check_pie_supported(LANGUAGES C)

# Sets ${variable} to those of the flags that the C compiler takes here.
function(trf_find_hardening variable)
    set(found "")
    foreach(flag IN ITEMS -fstack-protector-strong -fstack-clash-protection -fcf-protection)
        string(MAKE_C_IDENTIFIER "TRF_HAS${flag}" has)
        check_c_compiler_flag("-Werror ${flag}" ${has})
        if(${has})
            list(APPEND found "${flag}")
        endif()
    endforeach()
    set(${variable} "${found}" PARENT_SCOPE)
endfunction()

# Sets ${variable} to the highest level of _FORTIFY_SOURCE that compiler and libc have, who warn of a higher one.
function(trf_find_fortify_level variable)
    set(CMAKE_REQUIRED_FLAGS "-Werror -O2 -U_FORTIFY_SOURCE -D_FORTIFY_SOURCE=3")
    check_c_source_compiles("#include <string.h>\nint main(void) { return 0; }" TRF_HAS_FORTIFY_3)
    set(${variable} 2 PARENT_SCOPE)
    if(TRF_HAS_FORTIFY_3)
        set(${variable} 3 PARENT_SCOPE)
    endif()
endfunction()

# Hardens what is compiled in a language, C or CXX, from here on. The macro's variables are the directory's, which is
# the way to stand before the user's flags; those of the cache are left alone.
macro(trf_harden_language language)
    if(TRF_HARDENS)
        list(JOIN TRF_HARDENING_FLAGS " " trf_flags)
        set(CMAKE_${language}_FLAGS "${trf_flags} ${CMAKE_${language}_FLAGS}")
        # libc checks nothing in code that is not optimized, and warns.
        foreach(trf_config IN ITEMS RELEASE RELWITHDEBINFO MINSIZEREL)
            set(trf_flags "${CMAKE_${language}_FLAGS} ${CMAKE_${language}_FLAGS_${trf_config}}")
            if(NOT trf_flags MATCHES "_FORTIFY_SOURCE" AND trf_flags MATCHES ".*-O([^ ]*)"
                    AND NOT CMAKE_MATCH_1 STREQUAL "0")
                string(PREPEND CMAKE_${language}_FLAGS_${trf_config}
                    "-U_FORTIFY_SOURCE -D_FORTIFY_SOURCE=${TRF_FORTIFY_LEVEL} ")
            endif()
        endforeach()
    endif()
endmacro()

# The same for what nvcc hands to the C++ compiler, which is little more than launches.
macro(trf_harden_cuda)
    if(TRF_HARDENS AND TRF_HARDENING_FLAGS)
        list(JOIN TRF_HARDENING_FLAGS "," trf_flags)
        set(CMAKE_CUDA_FLAGS "-Xcompiler=${trf_flags} ${CMAKE_CUDA_FLAGS}")
    endif()
endmacro()

# A sanitizer finds more than these would, and does not see into the calls that libc checks.
set(TRF_HARDENS OFF)
if(TRF_HARDEN AND NOT TRF_SANITIZE AND NOT TRF_FUZZ AND NOT CMAKE_C_FLAGS MATCHES "-fsanitize")
    set(TRF_HARDENS ON)
    trf_find_hardening(TRF_HARDENING_FLAGS)
    trf_find_fortify_level(TRF_FORTIFY_LEVEL)
    check_linker_flag(C "-Wl,-z,relro,-z,now,-z,noexecstack" TRF_HAS_RELRO)
    if(TRF_HAS_RELRO)
        foreach(kind IN ITEMS EXE SHARED MODULE)
            string(PREPEND CMAKE_${kind}_LINKER_FLAGS "-Wl,-z,relro,-z,now,-z,noexecstack ")
        endforeach()
    endif()
    trf_harden_language(C)
endif()
