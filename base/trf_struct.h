/* SPDX-License-Identifier: Apache-2.0 */
/* Structs that callers fill. They begin with their size in bytes and grow from version to version: a program may have
 * been compiled against an older or a newer transfuse.h than the library. */
#ifndef TRF_STRUCT_H
#define TRF_STRUCT_H

#include "trf_error.h"

/* The bytes of a struct up to the end of a field. A field that is added begins after the last version's sizeof, not in
 * the padding at its end, which older programs leave undefined. */
#define TRF_STRUCT_BYTES(type, last_field) (offsetof(type, last_field) + sizeof(((type *)0)->last_field))

/* What the library knows of such a struct. */
typedef struct trf_struct_type {
    const char *name;   /* such as "trf_matrix"; the function of that name with _init sets its defaults */
    size_t bytes;       /* sizeof here */
    size_t first_bytes; /* TRF_STRUCT_BYTES of the first version's last field, which every program has */
} trf_struct_type;

/* Checks that this library can take a caller's struct, which begins with its struct_bytes. Errors: TRF_ERR_ARGUMENT (a
 * size that no version has, such as 0: the _init was forgotten), TRF_ERR_UNSUPPORTED (it has fields that this library
 * does not know, and they are not zero). */
trf_status trf_check_struct(const trf_struct_type *type, const void *from, trf_error *err);

/* Does the same, and copies the struct to *to, which holds the defaults. Fields that the caller does not know keep
 * them. */
trf_status trf_take_struct(const trf_struct_type *type, void *to, const void *from, trf_error *err);

#endif
