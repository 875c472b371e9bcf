# SPDX-License-Identifier: Apache-2.0
# Refuses hosts that transfuse is not made for. base/trf_host.h refuses them, too, where other builds compile it.

if(CMAKE_C_BYTE_ORDER STREQUAL "BIG_ENDIAN")
    message(FATAL_ERROR "transfuse reads and writes its little-endian structures in place; "
        "${CMAKE_SYSTEM_PROCESSOR} is big-endian as ${CMAKE_C_COMPILER} compiles for it")
endif()
if(CMAKE_SIZEOF_VOID_P LESS 8)
    message(FATAL_ERROR "transfuse maps files that are larger than 32-bit addresses reach, and needs a 64-bit build; "
        "${CMAKE_C_COMPILER} makes one with pointers of ${CMAKE_SIZEOF_VOID_P} bytes")
endif()
