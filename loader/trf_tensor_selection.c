/* SPDX-License-Identifier: Apache-2.0 */
#include "trf_tensor_selection.h"

#include <fnmatch.h>
#include <stdlib.h>
#include <string.h>

enum {
    TRF_LEAST_ROWS = 16, /* below the size of a coded tile nothing shrinks */
    TRF_LEAST_COLS = 16,
};

/* Last parts of names, without ".weight": of tables that are looked up by row, for which single rows of a blob have to
 * be decoded ... */
static const char *const kEmbeddingParts[] = {
    "embed_tokens*", "embed_positions*", "embed_in",   "wte",         "wpe",        "emb",
    "embed",         "shared",           "*embedding", "*embeddings", "*pos_embed", "*_embed",
};

/* ... and of the side tables of quantized checkpoints, which other code reads. */
static const char *const kSideParts[] = {
    "*_scale", "*_scale_inv", "*_scales", "scale", "scales", "*_zero_point",
};

/* Tensors that share the input embedding's memory where the config ties them. */
static const char *const kTiedNames[] = {
    "lm_head.weight",     "*.lm_head.weight", "embed_out.weight",
    "*.embed_out.weight", "output.weight",    "cls.predictions.decoder.weight",
};

int trf_pattern_is_name(const char *pattern) { return strpbrk(pattern, "*?[\\") == NULL; }
int trf_pattern_matches(const char *pattern, const char *name) { return fnmatch(pattern, name, 0) == 0; }

static int matches(const char *const *patterns, size_t count, const char *name) {
    for (size_t i = 0; i < count && patterns[i]; i++)
        if (trf_pattern_matches(patterns[i], name))
            return 1;
    return 0;
}

/* *kept: whether a tensor is one that is kept by default, going by its name. */
static trf_status ask_name(const trf_selection_rules *rules, const char *name, int *kept, trf_error *err) {
    int embeddings = rules->options->embeddings;
    *kept =
        !embeddings && rules->tied_embeddings && matches(kTiedNames, sizeof kTiedNames / sizeof kTiedNames[0], name);
    if (*kept)
        return TRF_OK;
    char *part = strdup(name);
    if (!part)
        return trf_fail_memory(err, strlen(name));
    size_t length = strlen(part), tail = strlen(".weight");
    if (length > tail && strcmp(part + length - tail, ".weight") == 0)
        part[length - tail] = 0;
    const char *dot = strrchr(part, '.');
    const char *last = dot ? dot + 1 : part;
    *kept = matches(kSideParts, sizeof kSideParts / sizeof kSideParts[0], last) ||
            (!embeddings && matches(kEmbeddingParts, sizeof kEmbeddingParts / sizeof kEmbeddingParts[0], last));
    free(part);
    return TRF_OK;
}

int trf_encode_options_for(const trf_encode_options *asked, trf_dtype dtype, trf_encode_options *options) {
    static const trf_codec lossless[] = {
        [TRF_DTYPE_F16] = TRF_CODEC_FP16,     [TRF_DTYPE_BF16] = TRF_CODEC_BF16, [TRF_DTYPE_F8_E4M3] = TRF_CODEC_E4M3,
        [TRF_DTYPE_F8_E5M2] = TRF_CODEC_E5M2, [TRF_DTYPE_I8] = TRF_CODEC_INT,
    };
    *options = *asked;
    options->codec = (size_t)dtype < sizeof lossless / sizeof lossless[0] ? lossless[dtype] : TRF_CODEC_AUTO;
    int taken = options->codec != TRF_CODEC_AUTO;
    switch (asked->codec) {
    case TRF_CODEC_AUTO:
        break;
    case TRF_CODEC_E4M3: /* either one stands for both */
    case TRF_CODEC_E5M2:
        taken = dtype == TRF_DTYPE_F8_E4M3 || dtype == TRF_DTYPE_F8_E5M2;
        break;
    case TRF_CODEC_BF16:
        taken = dtype == TRF_DTYPE_BF16 || dtype == TRF_DTYPE_F32;
        options->codec = TRF_CODEC_BF16;
        break;
    case TRF_CODEC_FP16:
        taken = dtype == TRF_DTYPE_F16;
        break;
    default:
        taken = dtype == TRF_DTYPE_I8 || dtype == TRF_DTYPE_F32 || dtype == TRF_DTYPE_F16 || dtype == TRF_DTYPE_BF16;
        options->codec = TRF_CODEC_INT;
    }
    if (dtype == TRF_DTYPE_I8) { /* its bytes are the codes; there is nothing to quantize */
        options->bits = 0;
        options->granularity = TRF_GRANULARITY_NONE;
        options->scale_group_size = 0;
    }
    return taken;
}

/* @return why no codec can take a tensor, or NULL. */
static const char *find_obstacle(const trf_selection_rules *rules, const trf_tensor *tensor) {
    trf_encode_options options;
    if (tensor->num_dims != 2 && tensor->num_dims != 3)
        return "it is neither 2-D nor 3-D";
    for (uint32_t i = 0; i < tensor->num_dims; i++)
        if (tensor->shape[i] == 0 || tensor->shape[i] > INT32_MAX)
            return "one of its dimensions is 0 or above 2^31 - 1";
    trf_dtype dtype = trf_dtype_of_name(tensor->dtype);
    if (!trf_encode_options_for(&rules->options->encode, dtype, &options))
        return dtype == TRF_DTYPE_F32 ? "F32 has no lossless codec" : "its dtype does not go with the codec";
    return NULL;
}

static int list_length(const char *const *list) {
    int length = 0;
    while (list && list[length])
        length++;
    return length;
}

trf_status trf_select_tensor(const trf_selection_rules *rules, const trf_tensor *tensor,
                             trf_tensor_selection *selection, trf_error *err) {
    const char *const *include = rules->options->include, *const *exclude = rules->options->exclude;
    const char *obstacle = find_obstacle(rules, tensor);
    *selection = TRF_SELECT_KEEP;
    if (exclude && matches(exclude, (size_t)list_length(exclude), tensor->name))
        return TRF_OK;
    if (!include || !include[0]) {
        if (obstacle || tensor->shape[tensor->num_dims - 2] < TRF_LEAST_ROWS ||
            tensor->shape[tensor->num_dims - 1] < TRF_LEAST_COLS)
            return TRF_OK;
        int kept = 0;
        trf_status status = ask_name(rules, tensor->name, &kept, err);
        *selection = kept || status != TRF_OK ? TRF_SELECT_KEEP : TRF_SELECT_COMPRESS;
        return status;
    }
    for (int i = 0; include[i]; i++) {
        if (trf_pattern_is_name(include[i]) && strcmp(include[i], tensor->name) == 0) {
            if (obstacle)
                return trf_fail(err, TRF_ERR_ARGUMENT, TRF_NO_OFFSET,
                                "tensor '%s' (%s) is to be compressed with codec %s, but %s", tensor->name,
                                tensor->dtype, trf_codec_name(rules->options->encode.codec), obstacle);
            *selection = TRF_SELECT_ALWAYS;
            return TRF_OK;
        }
        if (!obstacle && trf_pattern_matches(include[i], tensor->name))
            *selection = TRF_SELECT_COMPRESS;
    }
    return TRF_OK;
}
