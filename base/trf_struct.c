/* SPDX-License-Identifier: Apache-2.0 */
#include "trf_struct.h"

#include <string.h>

enum {
    MOST_BYTES = 4096 /* the most that any future version has; more cannot be a size, and no field is read then */
};

static size_t struct_bytes_of(const void *from) {
    size_t bytes;
    memcpy(&bytes, from, sizeof bytes);
    return bytes;
}

trf_status trf_check_struct(const trf_struct_type *type, const void *from, trf_error *err) {
    const size_t from_bytes = struct_bytes_of(from);
    if (from_bytes < type->first_bytes || from_bytes > MOST_BYTES)
        return trf_fail(err, TRF_ERR_ARGUMENT, TRF_NO_OFFSET,
                        "a %s has struct_bytes %zu, which no version has; %s_init sets it", type->name, from_bytes,
                        type->name);
    for (size_t i = type->bytes; i < from_bytes; i++)
        if (((const uint8_t *)from)[i])
            return trf_fail(err, TRF_ERR_UNSUPPORTED, TRF_NO_OFFSET,
                            "a %s has a field at byte %zu that this version of the library does not know", type->name,
                            i);
    return TRF_OK;
}

trf_status trf_take_struct(const trf_struct_type *type, void *to, const void *from, trf_error *err) {
    const size_t from_bytes = struct_bytes_of(from);
    trf_status status = trf_check_struct(type, from, err);
    if (status != TRF_OK)
        return status;
    memcpy(to, from, from_bytes < type->bytes ? from_bytes : type->bytes);
    memcpy(to, &type->bytes, sizeof type->bytes);
    return TRF_OK;
}
