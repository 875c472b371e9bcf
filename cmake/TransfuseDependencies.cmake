# SPDX-License-Identifier: Apache-2.0
# What the library needs; tools and tests look for their own in their folders.

find_package(Threads REQUIRED)
find_package(PkgConfig REQUIRED)

# Finds a library that TRF_STATIC_DEPS applies to. Defines the target PkgConfig::PREFIX.
function(trf_find_library prefix module)
    # pkg_check_modules looks up the full path of each library, among files with these suffixes.
    if(TRF_STATIC_DEPS)
        set(CMAKE_FIND_LIBRARY_SUFFIXES ".a")
    endif()
    pkg_check_modules(${prefix} REQUIRED IMPORTED_TARGET ${module})
endfunction()

trf_find_library(TRF_JANSSON jansson)
trf_find_library(TRF_XXHASH libxxhash)
