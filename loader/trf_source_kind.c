/* SPDX-License-Identifier: Apache-2.0 */
#include "trf_source_kind.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define TRF_STORE_ONLY "--store-only compresses it bit for bit for storage"
#define TRF_COUNT(array) (sizeof(array) / sizeof((array)[0]))

/* Members of config.json, at any depth, that say that the weights are quantized. */
static const char *const kConfigKeys[] = {"quantization_config", "compression_config"};

/* MLX has it under this name, and then with one of these in it; others use the name for what is no such thing. */
static const char kShortKey[] = "quantization";
static const char *const kShortKeyMembers[] = {"bits", "group_size", "quant_algo", "quant_method", "mode"};

/* Files that quantizers write beside the weights. */
static const char *const kFileNames[] = {
    "hf_quant_config.json",     "quantize_config.json",   "quant_config.json",         "quantization_config.json",
    "compression_config.json",  "quanto_qmap.json",       "quantization_map.json",     "quant_model_description.json",
    "quantization_params.json", "gptq_model_config.json", "quantize_config_gptq.json",
};

/* Last parts of the names of tensors that only quantized models have: GPTQ and AWQ; compressed-tensors and modelopt;
 * FP8 of DeepSeek and Mistral; bitsandbytes; nunchaku; ComfyUI; SmoothQuant. */
static const char *const kTensorParts[] = {
    "qzeros",
    "g_idx",
    "weight_g_idx",
    "weight_scale_inv",
    "weight_scale_2",
    "weight_zero_point",
    "qscale_weight",
    "qscale_act",
    "absmax",
    "weight_global_scale",
    "nested_absmax",
    "quant_map",
    "SCB",
    "nested_quant_map",
    "wscales",
    "scaled_fp8",
    "comfy_quant",
    "dequant_scale",
};

/* The same of packed weights; others use such names for floats. GPTQ, compressed-tensors, EXL2, HQQ, EXL3, QuIP;
 * torchao, quanto. */
static const char *const kPackedParts[] = {
    "qweight", "weight_packed", "q_weight", "W_q", "trellis", "Qidxs", "weight_qdata", "_weight_qdata",
};
static const char kQuantoPacked[] = "._data._data"; /* the end of a name */
static const char kComfyScale[] = "scale_weight";   /* beside an 8-bit "weight" */
static const char kBitsandbytes[] = "bitsandbytes__";

/* Ends of the names of scales and zero points. There are models that learn such parameters, so they count only beside
 * a tensor of integers or 8-bit floats: one of the same name without the end, or with another one. */
static const char *const kCompanionEnds[] = {
    "_scale", "_scales", "_scale_inv", "_zero_point", "_zeros",     "_absmax",
    "scale",  "scales",  "scale_inv",  "zero",        "zero_point", "zeros",
};
static const char *const kQuantizedEnds[] = {"", "weight", "_blocks", "blocks", "_data", "_packed", "W_q", "codes"};

/* Keys of a file's __metadata__. */
static const char *const kMetadataKeys[] = {"quantization_config", "_quantization_metadata"};

static int is_listed(const char *const *list, size_t count, const char *name) {
    for (size_t i = 0; i < count; i++)
        if (strcmp(list[i], name) == 0)
            return 1;
    return 0;
}

/* ---- quantized: by config.json ---- */

static int is_quantization(const char *key, const json_t *value) {
    if (is_listed(kConfigKeys, TRF_COUNT(kConfigKeys), key))
        return !json_is_null(value);
    if (strcmp(key, kShortKey) != 0)
        return 0;
    for (size_t i = 0; i < TRF_COUNT(kShortKeyMembers); i++)
        if (json_object_get(value, kShortKeyMembers[i]))
            return 1;
    return 0;
}

/* @return the name of a member that says so, at any depth, and its value; or NULL. Jansson bounds the depth. */
static const char *find_in_config(json_t *value, const json_t **found) {
    const char *key, *name;
    json_t *part;
    size_t i;
    json_object_foreach(value, key, part) {
        *found = part;
        if (is_quantization(key, part))
            return key;
        if ((name = find_in_config(part, found)) != NULL)
            return name;
    }
    json_array_foreach(value, i, part) {
        if ((name = find_in_config(part, found)) != NULL)
            return name;
    }
    return NULL;
}

/* ---- quantized: by tensors ---- */

static int is_quantized_dtype(const char *dtype) {
    static const char *const integers[] = {"I8", "U8", "I16", "U16", "I32", "U32", "I4", "U4"};
    return is_listed(integers, TRF_COUNT(integers), dtype) || strncmp(dtype, "F8_", 3) == 0 ||
           strncmp(dtype, "F4", 2) == 0 || strncmp(dtype, "F6_", 3) == 0;
}

/* Types that only blocks of scaled weights, and their scales, have. */
static int is_block_dtype(const char *dtype) {
    return strncmp(dtype, "F4", 2) == 0 || strncmp(dtype, "F6_", 3) == 0 || strcmp(dtype, "F8_E8M0") == 0;
}

static const trf_tensor *find_tensor(const trf_checkpoint *checkpoint, const char *name) {
    for (size_t i = 0; i < checkpoint->num_files; i++) {
        const trf_tensor *tensor = trf_safetensors_find(&checkpoint->files[i].own_header, name);
        if (tensor)
            return tensor;
    }
    return NULL;
}

/* @return whether a quantized tensor has this stem, such as "a." of "a.scale" and "a.weight". buffer: room for a name.
 */
static int has_quantized(const trf_checkpoint *checkpoint, const char *stem, size_t bytes, char *buffer) {
    memcpy(buffer, stem, bytes);
    for (size_t i = 0; i < TRF_COUNT(kQuantizedEnds); i++) {
        memcpy(buffer + bytes, kQuantizedEnds[i], strlen(kQuantizedEnds[i]) + 1);
        const trf_tensor *tensor = find_tensor(checkpoint, buffer);
        if (tensor && is_quantized_dtype(tensor->dtype))
            return 1;
    }
    return 0;
}

/* Looks whether a tensor is a scale or zero point of a quantized one. */
static trf_status ask_companion(const trf_checkpoint *checkpoint, const char *name, int *is_companion, trf_error *err) {
    const size_t length = strlen(name);
    char *buffer = NULL;
    for (size_t i = 0; i < TRF_COUNT(kCompanionEnds) && !*is_companion; i++) {
        const size_t end = strlen(kCompanionEnds[i]);
        if (length < end || strcmp(name + length - end, kCompanionEnds[i]) != 0)
            continue;
        const size_t stem = length - end;
        const int has_dot = stem && name[stem - 1] == '.';
        if (kCompanionEnds[i][0] != '_' && stem && !has_dot)
            continue;
        if (!buffer && !(buffer = malloc(length + 16)))
            return trf_fail_memory(err, length);
        *is_companion = has_quantized(checkpoint, name, stem, buffer) ||
                        (has_dot && has_quantized(checkpoint, name, stem - 1, buffer));
    }
    free(buffer);
    return TRF_OK;
}

static int name_ends_with(const char *name, const char *end) {
    const size_t length = strlen(name), tail = strlen(end);
    return length >= tail && strcmp(name + length - tail, end) == 0;
}

/* Looks whether a tensor is the scale of the "weight" beside it. */
static trf_status ask_comfy_scale(const trf_checkpoint *checkpoint, const char *name, int *is_scale, trf_error *err) {
    if (!name_ends_with(name, kComfyScale))
        return TRF_OK;
    char *beside = strdup(name);
    if (!beside)
        return trf_fail_memory(err, strlen(name));
    strcpy(beside + strlen(beside) - strlen(kComfyScale), "weight");
    const trf_tensor *weight = find_tensor(checkpoint, beside);
    *is_scale = weight && is_quantized_dtype(weight->dtype);
    free(beside);
    return TRF_OK;
}

/* *found: whether a tensor shows that the model is quantized. */
static trf_status ask_tensor(const trf_checkpoint *checkpoint, const trf_tensor *tensor, int *found, trf_error *err) {
    const char *dot = strrchr(tensor->name, '.');
    const char *part = dot ? dot + 1 : tensor->name;
    *found = is_block_dtype(tensor->dtype) || strncmp(part, kBitsandbytes, strlen(kBitsandbytes)) == 0 ||
             is_listed(kTensorParts, TRF_COUNT(kTensorParts), part) ||
             (is_quantized_dtype(tensor->dtype) &&
              (is_listed(kPackedParts, TRF_COUNT(kPackedParts), part) || name_ends_with(tensor->name, kQuantoPacked)));
    trf_status status = *found ? TRF_OK : ask_comfy_scale(checkpoint, tensor->name, found, err);
    return *found || status != TRF_OK ? status : ask_companion(checkpoint, tensor->name, found, err);
}

static trf_status find_in_tensors(const trf_checkpoint *checkpoint, char text[TRF_OBSTACLE_BYTES], trf_error *err) {
    for (size_t i = 0; i < checkpoint->num_files; i++) {
        const trf_checkpoint_file *file = &checkpoint->files[i];
        for (size_t k = 0; k < TRF_COUNT(kMetadataKeys); k++)
            if (trf_safetensors_metadata(&file->own_header, kMetadataKeys[k])) {
                snprintf(text, TRF_OBSTACLE_BYTES, "%.300s: is quantized already: its __metadata__ has '%s'",
                         file->path, kMetadataKeys[k]);
                return TRF_OK;
            }
        for (size_t t = 0; t < file->num_tensors; t++) {
            const trf_tensor *tensor = file->tensors[t].source;
            int found = 0;
            trf_status status = ask_tensor(checkpoint, tensor, &found, err);
            if (status != TRF_OK)
                return status;
            if (found) {
                snprintf(text, TRF_OBSTACLE_BYTES, "%.300s: is quantized already: it has a tensor '%.200s' (%s)",
                         file->path, tensor->name, tensor->dtype);
                return TRF_OK;
            }
        }
    }
    return TRF_OK;
}

/* ---- what is in the way ---- */

/* *found: whether the folder has a file of this name. */
static trf_status ask_file(const trf_checkpoint *checkpoint, const char *name, int *found, trf_error *err) {
    char *path = trf_path_join(checkpoint->root, name);
    if (!path)
        return trf_fail_memory(err, strlen(checkpoint->root));
    *found = access(path, F_OK) == 0;
    free(path);
    return TRF_OK;
}

static trf_status find_in_folder(const trf_checkpoint *checkpoint, char text[TRF_OBSTACLE_BYTES], trf_error *err) {
    static const char adapter[] = "adapter_config.json";
    int found = 0;
    trf_status status = ask_file(checkpoint, adapter, &found, err);
    if (status == TRF_OK && found)
        snprintf(text, TRF_OBSTACLE_BYTES,
                 "%.300s: is an adapter (it has an %s): PEFT reads it or merges it, and cannot read compressed tensors",
                 checkpoint->root, adapter);
    for (size_t i = 0; i < TRF_COUNT(kFileNames) && status == TRF_OK && !*text; i++) {
        status = ask_file(checkpoint, kFileNames[i], &found, err);
        if (status == TRF_OK && found)
            snprintf(text, TRF_OBSTACLE_BYTES, "%.300s: is quantized already: it has a file %s", checkpoint->root,
                     kFileNames[i]);
    }
    return status;
}

trf_status trf_source_find_obstacle(const trf_checkpoint *checkpoint, const trf_source_config *source,
                                    char text[TRF_OBSTACLE_BYTES], trf_error *err) {
    const json_t *value;
    trf_status status = TRF_OK;
    *text = 0;
    if (checkpoint->is_folder) {
        const char *name = find_in_config(source->file.root, &value);
        const char *method = name ? json_string_value(json_object_get(value, "quant_method")) : NULL;
        if (name)
            snprintf(text, TRF_OBSTACLE_BYTES, "%.300s: the model is quantized already: there is a '%s'%s%.40s%s",
                     source->file.path, name, method ? " (" : "", method ? method : "", method ? ")" : "");
        else
            status = find_in_folder(checkpoint, text, err);
    }
    return status == TRF_OK && !*text ? find_in_tensors(checkpoint, text, err) : status;
}

trf_status trf_source_check(const trf_checkpoint *checkpoint, const trf_source_config *source, trf_job *job,
                            trf_error *err) {
    char text[TRF_OBSTACLE_BYTES];
    const trf_error *failure = &source->failure;
    const int stored = job->options.store_only;
    if (checkpoint->is_folder && failure->status != TRF_OK && !stored)
        return trf_fail(err, failure->status, failure->offset,
                        "%.800s; so nothing could load the compressed folder; " TRF_STORE_ONLY, failure->message);
    trf_status status = trf_source_find_obstacle(checkpoint, source, text, err);
    if (status != TRF_OK)
        return status;
    if (*text && !stored)
        return trf_fail(err, TRF_ERR_UNSUPPORTED, TRF_NO_OFFSET,
                        "%s; so nothing could load it compressed; " TRF_STORE_ONLY, text);
    if (checkpoint->is_folder && failure->status != TRF_OK)
        trf_job_note(job, "%.800s; it is carried over as it is", failure->message);
    if (*text)
        trf_job_note(job, "%s", text);
    return TRF_OK;
}

/* ---- the dtype that transformers finds ---- */

static const struct {
    const char *safetensors, *torch;
} kFloats[] = {{"F64", "float64"}, {"F32", "float32"}, {"F16", "float16"}, {"BF16", "bfloat16"}};

/* @return that of the first tensor, in the order of names, that has one; or NULL. */
static const char *first_float(const trf_checkpoint_file *file) {
    for (size_t i = 0; i < file->own_header.num_tensors; i++)
        for (size_t f = 0; f < TRF_COUNT(kFloats); f++)
            if (strcmp(file->own_header.by_name[i]->dtype, kFloats[f].safetensors) == 0)
                return kFloats[f].torch;
    return NULL;
}

static const trf_checkpoint_file *find_file(const trf_checkpoint *checkpoint, const char *name) {
    for (size_t i = 0; i < checkpoint->num_files; i++)
        if (strcmp(checkpoint->files[i].name, name) == 0)
            return &checkpoint->files[i];
    return NULL;
}

static const trf_checkpoint_index *find_index(const trf_checkpoint *checkpoint, const char *name) {
    for (size_t i = 0; i < checkpoint->num_indexes; i++)
        if (strcmp(checkpoint->indexes[i].name, name) == 0)
            return &checkpoint->indexes[i];
    return NULL;
}

static const char *find_in_index(const trf_checkpoint *checkpoint, const trf_checkpoint_index *index) {
    const json_t *told = json_object_get(json_object_get(index->root, "metadata"), "dtype");
    const char *first = NULL, *key;
    json_t *value;
    if (told) {
        for (size_t f = 0; f < TRF_COUNT(kFloats); f++)
            if (json_is_string(told) && strcmp(json_string_value(told), kFloats[f].torch) == 0)
                return kFloats[f].torch;
        return NULL;
    }
    json_object_foreach(index->weight_map, key, value) {
        if (!first || strcmp(json_string_value(value), first) < 0)
            first = json_string_value(value);
    }
    const trf_checkpoint_file *file = first ? find_file(checkpoint, first) : NULL;
    return file ? first_float(file) : NULL;
}

/* @return whether a variant of the model, such as model.fp16.safetensors, has another dtype. */
static int depends_on_variant(const trf_checkpoint *checkpoint, const char *dtype) {
    static const char begin[] = "model.";
    for (size_t i = 0; i < checkpoint->num_files; i++) {
        const trf_checkpoint_file *file = &checkpoint->files[i];
        const char *other = first_float(file);
        if (strncmp(file->name, begin, strlen(begin)) == 0 && other && strcmp(other, dtype) != 0)
            return 1;
    }
    return 0;
}

const char *trf_source_find_dtype(const trf_checkpoint *checkpoint, const trf_source_config *source) {
    const char *named = trf_source_config_weights(source);
    const trf_checkpoint_file *file = find_file(checkpoint, named ? named : "model.safetensors");
    const trf_checkpoint_index *index = find_index(checkpoint, named ? named : "model.safetensors.index.json");
    if (named && (file || index))
        return file ? first_float(file) : find_in_index(checkpoint, index);
    const char *dtype = file    ? first_float(file)
                        : index ? find_in_index(checkpoint, index)
                                : first_float(&checkpoint->files[0]);
    return dtype && depends_on_variant(checkpoint, dtype) ? NULL : dtype;
}

/* ---- what will happen ---- */

static void tell_dtype(const trf_source_config *source, const char *dtype, const trf_blob_counts *blobs, trf_job *job) {
    const int misfits_bf16 = blobs->bf16 && strcmp(dtype, "bfloat16") != 0,
              misfits_fp16 = blobs->fp16 && strcmp(dtype, "float16") != 0;
    const char *fitting = blobs->bf16 && blobs->fp16 ? "float32" : blobs->bf16 ? "bfloat16" : "float16";
    if (strcmp(dtype, "float32") != 0 && (misfits_bf16 || misfits_fp16))
        trf_job_note(job,
                     "%.500s: the model's dtype is %.40s, which does not go with what is compressed with the codec %s "
                     "(tensors: %" PRIu64 "); pass dtype=torch.%s to load it, or loading raises an error",
                     source->file.path, dtype, misfits_bf16 ? "bf16" : "fp16", misfits_bf16 ? blobs->bf16 : blobs->fp16,
                     fitting);
}

void trf_source_tell(const trf_checkpoint *checkpoint, const trf_source_config *source, const char *dtype,
                     const trf_blob_counts *blobs, trf_job *job) {
    const trf_framework framework = trf_source_config_framework(source);
    if (!blobs->all)
        return;
    if (job->options.store_only) {
        trf_job_note(job, "%.700s: is stored only: it has to be decompressed before it is loaded", checkpoint->root);
        return;
    }
    if (checkpoint->is_folder && framework == TRF_FRAMEWORK_NONE)
        trf_job_note(job,
                     "%.500s: %s: nothing will load the compressed folder as a model, since transformers and diffusers "
                     "go by these",
                     source->file.root ? source->file.path : checkpoint->root,
                     source->file.root ? "has neither a model_type nor a _class_name" : "has no config.json");
    if (trf_source_config_dtype(source))
        dtype = trf_source_config_dtype(source);
    if (checkpoint->is_folder && framework == TRF_FRAMEWORK_TRANSFORMERS && dtype)
        tell_dtype(source, dtype, blobs, job);
    if (blobs->widened)
        trf_job_note(job,
                     "%.500s: there are F32 tensors that hold BF16 numbers alone (%" PRIu64 "), and are compressed "
                     "without loss; such a model is slow in float32, and fast with dtype=torch.bfloat16",
                     checkpoint->root, blobs->widened);
}
