/* SPDX-License-Identifier: Apache-2.0 */
/* What this library asks of the machine and the compiler, so that no build exists that would read or write wrong bytes.
 * cmake/TransfuseHost.cmake asks the same, in time to say it before anything is compiled. */
#ifndef TRF_HOST_H
#define TRF_HOST_H

#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "transfuse reads and writes its little-endian structures in place; this host is big-endian"
#endif
#if defined(__SIZEOF_POINTER__) && __SIZEOF_POINTER__ < 8
#error "transfuse maps files that are larger than 32-bit addresses reach; this host needs a 64-bit build"
#endif
#if defined(__FAST_MATH__) && !defined(__CUDACC__)
#error "transfuse tells NaNs and infinities apart and rounds as IEEE 754 does; compile it without -ffast-math"
#endif

#endif
