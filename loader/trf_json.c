/* SPDX-License-Identifier: Apache-2.0 */
#include "trf_json.h"

#include "trf_file.h"

trf_status trf_json_parse(const char *path, const char *text, size_t bytes, size_t flags, json_t **root,
                          trf_error *err) {
    json_error_t json_error;
    *root = json_loadb(text, bytes, flags, &json_error);
    if (*root)
        return TRF_OK;
    if (trf_json_lacked_memory(&json_error))
        return trf_fail_memory(err, bytes);
    return trf_fail(err, TRF_ERR_FORMAT, (uint64_t)json_error.position, "%s: not valid JSON: %s at byte %d", path,
                    json_error.text, json_error.position);
}
