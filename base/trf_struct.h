/* SPDX-License-Identifier: Apache-2.0 */
/* Structs that callers fill, which begin with their size in bytes and grow from version to version: a program may have
 * been compiled against an older transfuse.h than the library, or a newer one. */
#ifndef TRF_STRUCT_H
#define TRF_STRUCT_H

#include "trf_error.h"

/* Bytes of a struct up to and with a field. A field that is added begins behind the last version's sizeof, not in the
 * padding at its end, which older programs leave undefined. */
#define TRF_STRUCT_BYTES(type, last_field) (offsetof(type, last_field) + sizeof(((type *)0)->last_field))

/* What the library knows of such a struct. */
typedef struct trf_struct_type {
    const char *name;   /* such as "trf_matrix"; its defaults are set by the function of that name with _init */
    size_t bytes;       /* sizeof here */
    size_t first_bytes; /* TRF_STRUCT_BYTES of the first version's last field: no program has less */
} trf_struct_type;

/* Whether a caller's struct, which begins with its struct_bytes, is one that this library takes. Errors:
 * TRF_ERR_ARGUMENT (a size that no version has, such as 0: the _init was forgotten), TRF_ERR_UNSUPPORTED (fields that
 * this library does not know, and that are not zero). */
trf_status trf_check_struct(const trf_struct_type *type, const void *from, trf_error *err);

/* The same, and copies it into *to, which holds the defaults: fields that the caller does not know keep them. */
trf_status trf_take_struct(const trf_struct_type *type, void *to, const void *from, trf_error *err);

#endif
