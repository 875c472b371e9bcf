/* SPDX-License-Identifier: Apache-2.0 */
#include "trf_compress_check.h"

#include "trf_bf16_numbers.h"
#include "trf_json.h"

#include <stdlib.h>
#include <string.h>

trf_status trf_select_fp8(const trf_selection_rules *rules, const trf_fp8_tensor *fp8, const trf_tensor *tensor,
                          trf_tensor_selection *selection, trf_left_reason *reason, trf_error *err) {
    trf_status status = trf_select_tensor(rules, tensor, selection, reason, err);
    if (status != TRF_OK || !fp8)
        return status;
    const int is_left = *selection == TRF_SELECT_KEEP;
    *selection = fp8->role == TRF_FP8_WEIGHT ? TRF_SELECT_ALWAYS : TRF_SELECT_KEEP;
    if (fp8->role != TRF_FP8_WEIGHT || !is_left || (*reason != TRF_LEFT_EXCLUDED && *reason != TRF_LEFT_DTYPE))
        return TRF_OK;
    return trf_fail(
        err, TRF_ERR_ARGUMENT, TRF_NO_OFFSET,
        "tensor '%s' (%s) has scales of its own ('%s'), which nothing would read beside it: it cannot be %s",
        tensor->name, tensor->dtype, fp8->scale->name,
        *reason == TRF_LEFT_EXCLUDED ? "left out" : "compressed with another codec than auto or fp8_e4m3");
}

static trf_status check_collision(const trf_checkpoint *checkpoint, const trf_checkpoint_file *file,
                                  const trf_tensor *tensor, trf_error *err) {
    char *name = trf_blob_name(tensor->name);
    if (!name)
        return trf_fail_memory(err, strlen(tensor->name));
    const char *where = trf_safetensors_find(&file->own_header, name) ? file->path : NULL;
    for (size_t i = 0; i < checkpoint->num_indexes && !where; i++)
        if (json_object_get(checkpoint->indexes[i].weight_map, name))
            where = checkpoint->indexes[i].path;
    free(name);
    if (!where)
        return TRF_OK;
    return trf_fail(err, TRF_ERR_ARGUMENT, TRF_NO_OFFSET,
                    "%s: tensor '%s' would become '%s" TRF_BLOB_SUFFIX "', which exists already; exclude it", where,
                    tensor->name, tensor->name);
}

/* Checks a few weights of an F32 tensor that must hold BF16 numbers alone. If they show that it does not, the tensor
 * stays as it is, or cannot be compressed. */
static trf_status check_f32(const trf_checkpoint_file *file, const trf_selection_rules *rules, const trf_tensor *tensor,
                            trf_tensor_selection *selection, trf_error *err) {
    trf_file in;
    uint64_t file_bytes;
    int may_be;
    if (!trf_needs_bf16_numbers(rules->options, trf_dtype_of_name(tensor->dtype)))
        return TRF_OK;
    trf_status status = trf_file_open(file->path, &in, &file_bytes, err);
    if (status != TRF_OK)
        return status;
    status = trf_may_be_bf16_numbers(&in, trf_safetensors_data_offset(&file->own_header) + tensor->begin,
                                     trf_tensor_bytes(tensor), &may_be, err);
    trf_file_close(&in);
    if (status != TRF_OK || may_be)
        return status;
    if (trf_must_fit(rules, *selection))
        return trf_prefix_error(err, trf_fail_no_bf16_numbers(err), "tensor '%s'", tensor->name);
    *selection = TRF_SELECT_KEEP;
    return TRF_OK;
}

trf_status trf_check_compressible_file(const trf_checkpoint *checkpoint, const trf_checkpoint_file *file,
                                       const trf_selection_rules *rules, const trf_fp8_model *fp8, trf_error *err) {
    static const char *const ours[] = {TRF_METADATA_HEADER, TRF_METADATA_SIDE_TABLES};
    if (file->compressed)
        return trf_fail(err, TRF_ERR_ARGUMENT, TRF_NO_OFFSET, "%s: is compressed already", file->path);
    for (size_t i = 0; i < sizeof ours / sizeof ours[0]; i++)
        if (trf_safetensors_metadata(&file->own_header, ours[i]))
            return trf_fail(err, TRF_ERR_ARGUMENT, TRF_NO_OFFSET, "%s: __metadata__ has '%s' already", file->path,
                            ours[i]);
    for (size_t i = 0; i < file->num_tensors; i++) {
        trf_tensor_selection selection;
        trf_left_reason reason;
        const trf_tensor *tensor = file->tensors[i].source;
        trf_status status = trf_check_bare_blob(&file->tensors[i], err);
        if (status != TRF_OK)
            return trf_fail_in_tensor(file, &file->tensors[i], status, err);
        status = trf_select_fp8(rules, trf_fp8_model_find(fp8, file, tensor), tensor, &selection, &reason, err);
        if (status == TRF_OK && selection != TRF_SELECT_KEEP)
            status = check_f32(file, rules, tensor, &selection, err);
        if (status != TRF_OK)
            return trf_prefix_error(err, status, "%s", file->path);
        if (selection != TRF_SELECT_KEEP && (status = check_collision(checkpoint, file, tensor, err)) != TRF_OK)
            return status;
    }
    return TRF_OK;
}

/* @return whether a pattern matches a tensor of a model; -1 without memory. */
static int has_match(const trf_checkpoint *model, const char *pattern) {
    int found = 0;
    for (size_t i = 0; i < model->num_files && !found; i++)
        for (size_t t = 0; t < model->files[i].num_tensors && !found; t++) {
            const char *name = model->files[i].tensors[t].source->name;
            char *part_name = model->name ? trf_path_join(model->name, name) : NULL;
            found = model->name && !part_name ? -1 : trf_pattern_matches(pattern, name, part_name);
            free(part_name);
        }
    return found;
}

trf_status trf_check_patterns(const trf_checkpoint *checkpoint, const char *const *patterns, const char *verb,
                              trf_error *err) {
    for (size_t p = 0; patterns && patterns[p]; p++) {
        const trf_checkpoint *model;
        int found = 0;
        for (size_t m = 0; !found && (model = trf_checkpoint_model(checkpoint, m)); m++)
            found = has_match(model, patterns[p]);
        if (found < 0)
            return trf_fail_memory(err, strlen(patterns[p]));
        if (!found)
            return trf_fail(err, TRF_ERR_NOT_FOUND, TRF_NO_OFFSET,
                            trf_pattern_is_name(patterns[p]) ? "%s: there is no tensor '%s' to %s"
                                                             : "%s: no tensor's name matches '%s', which is to %s",
                            checkpoint->root, patterns[p], verb);
    }
    return TRF_OK;
}

/* ---- the new header ---- */

enum {
    TENSOR_BYTES = 640 /* what is kept of a tensor, and its entry without its name, which the text has, too */
};

json_t *trf_compressed_metadata(const trf_checkpoint_file *file, int config_is_unreadable) {
    json_t *metadata = file->own_header.metadata ? trf_json_copy(file->own_header.metadata) : json_object();
    json_t *kept = json_stringn(file->own_header.text, file->own_header.text_bytes);
    int failed =
        !metadata || !kept || json_object_set_new(metadata, TRF_METADATA_FORMAT, json_string("1")) ||
        json_object_set(metadata, TRF_METADATA_HEADER, kept) ||
        (config_is_unreadable && json_object_set_new(metadata, TRF_METADATA_CONFIG, json_string("unreadable")));
    json_decref(kept);
    if (!failed)
        return metadata;
    json_decref(metadata);
    return NULL;
}

uint64_t trf_compressed_header_bytes(const trf_checkpoint_file *file, const trf_fp8_model *fp8_model) {
    uint64_t tables = 0;
    for (size_t i = 0; i < file->num_tensors; i++) {
        const trf_fp8_tensor *fp8 = trf_fp8_model_find(fp8_model, file, file->tensors[i].source);
        tables += fp8 && fp8->role != TRF_FP8_WEIGHT ? trf_tensor_bytes(file->tensors[i].source) : 0;
    }
    return 12 * (uint64_t)file->own_header.text_bytes + 8 * tables + file->num_tensors * TENSOR_BYTES;
}
