/* SPDX-License-Identifier: Apache-2.0 */
#include "trf_fp8_model.h"

#include "trf_base64.h"
#include "trf_find_fp8.h"
#include "trf_json.h"
#include "trf_number_formats.h"
#include "trf_weights.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define TRF_COUNT(array) (sizeof(array) / sizeof((array)[0]))

/* What follows a weight's name in the name of its scales. Both are multiplied, whatever the second one is called. */
static const char *const kScaleEnds[] = {"_scale", "_scale_inv"};

/* The last parts of the names of scales that products of unquantized activations do not need. */
static const char *const kUnusedParts[] = {
    "input_scale", "input_scale_ub", "activation_scale", "output_scale", "q_scale",
    "k_scale",     "v_scale",        "kv_scale",         "prob_scale",
};

enum {
    LONGEST_END = 16, /* at least the longest of kScaleEnds */
    MOST_UNUSED = 4096
};

/* ---- shapes ---- */

static uint64_t divide_up(uint64_t a, uint64_t b) { return (a + b - 1) / b; }

static uint64_t rows_of(const trf_tensor *weight) { return weight->shape[weight->num_dims - 2]; }
static uint64_t cols_of(const trf_tensor *weight) { return weight->shape[weight->num_dims - 1]; }
static uint64_t matrices_of(const trf_tensor *weight) { return weight->num_dims == 3 ? weight->shape[0] : 1; }

/* @return whether a shape, dimensions of 1 left out, is that of `sizes`, of which those of 1 are left out, too. */
static int is_shape(const trf_tensor *tensor, const uint64_t sizes[3]) {
    uint32_t d = 0;
    for (int i = 0; i < 3; i++) {
        if (sizes[i] == 1)
            continue;
        while (d < tensor->num_dims && tensor->shape[d] == 1)
            d++;
        if (d == tensor->num_dims || tensor->shape[d++] != sizes[i])
            return 0;
    }
    while (d < tensor->num_dims && tensor->shape[d] == 1)
        d++;
    return d == tensor->num_dims;
}

/* Finds out how many weights share a scale, by the shapes. @return 0 if the scales do not fit. */
static int find_granularity(const trf_tensor *weight, const trf_tensor *scale, uint32_t block,
                            trf_granularity *granularity) {
    const uint64_t matrices = matrices_of(weight), rows = rows_of(weight), cols = cols_of(weight);
    const uint64_t blocks[3] = {matrices, block ? divide_up(rows, block) : 0, block ? divide_up(cols, block) : 0},
                   channels[3] = {matrices, rows, 1}, tensors[3] = {matrices, 1, 1};
    /* A scale for each column would have the same sizes as one for each row; so the last dimension decides. */
    const uint64_t last = scale->num_dims ? scale->shape[scale->num_dims - 1] : 1;
    const int by_columns = scale->num_dims >= weight->num_dims && last != 1;
    if (block && is_shape(scale, blocks))
        *granularity = TRF_GRANULARITY_SCALE_BLOCK;
    else if (is_shape(scale, tensors))
        *granularity = TRF_GRANULARITY_TENSOR;
    else if (is_shape(scale, channels) && !by_columns)
        *granularity = TRF_GRANULARITY_CHANNEL;
    else
        return 0;
    return 1;
}

/* Sets all of *scales but the values to what matrices of this tensor have. */
static void shape_scales(const trf_fp8_model *model, const trf_tensor *weight, const trf_fp8_tensor *fp8,
                         trf_fp8_scales *scales) {
    *scales = (trf_fp8_scales){.granularity = fp8->granularity, .scale_cols = 1, .count = 1};
    if (fp8->granularity == TRF_GRANULARITY_CHANNEL) {
        scales->count = rows_of(weight);
    } else if (fp8->granularity == TRF_GRANULARITY_SCALE_BLOCK) {
        scales->scale_group_size = model->config.block_size;
        scales->scale_cols = (uint32_t)divide_up(cols_of(weight), model->config.block_size);
        scales->count = divide_up(rows_of(weight), model->config.block_size) * scales->scale_cols;
    }
}

/* ---- names ---- */

/* Finds a tensor in a file, or else in another one. *file: first the one, then the other. */
static const trf_tensor *find_tensor(const trf_checkpoint *checkpoint, const char *name,
                                     const trf_checkpoint_file **file) {
    const trf_tensor *found = trf_safetensors_find(&(*file)->own_header, name);
    for (size_t i = 0; i < checkpoint->num_files && !found; i++)
        if ((found = trf_safetensors_find(&checkpoint->files[i].own_header, name)))
            *file = &checkpoint->files[i];
    return found;
}

static int is_unused_scale(const trf_tensor *tensor) {
    const char *dot = strrchr(tensor->name, '.');
    const trf_dtype dtype = trf_dtype_of_name(tensor->dtype);
    if (dtype != TRF_DTYPE_F32 && dtype != TRF_DTYPE_BF16 && dtype != TRF_DTYPE_F16)
        return 0;
    for (size_t i = 0; i < TRF_COUNT(kUnusedParts); i++)
        if (strcmp(dot ? dot + 1 : tensor->name, kUnusedParts[i]) == 0)
            return trf_tensor_bytes(tensor) / trf_dtype_bytes(dtype) <= MOST_UNUSED;
    return 0;
}

static trf_fp8_tensor *entry_of(const trf_fp8_model *model, const trf_checkpoint_file *file, const trf_tensor *tensor) {
    return &model->tensors[file - model->checkpoint->files][tensor - file->own_header.tensors];
}

const trf_fp8_tensor *trf_fp8_model_find(const trf_fp8_model *model, const trf_checkpoint_file *file,
                                         const trf_tensor *tensor) {
    const trf_fp8_tensor *entry = model && model->is_fp8 ? entry_of(model, file, tensor) : NULL;
    return entry && entry->role != TRF_FP8_OTHER ? entry : NULL;
}

/* ---- scales ---- */

trf_status trf_fp8_model_load_scales(const trf_fp8_model *model, const trf_tensor *weight, const trf_fp8_tensor *fp8,
                                     uint64_t number, trf_fp8_scales *scales, trf_error *err) {
    const trf_dtype dtype = trf_dtype_of_name(fp8->scale->dtype);
    trf_file file;
    uint64_t file_bytes;
    shape_scales(model, weight, fp8, scales);
    const uint64_t bytes = scales->count * trf_dtype_bytes(dtype),
                   offset = trf_safetensors_data_offset(&fp8->scale_file->own_header) + fp8->scale->begin;
    trf_status status = trf_budget_check(model->checkpoint->budget, bytes + scales->count * sizeof *scales->values,
                                         "the scales of its weights", err);
    if (status != TRF_OK)
        return status;
    uint8_t *stored = malloc(bytes);
    if (!(scales->values = malloc(scales->count * sizeof *scales->values)) || !stored)
        status = trf_fail_memory(err, scales->count * sizeof *scales->values);
    if (status == TRF_OK && (status = trf_file_open(fp8->scale_file->path, &file, &file_bytes, err)) == TRF_OK) {
        status = trf_file_read(&file, offset + number * bytes, stored, bytes, err);
        trf_file_close(&file);
    }
    if (status == TRF_OK)
        trf_weights_to_f32(dtype, stored, scales->count, scales->values);
    else
        trf_fp8_scales_free(scales);
    free(stored);
    return status;
}

/* Writes why a tensor is refused: its file, its name, its place, and the reason. */
__attribute__((format(printf, 4, 5))) static void refuse(char text[TRF_OBSTACLE_BYTES], const trf_checkpoint_file *file,
                                                         const trf_tensor *tensor, const char *format, ...) {
    char reason[240];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(reason, sizeof reason, format, arguments);
    va_end(arguments);
    snprintf(text, TRF_OBSTACLE_BYTES, "%.200s: tensor '%.120s' (%.20s) at byte %" PRIu64 ": %s", file->path,
             tensor->name, tensor->dtype, trf_safetensors_data_offset(&file->own_header) + tensor->begin, reason);
}

/* Checks the values of a weight's scales. */
static trf_status check_scales(const trf_fp8_model *model, const trf_tensor *weight, const trf_fp8_tensor *fp8,
                               char text[TRF_OBSTACLE_BYTES], trf_error *err) {
    /* They are kept in the header, in base64, and would be refused there after they have been held in memory. */
    if (trf_base64_length(trf_tensor_bytes(fp8->scale)) > TRF_MAX_SAFETENSORS_HEADER_BYTES)
        refuse(text, fp8->scale_file, fp8->scale, "%" PRIu64 " bytes of scales, more than a header can keep",
               trf_tensor_bytes(fp8->scale));
    for (uint64_t number = 0; number < matrices_of(weight) && !*text; number++) {
        trf_fp8_scales scales;
        trf_status status = trf_fp8_model_load_scales(model, weight, fp8, number, &scales, err);
        if (status != TRF_OK)
            return status;
        for (uint64_t i = 0; i < scales.count && !*text; i++)
            if (!trf_is_fp8_scale(scales.values[i]))
                refuse(text, fp8->scale_file, fp8->scale,
                       "scale %" PRIu64 " is %g, and transfuse takes scales of 2^-100 to 2^100",
                       number * scales.count + i, (double)scales.values[i]);
        trf_fp8_scales_free(&scales);
    }
    return TRF_OK;
}

/* Finds the scales of a tensor of E4M3. *found: whether it has some. */
static trf_status find_scales(trf_fp8_model *model, const trf_checkpoint_file *file, const trf_tensor *weight,
                              int *found, char text[TRF_OBSTACLE_BYTES], trf_error *err) {
    const size_t length = strlen(weight->name);
    trf_fp8_tensor *entry = entry_of(model, file, weight);
    char *name = malloc(length + LONGEST_END);
    *found = 0;
    if (!name)
        return trf_fail_memory(err, length);
    memcpy(name, weight->name, length);
    for (size_t i = 0; i < TRF_COUNT(kScaleEnds); i++) {
        const trf_checkpoint_file *scale_file = file;
        strcpy(name + length, kScaleEnds[i]);
        const trf_tensor *scale = find_tensor(model->checkpoint, name, &scale_file);
        if (scale && *found)
            refuse(text, scale_file, scale, "the weight has scales of two names");
        if (!scale || *found)
            continue;
        *found = 1;
        entry->scale_file = scale_file, entry->scale = scale;
    }
    free(name);
    return TRF_OK;
}

/* Checks a weight that has scales, and notes them. */
static trf_status take_weight(trf_fp8_model *model, const trf_checkpoint_file *file, const trf_tensor *weight,
                              char text[TRF_OBSTACLE_BYTES], trf_error *err) {
    trf_fp8_tensor *entry = entry_of(model, file, weight);
    const trf_dtype dtype = trf_dtype_of_name(entry->scale->dtype);
    char shape[96] = "[";
    for (uint32_t i = 0; i < entry->scale->num_dims && i < 4; i++)
        snprintf(shape + strlen(shape), sizeof shape - strlen(shape), "%s%" PRIu64, i ? "][" : "",
                 entry->scale->shape[i]);
    if (weight->num_dims != 2 && weight->num_dims != 3)
        refuse(text, file, weight, "FP8 weights of %u dimensions", (unsigned)weight->num_dims);
    for (uint32_t i = 0; i < weight->num_dims && !*text; i++)
        if (!weight->shape[i] || weight->shape[i] > INT32_MAX)
            refuse(text, file, weight, "one of its dimensions is 0 or above 2^31 - 1");
    if (!*text && dtype != TRF_DTYPE_F32 && dtype != TRF_DTYPE_BF16 && dtype != TRF_DTYPE_F16)
        refuse(text, entry->scale_file, entry->scale, "scales are F32, BF16 or F16");
    if (!*text && !find_granularity(weight, entry->scale, model->config.block_size, &entry->granularity))
        refuse(
            text, entry->scale_file, entry->scale,
            "scales of shape %s] are neither one for '%.80s', nor one for each of its rows, nor of the square blocks "
            "that the config names",
            shape, weight->name);
    if (*text)
        return TRF_OK;
    entry->role = TRF_FP8_WEIGHT;
    entry_of(model, entry->scale_file, entry->scale)->role = TRF_FP8_SCALE;
    return check_scales(model, weight, entry, text, err);
}

/* Gives every tensor its role. */
static trf_status find_roles(trf_fp8_model *model, char text[TRF_OBSTACLE_BYTES], trf_error *err) {
    trf_status status = TRF_OK;
    for (size_t i = 0; i < model->checkpoint->num_files; i++) {
        const trf_checkpoint_file *file = &model->checkpoint->files[i];
        for (size_t t = 0; t < file->own_header.num_tensors && status == TRF_OK && !*text; t++) {
            const trf_tensor *tensor = &file->own_header.tensors[t];
            int found;
            if (is_unused_scale(tensor))
                model->tensors[i][t].role = TRF_FP8_UNUSED_SCALE;
            if (trf_dtype_of_name(tensor->dtype) != TRF_DTYPE_F8_E4M3)
                continue;
            status = find_scales(model, file, tensor, &found, text, err);
            if (status == TRF_OK && found && !*text)
                status = take_weight(model, file, tensor, text, err);
            else if (status == TRF_OK && !found && !trf_fp8_config_ignores(&model->config, tensor->name))
                refuse(text, file, tensor, "FP8 without a tensor of scales, '%.80s_scale' or '%.80s_scale_inv'",
                       tensor->name, tensor->name);
        }
    }
    return status;
}

/* ---- the model ---- */

/* Reads modelopt's file, if there is one that can be read. */
static trf_status read_modelopt(const trf_checkpoint *checkpoint, json_t **root, trf_error *err) {
    char *path = trf_path_join(checkpoint->root, TRF_MODELOPT_FILE), *text = NULL;
    size_t bytes;
    trf_error failure = {0};
    trf_status status = path ? TRF_OK : trf_fail_memory(err, strlen(checkpoint->root));
    if (path && access(path, F_OK) == 0)
        status = trf_file_load_within(checkpoint->budget, path, TRF_MAX_MODEL_CONFIG_BYTES, &text, &bytes, &failure);
    if (status == TRF_OK && text)
        status = trf_json_check(checkpoint->budget, path, text, bytes, 1, 2, &failure);
    if (status == TRF_OK && text)
        status = trf_json_parse_python(path, text, bytes, root, NULL, &failure);
    free(text);
    free(path);
    if (status == TRF_ERR_LIMIT && err)
        *err = failure;
    if (status == TRF_ERR_LIMIT)
        return status;
    return status == TRF_ERR_MEMORY ? trf_fail_memory(err, TRF_MAX_MODEL_CONFIG_BYTES) : TRF_OK;
}

/* @return a dtype of the config, or of that of one of its parts, that is not BF16; or NULL. */
static const char *find_other_dtype(const trf_source_config *source) {
    const char *key, *dtype = trf_source_config_dtype(source);
    json_t *part;
    if (dtype)
        return strstr(dtype, "bfloat16") ? NULL : dtype;
    json_object_foreach(source->file.root, key, part) {
        const char *own = json_string_value(json_object_get(part, "dtype"));
        own = own ? own : json_string_value(json_object_get(part, "torch_dtype"));
        if (own && json_object_get(part, "model_type") && !strstr(own, "bfloat16"))
            return own;
    }
    return NULL;
}

/* Makes room for roles. */
static trf_status begin_roles(trf_fp8_model *model, trf_error *err) {
    const trf_checkpoint *checkpoint = model->checkpoint;
    if (!(model->tensors = calloc(checkpoint->num_files + 1, sizeof *model->tensors)))
        return trf_fail_memory(err, checkpoint->num_files * sizeof *model->tensors);
    for (size_t i = 0; i < checkpoint->num_files; i++) {
        const size_t count = checkpoint->files[i].own_header.num_tensors;
        if (!(model->tensors[i] = calloc(count + 1, sizeof **model->tensors)))
            return trf_fail_memory(err, count * sizeof **model->tensors);
    }
    return TRF_OK;
}

/* Writes why the config's weights cannot be compressed though they are of a known method; nothing if it is none. */
static void tell_config(const trf_source_config *source, const trf_fp8_config *config, const char *dtype,
                        char text[TRF_OBSTACLE_BYTES]) {
    if (config->method && !config->is_taken)
        snprintf(text, TRF_OBSTACLE_BYTES,
                 "%.300s: the model is quantized already: there is a '" TRF_QUANTIZATION_KEY "' (%s): %s",
                 source->file.path, config->method, config->reason);
    else if (config->is_taken && trf_source_config_framework(source) != TRF_FRAMEWORK_TRANSFORMERS)
        snprintf(text, TRF_OBSTACLE_BYTES,
                 "%.300s: the model is quantized already: there is a '" TRF_QUANTIZATION_KEY
                 "' (%s), and the model is not one of transformers",
                 source->file.path, config->method);
    else if (config->is_taken && dtype)
        snprintf(text, TRF_OBSTACLE_BYTES,
                 "%.300s: the model is quantized already (%s), and its dtype is %.40s: FP8 weights with scales become "
                 "BF16 weights, which is exact for bfloat16 alone",
                 source->file.path, config->method, dtype);
}

trf_status trf_fp8_model_read(const trf_checkpoint *checkpoint, const trf_source_config *source, trf_fp8_model *model,
                              char text[TRF_OBSTACLE_BYTES], trf_error *err) {
    *model = (trf_fp8_model){.checkpoint = checkpoint};
    *text = 0;
    if (!checkpoint->is_folder || !source->file.root || trf_source_config_find_ours(source))
        return TRF_OK;
    trf_status status = read_modelopt(checkpoint, &model->modelopt, err);
    if (status != TRF_OK)
        return status;
    trf_fp8_config_read(source->file.root, model->modelopt, &model->config);
    tell_config(source, &model->config, find_other_dtype(source), text);
    if (!model->config.is_taken || *text)
        return TRF_OK;
    status = begin_roles(model, err);
    if (status == TRF_OK)
        status = find_roles(model, text, err);
    model->is_fp8 = status == TRF_OK && !*text;
    return status;
}

void trf_fp8_model_free(trf_fp8_model *model) {
    for (size_t i = 0; model->tensors && i < model->checkpoint->num_files; i++)
        free(model->tensors[i]);
    free(model->tensors);
    json_decref(model->modelopt);
    *model = (trf_fp8_model){0};
}
