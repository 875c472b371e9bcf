/* SPDX-License-Identifier: Apache-2.0 */
/* Tells files that transfuse wrote from others, before one is replaced. */
#include "trf_checkpoint.h"
#include "trf_json.h"

#include <stdlib.h>
#include <string.h>

enum {
    TRF_MOST_CONFIG_BYTES = 64 << 20
};

static int name_ends(const char *name, const char *suffix) {
    size_t length = strlen(name), tail = strlen(suffix);
    return length >= tail && strcmp(name + length - tail, suffix) == 0;
}

int trf_name_is_safetensors(const char *name) { return name_ends(name, ".safetensors"); }
int trf_name_is_index(const char *name) {
    return strstr(trf_path_basename(name), ".safetensors.index.") && name_ends(name, ".json");
}

/* Whether a config.json says that its checkpoint is compressed. */
static int config_is_ours(const char *path, trf_error *err) {
    char *text = NULL;
    size_t bytes;
    json_t *root = NULL;
    if (trf_file_load(path, TRF_MOST_CONFIG_BYTES, &text, &bytes, err) != TRF_OK)
        return 0;
    const trf_status status = trf_json_parse(path, text, bytes, JSON_DECODE_INT_AS_REAL | JSON_ALLOW_NUL, &root, err);
    const char *method =
        json_string_value(json_object_get(json_object_get(root, "quantization_config"), "quant_method"));
    const int ours = status == TRF_OK && method && strcmp(method, "transfuse") == 0;
    json_decref(root);
    free(text);
    return ours;
}

static int index_is_ours(const char *path, trf_error *err) {
    trf_checkpoint_index index;
    size_t bytes;
    if (trf_checkpoint_index_open(path, &index, err) != TRF_OK)
        return 0;
    const int ours = trf_checkpoint_index_kept(&index, &bytes) != NULL;
    trf_checkpoint_index_free(&index);
    return ours;
}

static trf_file_sort sort_of_weights(const char *path, trf_error *err) {
    trf_checkpoint_file file;
    if (trf_checkpoint_file_open(path, &file, err) != TRF_OK)
        return TRF_FILE_OTHER;
    const int ours = !file.is_layer && trf_safetensors_metadata(&file.own_header, TRF_METADATA_FORMAT) != NULL;
    const int has_weights = !file.is_layer && file.num_tensors;
    const trf_file_sort sort = ours ? TRF_FILE_OURS : has_weights ? TRF_FILE_WEIGHTS : TRF_FILE_OTHER;
    trf_checkpoint_file_free(&file);
    return sort;
}

trf_file_sort trf_file_sort_of(const char *path) {
    trf_error failure = {0};
    trf_file_sort sort = TRF_FILE_OTHER;
    if (trf_name_is_index(path))
        sort = index_is_ours(path, &failure) ? TRF_FILE_OURS : TRF_FILE_OTHER;
    else if (strcmp(trf_path_basename(path), "config.json") == 0)
        sort = config_is_ours(path, &failure) ? TRF_FILE_OURS : TRF_FILE_OTHER;
    else /* whatever its name: links in a cache of downloads lead to files without an extension */
        sort = sort_of_weights(path, &failure);
    return failure.status == TRF_ERR_MEMORY ? TRF_FILE_UNKNOWN : sort;
}
