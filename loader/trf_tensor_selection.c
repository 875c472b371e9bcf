/* SPDX-License-Identifier: Apache-2.0 */
#include "trf_tensor_selection.h"

#include "trf_encode.h"

#include <fnmatch.h>
#include <stdlib.h>
#include <string.h>

enum {
    TRF_LEAST_ROWS = 16, /* nothing smaller than a coded tile shrinks */
    TRF_LEAST_COLS = 16,
};

/* The last parts of names, without ".weight", of tables that are looked up by row. For these single rows of a blob have
 * to be decoded ... */
static const char *const kEmbeddingParts[] = {
    "embed_tokens*", "embed_positions*", "embed_in",   "wte",         "wpe",        "emb",
    "embed",         "shared",           "*embedding", "*embeddings", "*pos_embed", "*_embed",
};

/* ... and the last parts of the names of quantized checkpoints' side tables, which other code reads. */
static const char *const kSideParts[] = {
    "*_scale", "*_scale_inv", "*_scales", "scale", "scales", "*_zero_point",
};

/* Tensors that share the input embedding's memory if the config ties them. */
static const char *const kTiedNames[] = {
    "lm_head.weight",     "*.lm_head.weight", "embed_out.weight",
    "*.embed_out.weight", "output.weight",    "cls.predictions.decoder.weight",
};

int trf_pattern_is_name(const char *pattern) { return strpbrk(pattern, "*?[\\") == NULL; }

int trf_pattern_matches(const char *pattern, const char *name, const char *part_name) {
    return fnmatch(pattern, name, 0) == 0 || (part_name && strchr(pattern, '/') && fnmatch(pattern, part_name, 0) == 0);
}

static int matches(const char *const *patterns, size_t count, const char *name) {
    for (size_t i = 0; i < count && patterns[i]; i++)
        if (trf_pattern_matches(patterns[i], name, NULL))
            return 1;
    return 0;
}

int trf_last_part_is_embedding(const char *last) {
    return matches(kEmbeddingParts, sizeof kEmbeddingParts / sizeof kEmbeddingParts[0], last);
}

/* Sets *kept to whether a tensor is kept as it is by default, judging by its name, and says why. */
static trf_status ask_name(const trf_selection_rules *rules, const char *name, int *kept, trf_left_reason *reason,
                           trf_error *err) {
    const int stored = rules->is_stored, embeddings = stored || rules->options->embeddings;
    *kept =
        !embeddings && rules->tied_embeddings && matches(kTiedNames, sizeof kTiedNames / sizeof kTiedNames[0], name);
    *reason = TRF_LEFT_TIED;
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
    const int is_side_table = !stored && matches(kSideParts, sizeof kSideParts / sizeof kSideParts[0], last);
    *kept = is_side_table || (!embeddings && trf_last_part_is_embedding(last));
    *reason = is_side_table ? TRF_LEFT_SIDE_TABLE : TRF_LEFT_EMBEDDING;
    free(part);
    return TRF_OK;
}

int trf_encode_options_for(const trf_encode_options *asked, trf_dtype dtype, trf_encode_options *options) {
    *options = *asked;
    options->codec = dtype == TRF_DTYPE_F32 ? TRF_CODEC_BF16 : trf_lossless_codec(dtype);
    int taken = options->codec != TRF_CODEC_AUTO;
    switch (asked->codec) {
    case TRF_CODEC_AUTO:
        if (dtype == TRF_DTYPE_BF16) /* the encoder looks whether it was FP8 */
            options->codec = TRF_CODEC_AUTO;
        break;
    case TRF_CODEC_E4M3: /* each of the two stands for both */
    case TRF_CODEC_E5M2:
        taken = dtype == TRF_DTYPE_F8_E4M3 || dtype == TRF_DTYPE_F8_E5M2 || dtype == TRF_DTYPE_BF16;
        if (dtype == TRF_DTYPE_BF16) /* as with AUTO */
            options->codec = TRF_CODEC_AUTO;
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

int trf_needs_bf16_numbers(const trf_checkpoint_options *options, trf_dtype dtype) {
    const trf_codec codec = options->encode.codec;
    return dtype == TRF_DTYPE_F32 && (codec == TRF_CODEC_AUTO || (codec == TRF_CODEC_BF16 && options->store_only));
}

int trf_must_fit(const trf_selection_rules *rules, trf_tensor_selection selection) {
    return selection == TRF_SELECT_ALWAYS || rules->options->encode.codec == TRF_CODEC_BF16;
}

trf_status trf_fail_no_bf16_numbers(trf_error *err) {
    return trf_fail(err, TRF_ERR_ARGUMENT, TRF_NO_OFFSET,
                    "F32 has no lossless codec, but where every weight is a BF16 number, and here one is not");
}

/* @return why no codec can take a tensor, or NULL. */
static const char *find_obstacle(const trf_selection_rules *rules, const trf_tensor *tensor, trf_left_reason *reason) {
    trf_encode_options options;
    *reason = TRF_LEFT_NO_MATRIX;
    if (tensor->num_dims != 2 && tensor->num_dims != 3)
        return "it is neither 2-D nor 3-D";
    for (uint32_t i = 0; i < tensor->num_dims; i++)
        if (tensor->shape[i] == 0 || tensor->shape[i] > INT32_MAX) {
            *reason = tensor->shape[i] ? TRF_LEFT_NO_MATRIX : TRF_LEFT_SMALL;
            return "one of its dimensions is 0 or above 2^31 - 1";
        }
    trf_dtype dtype = trf_dtype_of_name(tensor->dtype);
    *reason = TRF_LEFT_DTYPE;
    return trf_encode_options_for(&rules->options->encode, dtype, &options) ? NULL
                                                                            : "its dtype does not go with the codec";
}

/* Checks that the codec is lossless for the tensor, since a checkpoint that is only stored must come back bit for bit.
 * For F32 with the codec bf16 the weights decide that. */
static trf_status check_lossless(const trf_selection_rules *rules, const trf_tensor *tensor, trf_error *err) {
    if (!rules->options->store_only || rules->options->encode.codec != TRF_CODEC_INT ||
        trf_dtype_of_name(tensor->dtype) == TRF_DTYPE_I8)
        return TRF_OK;
    return trf_fail(err, TRF_ERR_ARGUMENT, TRF_NO_OFFSET,
                    "tensor '%s' (%s): the codec int is not lossless for it, and what is stored only has to come back "
                    "bit for bit",
                    tensor->name, tensor->dtype);
}

/* Makes the usual choice for a tensor that can be compressed. */
static trf_status select_usual(const trf_selection_rules *rules, const trf_tensor *tensor,
                               trf_tensor_selection *selection, trf_left_reason *reason, trf_error *err) {
    int kept = 0;
    *reason = TRF_LEFT_SMALL;
    if (tensor->shape[tensor->num_dims - 2] < TRF_LEAST_ROWS || tensor->shape[tensor->num_dims - 1] < TRF_LEAST_COLS)
        return TRF_OK;
    trf_status status = ask_name(rules, tensor->name, &kept, reason, err);
    *selection = kept || status != TRF_OK ? TRF_SELECT_KEEP : TRF_SELECT_COMPRESS;
    return status;
}

static int is_excluded(const trf_selection_rules *rules, const char *name, const char *part_name) {
    const char *const *exclude = rules->options->exclude;
    for (size_t i = 0; exclude && exclude[i]; i++)
        if (trf_pattern_matches(exclude[i], name, part_name))
            return 1;
    return 0;
}

/* Selects what `include` names. */
static trf_status select_included(const trf_selection_rules *rules, const trf_tensor *tensor, const char *part_name,
                                  const char *obstacle, trf_tensor_selection *selection, trf_left_reason *reason,
                                  trf_error *err) {
    const char *const *include = rules->options->include;
    int is_included = 0;
    for (int i = 0; include[i]; i++) {
        const int is_matched = trf_pattern_matches(include[i], tensor->name, part_name);
        if (is_matched && trf_pattern_is_name(include[i])) {
            if (obstacle)
                return trf_fail(err, TRF_ERR_ARGUMENT, TRF_NO_OFFSET,
                                "tensor '%s' (%s) is to be compressed with codec %s, but %s", tensor->name,
                                tensor->dtype, trf_codec_name(rules->options->encode.codec), obstacle);
            *selection = TRF_SELECT_ALWAYS;
            return TRF_OK;
        }
        is_included |= is_matched;
    }
    if (is_included && !obstacle)
        *selection = TRF_SELECT_COMPRESS;
    else if (!is_included)
        *reason = TRF_LEFT_EXCLUDED;
    return TRF_OK;
}

trf_status trf_select_tensor(const trf_selection_rules *rules, const trf_tensor *tensor,
                             trf_tensor_selection *selection, trf_left_reason *reason, trf_error *err) {
    const char *const *include = rules->options->include;
    const char *obstacle = find_obstacle(rules, tensor, reason);
    char *part_name = rules->part ? trf_path_join(rules->part, tensor->name) : NULL;
    trf_status status = TRF_OK;
    *selection = TRF_SELECT_KEEP;
    if (rules->part && !part_name)
        return trf_fail_memory(err, strlen(tensor->name));
    if (rules->is_adapter)
        *reason = TRF_LEFT_ADAPTER;
    else if (is_excluded(rules, tensor->name, part_name))
        *reason = TRF_LEFT_EXCLUDED;
    else if (include && include[0])
        status = select_included(rules, tensor, part_name, obstacle, selection, reason, err);
    else if (!obstacle)
        status = select_usual(rules, tensor, selection, reason, err);
    if (status == TRF_OK && *selection != TRF_SELECT_KEEP)
        status = check_lossless(rules, tensor, err);
    free(part_name);
    return status;
}
