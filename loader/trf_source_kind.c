/* SPDX-License-Identifier: Apache-2.0 */
#include "trf_source_kind.h"

#include "trf_json.h"
#include "trf_source_tensors.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define TRF_STORE_ONLY "--store-only compresses it bit for bit for storage"
#define TRF_NO_ADAPTERS "PEFT and diffusers read it or merge it, and cannot read compressed tensors"
#define TRF_COUNT(array) (sizeof(array) / sizeof((array)[0]))

/* Members of config.json, at any depth, that say that the weights are quantized. */
static const char *const kConfigKeys[] = {"quantization_config", "compression_config", "quip_params"};

/* MLX uses this name, and then has one of these members in it. Others use the name for something else. */
static const char kShortKey[] = "quantization";
static const char *const kShortKeyMembers[] = {"bits", "group_size", "quant_algo", "quant_method", "mode"};

/* Files that quantizers write beside the weights. */
static const char *const kFileNames[] = {
    TRF_MODELOPT_FILE,          "quantize_config.json",   "quant_config.json",         "quantization_config.json",
    "compression_config.json",  "quanto_qmap.json",       "quantization_map.json",     "quant_model_description.json",
    "quantization_params.json", "gptq_model_config.json", "quantize_config_gptq.json",
};

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
        return !json_is_null(value) && !json_is_false(value);
    if (strcmp(key, kShortKey) != 0)
        return 0;
    for (size_t i = 0; i < TRF_COUNT(kShortKeyMembers); i++)
        if (json_object_get(value, kShortKeyMembers[i]))
            return 1;
    return 0;
}

/* @return the name of a member, at any depth, that says that the weights are quantized, and its value; or NULL. Jansson
 * bounds the depth. */
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

static trf_status find_in_tensors(const trf_checkpoint *checkpoint, const trf_fp8_model *fp8,
                                  char text[TRF_OBSTACLE_BYTES], trf_error *err) {
    for (size_t i = 0; i < checkpoint->num_files; i++) {
        const trf_checkpoint_file *file = &checkpoint->files[i];
        for (size_t k = 0; k < TRF_COUNT(kMetadataKeys); k++)
            if (trf_safetensors_metadata(&file->own_header, kMetadataKeys[k])) {
                snprintf(text, TRF_OBSTACLE_BYTES, "%.300s: is quantized already: its __metadata__ has '%s'",
                         file->path, kMetadataKeys[k]);
                return TRF_OK;
            }
    }
    const trf_checkpoint_file *file;
    const trf_tensor *tensor;
    trf_status status = trf_find_quantized_tensor(checkpoint, fp8, &file, &tensor, err);
    if (status == TRF_OK && tensor)
        snprintf(text, TRF_OBSTACLE_BYTES, "%.300s: is quantized already: it has a tensor '%.200s' (%.40s)", file->path,
                 tensor->name, tensor->dtype);
    return status;
}

/* ---- obstacles ---- */

/* Whether a file has a name of weights that a model's config.json describes. Other files beside one, such as an adapter
 * or a file for another program, may be unrelated to it. */
static int has_model_name(const char *name) {
    static const char *const begins[] = {"model", "pytorch_model", "diffusion_pytorch_model"};
    for (size_t i = 0; i < TRF_COUNT(begins); i++) {
        const size_t length = strlen(begins[i]);
        if (strncmp(name, begins[i], length) == 0 && (name[length] == '.' || name[length] == '-'))
            return 1;
    }
    return 0;
}

/* Where a checkpoint's other files are, and which of them say what it is. */
typedef struct trf_beside {
    char *folder;
    int has_config; /* config.json and the quantizers' files count */
    int has_adapter_config;
    const trf_budget *budget;
} trf_beside;

/* Finds the checkpoint's other files. Release beside->folder with free. */
static trf_status look_beside(const trf_checkpoint *checkpoint, const trf_source_config *source, trf_beside *beside,
                              trf_error *err) {
    *beside = (trf_beside){NULL, 1, 1, checkpoint->budget};
    if (checkpoint->is_folder) {
        beside->folder = strdup(checkpoint->root);
        /* An adapter's config beside a model's config and weights belongs to an adapter that is also there. */
        for (size_t i = 0; i < checkpoint->num_files && source->file.root; i++)
            beside->has_adapter_config &= !has_model_name(checkpoint->files[i].name);
    } else {
        const char *name = checkpoint->files[0].name;
        static const char adapter[] = "adapter_model.";
        beside->folder = trf_path_parent(checkpoint->root);
        /* A file that is not compressed, in a compressed folder, is not a quantized one. */
        beside->has_config = has_model_name(name) && !trf_source_config_find_ours(source);
        beside->has_adapter_config = strncmp(name, adapter, strlen(adapter)) == 0;
    }
    return beside->folder ? TRF_OK : trf_fail_memory(err, strlen(checkpoint->root));
}

/* Reads a JSON file as Python does. *root: NULL if it is no JSON; failure says why. *has_mark: whether it begins with a
 * byte order mark, which not every program skips. Errors: as trf_json_parse_python, and those of trf_file_load. */
static trf_status read_json(const trf_budget *budget, const char *path, json_t **root, int *has_mark,
                            trf_error *failure) {
    static const char mark[] = "\xEF\xBB\xBF";
    char *text = NULL;
    size_t bytes;
    *root = NULL, *has_mark = 0;
    trf_status status = trf_file_load_within(budget, path, TRF_MAX_MODEL_CONFIG_BYTES, &text, &bytes, failure);
    if (status == TRF_OK)
        status = trf_json_check(budget, path, text, bytes, 1, 2, failure);
    if (status == TRF_OK) {
        *has_mark = strncmp(text, mark, strlen(mark)) == 0;
        status = trf_json_parse_python(path, text, bytes, root, NULL, failure);
    }
    free(text);
    return status;
}

/* Sets *found to 0 if this is the file of a model that modelopt has exported without quantizing it; else to 1. */
static trf_status ask_algorithms(const trf_budget *budget, const char *path, int *found, trf_error *err) {
    json_t *root;
    int has_mark;
    trf_error failure;
    const trf_status status = read_json(budget, path, &root, &has_mark, &failure);
    if (trf_lacks_memory(status))
        return trf_fail(err, status, failure.offset, "%s", failure.message);
    const json_t *told = json_object_get(root, "quantization");
    const json_t *weights = json_object_get(told, "quant_algo"), *cache = json_object_get(told, "kv_cache_quant_algo");
    *found = !json_is_null(weights) || (cache && !json_is_null(cache));
    json_decref(root);
    return TRF_OK;
}

/* Sets *found to whether the folder has a file of this name, which says that the model is quantized or an adapter. */
static trf_status ask_file(const trf_beside *beside, const char *name, int *found, trf_error *err) {
    char *path = trf_path_join(beside->folder, name);
    if (!path)
        return trf_fail_memory(err, strlen(beside->folder));
    trf_status status = TRF_OK;
    *found = access(path, F_OK) == 0;
    if (*found && strcmp(name, TRF_MODELOPT_FILE) == 0)
        status = ask_algorithms(beside->budget, path, found, err);
    free(path);
    return status;
}

/* Looks for files of quantizers and of PEFT. */
static trf_status find_in_files(const trf_checkpoint *checkpoint, const trf_beside *beside, const trf_fp8_model *fp8,
                                char text[TRF_OBSTACLE_BYTES], trf_error *err) {
    static const char adapter[] = "adapter_config.json";
    const char *where = checkpoint->is_folder ? "it has" : "beside it is";
    int found = 0;
    trf_status status = beside->has_adapter_config ? ask_file(beside, adapter, &found, err) : TRF_OK;
    if (status == TRF_OK && found)
        snprintf(text, TRF_OBSTACLE_BYTES, "%.300s: is an adapter (%s an %s): " TRF_NO_ADAPTERS, checkpoint->root,
                 where, adapter);
    for (size_t i = 0; i < TRF_COUNT(kFileNames) && beside->has_config && status == TRF_OK && !*text; i++) {
        /* What modelopt's file says has been read. */
        if (fp8 && fp8->is_fp8 && strcmp(kFileNames[i], TRF_MODELOPT_FILE) == 0)
            continue;
        status = ask_file(beside, kFileNames[i], &found, err);
        if (status == TRF_OK && found)
            snprintf(text, TRF_OBSTACLE_BYTES, "%.300s: is quantized already: %s a file %s", checkpoint->root, where,
                     kFileNames[i]);
    }
    return status;
}

/* Looks at config.json. That of a model of FP8 with scales has one member that is no obstacle. */
static trf_status tell_config(const trf_checkpoint *checkpoint, const trf_source_config *source,
                              const trf_fp8_model *fp8, char text[TRF_OBSTACLE_BYTES], trf_error *err) {
    const int is_fp8 = fp8 && fp8->is_fp8;
    json_t *root = is_fp8 ? trf_json_copy(source->file.root) : source->file.root;
    if (is_fp8 && !root)
        return trf_fail_memory(err, source->file.bytes);
    if (is_fp8)
        json_object_del(root, TRF_QUANTIZATION_KEY);
    const json_t *value;
    const char *name = find_in_config(root, &value);
    const char *method = name ? json_string_value(json_object_get(value, "quant_method")) : NULL;
    if (name)
        snprintf(text, TRF_OBSTACLE_BYTES, "%.300s: the model is quantized already: there is a '%s'%s%.40s%s%s",
                 checkpoint->is_folder ? source->file.path : checkpoint->root, name, method ? " (" : "",
                 method ? method : "", method ? ")" : "",
                 checkpoint->is_folder ? "" : " in the " TRF_MODEL_CONFIG_NAME " beside it");
    if (is_fp8)
        json_decref(root);
    return TRF_OK;
}

/* Looks at tensors. The checkpoint is an adapter if each of its files is one. */
static trf_status find_adapter(const trf_checkpoint *checkpoint, char text[TRF_OBSTACLE_BYTES], trf_error *err) {
    const trf_tensor *tensor = NULL;
    for (size_t i = 0; i < checkpoint->num_files; i++) {
        trf_status status = trf_find_adapter_tensor(checkpoint, &checkpoint->files[i], &tensor, err);
        if (status != TRF_OK || !tensor)
            return status;
    }
    if (tensor)
        snprintf(text, TRF_OBSTACLE_BYTES, "%.200s: is an adapter (it has tensors such as '%.160s'): " TRF_NO_ADAPTERS,
                 checkpoint->root, tensor->name);
    return TRF_OK;
}

trf_status trf_source_find_obstacle(const trf_checkpoint *checkpoint, const trf_source_config *source,
                                    const trf_fp8_model *fp8, char text[TRF_OBSTACLE_BYTES], trf_error *err) {
    trf_beside beside;
    *text = 0;
    trf_status status = look_beside(checkpoint, source, &beside, err);
    if (status == TRF_OK && beside.has_config)
        status = tell_config(checkpoint, source, fp8, text, err);
    if (status == TRF_OK && !*text)
        status = find_in_files(checkpoint, &beside, fp8, text, err);
    if (status == TRF_OK && !*text)
        status = find_adapter(checkpoint, text, err);
    free(beside.folder);
    return status == TRF_OK && !*text ? find_in_tensors(checkpoint, fp8, text, err) : status;
}

trf_status trf_source_check(const trf_checkpoint *checkpoint, const trf_source_config *source, const char *obstacle,
                            trf_job *job, trf_error *err) {
    const trf_error *failure = &source->failure;
    const int stored = job->options.store_only;
    if (checkpoint->is_folder && failure->status != TRF_OK && !stored)
        return trf_fail(err, failure->status, failure->offset,
                        "%.800s; so nothing could load the compressed folder; " TRF_STORE_ONLY, failure->message);
    if (*obstacle && !stored)
        return trf_fail(err, TRF_ERR_UNSUPPORTED, TRF_NO_OFFSET,
                        "%s; so nothing could load it compressed; " TRF_STORE_ONLY, obstacle);
    if (checkpoint->is_folder && failure->status != TRF_OK)
        trf_job_note(job, "%.800s; it is carried over as it is", failure->message);
    if (*obstacle)
        trf_job_note(job, "%s", obstacle);
    return TRF_OK;
}

trf_status trf_source_check_pipeline(const trf_checkpoint *checkpoint, trf_job *job, trf_error *err) {
    char *path = trf_path_join(checkpoint->root, TRF_PIPELINE_INDEX_NAME);
    if (!path)
        return trf_fail_memory(err, strlen(checkpoint->root));
    json_t *root;
    int has_mark;
    trf_error failure = {0};
    trf_status status = read_json(checkpoint->budget, path, &root, &has_mark, &failure);
    if (status == TRF_OK && (has_mark || !json_is_object(root)))
        status = trf_fail(&failure, TRF_ERR_FORMAT, 0, "%s: %s", path,
                          has_mark ? "begins with a byte order mark" : "not a JSON object");
    json_decref(root);
    free(path);
    if (trf_lacks_memory(status))
        return trf_fail(err, status, failure.offset, "%s", failure.message);
    if (status != TRF_OK)
        trf_job_note(job, "%.800s; diffusers cannot load the pipeline by it; it is carried over as it is",
                     failure.message);
    return TRF_OK;
}

/* ---- the dtype that transformers finds ---- */

static const struct {
    const char *safetensors, *torch;
} kFloats[] = {{"F64", "float64"}, {"F32", "float32"}, {"F16", "float16"}, {"BF16", "bfloat16"}};

/* @return a dtype by the name that config.json gives it; or NULL for others, such as "auto". */
static const char *find_float(const char *torch) {
    for (size_t f = 0; f < TRF_COUNT(kFloats); f++)
        if (strcmp(torch, kFloats[f].torch) == 0)
            return kFloats[f].torch;
    return NULL;
}

/* @return the dtype of the first tensor, in the order of names, that has one of these; or NULL. */
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
    if (told)
        return json_is_string(told) ? find_float(json_string_value(told)) : NULL;
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

/* @return the variant in the name of a file of weights, such as "fp16" in "model.fp16.safetensors",
 * "model.fp16-00001-of-00002.safetensors" and "model-00001-of-00002.fp16.safetensors"; or NULL if it has none. *length:
 * the variant's. */
static const char *find_variant(const char *name, size_t *length) {
    const char *variant = strchr(name, '.') + 1, *end = name + strlen(name) - strlen(".safetensors");
    *length = strcspn(variant, ".-");
    return variant < end ? variant : NULL;
}

static int is_same_variant(const char *name, const char *other) {
    size_t length, other_length;
    const char *variant = find_variant(name, &length), *other_variant = find_variant(other, &other_length);
    if (!variant || !other_variant)
        return variant == other_variant;
    return length == other_length && strncmp(variant, other_variant, length) == 0;
}

/* Tells the user the dtype of the files of one variant, which are loaded together. `first` is the first of them. */
static void tell_dtype(const trf_checkpoint *checkpoint, const trf_source_config *source, const char *dtype,
                       const trf_blob_counts *blobs, size_t first, trf_job *job) {
    size_t length, files = 0;
    trf_blob_counts sum = {0};
    const char *name = checkpoint->files[first].name, *variant = find_variant(name, &length);
    for (size_t i = 0; i < checkpoint->num_files; i++) {
        if (!is_same_variant(checkpoint->files[i].name, name))
            continue;
        if (i < first)
            return; /* this variant was told already */
        files++;
        sum.bf16 += blobs[i].bf16, sum.fp16 += blobs[i].fp16;
    }
    const int misfits_bf16 = sum.bf16 && strcmp(dtype, "bfloat16") != 0,
              misfits_fp16 = sum.fp16 && strcmp(dtype, "float16") != 0;
    const char *fitting = sum.bf16 && sum.fp16 ? "float32" : sum.bf16 ? "bfloat16" : "float16";
    char which[80] = "";
    if (files < checkpoint->num_files && variant)
        snprintf(which, sizeof which, ", of the variant %.*s", length < 40 ? (int)length : 40, variant);
    else if (files < checkpoint->num_files)
        snprintf(which, sizeof which, ", of the files without a variant");
    if (strcmp(dtype, "float32") != 0 && (misfits_bf16 || misfits_fp16))
        trf_job_note(job,
                     "%.500s: the model's dtype is %.40s, which does not go with what is compressed with the codec %s "
                     "(tensors: %" PRIu64 "%s); pass dtype=torch.%s to load it, or loading raises an error",
                     source->file.path, dtype, misfits_bf16 ? "bf16" : "fp16", misfits_bf16 ? sum.bf16 : sum.fp16,
                     which, fitting);
}

void trf_source_tell(const trf_checkpoint *checkpoint, const trf_source_config *source, const char *dtype,
                     const trf_blob_counts *blobs, int stored, trf_job *job) {
    const trf_framework framework = trf_source_config_framework(source);
    uint64_t all = 0, widened = 0;
    for (size_t i = 0; i < checkpoint->num_files; i++)
        all += blobs[i].all, widened += blobs[i].widened;
    if (!all)
        return;
    if (stored) {
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
        dtype = find_float(trf_source_config_dtype(source));
    for (size_t i = 0; i < checkpoint->num_files; i++)
        if (checkpoint->is_folder && framework == TRF_FRAMEWORK_TRANSFORMERS && dtype)
            tell_dtype(checkpoint, source, dtype, blobs, i, job);
    if (widened)
        trf_job_note(job,
                     "%.500s: there are F32 tensors that hold BF16 numbers alone (%" PRIu64 "), and are compressed "
                     "without loss; such a model is slow in float32, and fast with dtype=torch.bfloat16",
                     checkpoint->root, widened);
}
