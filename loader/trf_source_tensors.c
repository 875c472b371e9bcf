/* SPDX-License-Identifier: Apache-2.0 */
/* A name alone is no evidence: models that are not quantized also learn scales, have indices and keep maxima. So a
 * packed weight must have a type of packed weights, and a tensor that accompanies a quantized weight counts only
 * together with that weight. */
#include "trf_source_tensors.h"

#include <stdlib.h>
#include <string.h>

#define TRF_COUNT(array) (sizeof(array) / sizeof((array)[0]))

/* The last parts of the names of packed weights, which have a type that weights are quantized to: GPTQ, AWQ and
 * nunchaku; compressed-tensors; EXL2, HQQ, EXL3, QuIP; torchao; and ComfyUI's mark. */
static const char *const kPackedParts[] = {
    "qweight", "weight_packed", "q_weight", "W_q", "trellis", "Qidxs", "weight_qdata", "_weight_qdata", "scaled_fp8",
};
static const char kQuantoPacked[] = "._data._data";         /* the end of a name */
static const char kBitsandbytes[] = "bitsandbytes__";       /* the beginning of a name's last part */
static const char *const kBlocks[] = {"_blocks", "blocks"}; /* gpt-oss: U8[..][16], 4-D; each block has 32 weights */

/* The ends of the names of tensors that accompany quantized weights: scales and zero points of any name; bitsandbytes;
 * Mistral's FP8; ComfyUI; SmoothQuant. They count if there is a tensor of a type that weights are quantized to, whose
 * name is the same without the end, or with one of kQuantizedEnds instead. */
static const char *const kCompanionEnds[] = {
    "_scale",      "_scales",       "_scale_inv", "_scale_2", "_global_scale", "_zero_point",
    "_zeros",      "_absmax",       "scale",      "scales",   "scale_inv",     "zero",
    "zero_point",  "zeros",         "absmax",     "SCB",      "qscale_weight", "scale_weight",
    "comfy_quant", "dequant_scale", ":scale", /* torchao's older files: "a.weight:scale" */
};
static const char *const kQuantizedEnds[] = {"", "weight", "_blocks", "blocks", "_data", "_packed", "W_q", ":qdata"};

/* The same for pairs of names that have a meaning only together: VPTQ; SpQR; Marlin, also 2:4 sparse, and QQQ; AQLM;
 * QuIP#. The second tensor of a pair has integers, and there is no "weight" beside it. */
static const struct {
    const char *companion, *packed;
} kPairs[] = {
    {"centroids.weight", "indices"},
    {"row_offsets", "dense_weights"},
    {"s", "B"},
    {"s", "B_24"},
    {"s_channel", "B"},
    {"codebooks", "codes"},
    {"SU", "Qidxs"},
    {"SU", "Qidxs_0"},
};

/* The ends of the names of maxima. Their weights stay floats, and are quantized when they are multiplied: modelopt,
 * pytorch-quantization. */
static const char *const kSimulated[] = {"weight_quantizer._amax", "_weight_quantizer._amax"};

/* The beginnings of the names of adapters' tensors in files of kohya's scripts and LyCORIS, where the module's
 * flattened name follows; and the beginnings of the part that follows the module's name in other files: PEFT's LoRA,
 * VeRA, OFT and BOFT; LoHa, LoKr, DoRA. */
static const char *const kAdapterNames[] = {"lora_unet_", "lora_te", "lora_transformer_", "lora_prior_", "lycoris_"};
static const char *const kAdapterParts[] = {"lora_", "vera_", "oft_", "boft_", "hada_", "lokr_", "dora_scale"};
/* The ends of that part where a part "down" or "up" follows, in files of diffusers and XLabs: "to_q.lora.down.weight",
 * older "to_q_lora.down.weight", and "qkv_lora1.up.weight". Models may have LoRA of their own, such as RWKV's
 * "w_lora.lora.0". */
static const char *const kAdapterPartEnds[] = {"lora", "_lora", "_lora1", "_lora2"};
static const char *const kAdaptedEnds[] = {"weight", "base_layer.weight"};

enum {
    TRF_LONGEST_END = 32, /* at least the longest text that is appended to a stem */
    TRF_BLOCK_BYTES = 16
};

static int is_listed(const char *const *list, size_t count, const char *name) {
    for (size_t i = 0; i < count; i++)
        if (strcmp(list[i], name) == 0)
            return 1;
    return 0;
}

static int begins_with(const char *name, const char *begin) { return strncmp(name, begin, strlen(begin)) == 0; }

static int ends_with(const char *name, const char *end) {
    const size_t length = strlen(name), tail = strlen(end);
    return length >= tail && strcmp(name + length - tail, end) == 0;
}

static int is_quantized_dtype(const char *dtype) {
    static const char *const integers[] = {"I8", "U8", "I16", "U16", "I32", "U32", "I4", "U4"};
    return is_listed(integers, TRF_COUNT(integers), dtype) || begins_with(dtype, "F8_") || begins_with(dtype, "F4") ||
           begins_with(dtype, "F6_");
}

static int is_integer(const char *dtype) { return dtype[0] == 'I' || dtype[0] == 'U'; }

/* Whether only blocks of scaled weights, and their scales, have this type. */
static int is_block_dtype(const char *dtype) {
    return begins_with(dtype, "F4") || begins_with(dtype, "F6_") || strcmp(dtype, "F8_E8M0") == 0;
}

/* A name whose end is replaced. */
typedef struct trf_stem {
    const trf_checkpoint *checkpoint;
    char *name; /* room for TRF_LONGEST_END more */
    size_t bytes;
} trf_stem;

/* @return the tensor whose name is the stem without its last `less` bytes, followed by `end`; or NULL. */
static const trf_tensor *find_beside(const trf_stem *stem, size_t less, const char *end) {
    strcpy(stem->name + stem->bytes - less, end);
    for (size_t i = 0; i < stem->checkpoint->num_files; i++) {
        const trf_tensor *tensor = trf_safetensors_find(&stem->checkpoint->files[i].own_header, stem->name);
        if (tensor)
            return tensor;
    }
    return NULL;
}

/* Sets the stem to a name without `end`. @return whether the name has that end. Unless the end begins with '_' or ':',
 * it must be at the beginning of a part of the name. */
static int take_stem(trf_stem *stem, const char *name, const char *end) {
    const size_t length = strlen(name);
    if (!ends_with(name, end))
        return 0;
    stem->bytes = length - strlen(end);
    if (end[0] != '_' && end[0] != ':' && stem->bytes && name[stem->bytes - 1] != '.')
        return 0;
    memcpy(stem->name, name, stem->bytes);
    return 1;
}

/* @return whether there is a quantized tensor with the stem, such as "a." for "a.scale" and "a.weight", or with the
 * stem without its dot. */
static int has_quantized(const trf_stem *stem) {
    const size_t dots = stem->bytes && stem->name[stem->bytes - 1] == '.';
    for (size_t less = 0; less <= dots; less++)
        for (size_t i = 0; i < TRF_COUNT(kQuantizedEnds); i++) {
            const trf_tensor *tensor = find_beside(stem, less, kQuantizedEnds[i]);
            if (tensor && is_quantized_dtype(tensor->dtype))
                return 1;
        }
    return 0;
}

static int is_companion(trf_stem *stem, const char *name) {
    for (size_t i = 0; i < TRF_COUNT(kCompanionEnds); i++)
        if (take_stem(stem, name, kCompanionEnds[i]) && has_quantized(stem))
            return 1;
    for (size_t i = 0; i < TRF_COUNT(kPairs); i++) {
        const trf_tensor *packed =
            take_stem(stem, name, kPairs[i].companion) ? find_beside(stem, 0, kPairs[i].packed) : NULL;
        if (packed && is_integer(packed->dtype) && !find_beside(stem, 0, "weight"))
            return 1;
    }
    for (size_t i = 0; i < TRF_COUNT(kSimulated); i++)
        if (take_stem(stem, name, kSimulated[i]) && find_beside(stem, 0, "weight"))
            return 1;
    return 0;
}

static int is_blocks(const trf_tensor *tensor, const char *part) {
    if (strcmp(tensor->dtype, "U8") != 0 || tensor->num_dims != 4 || tensor->shape[3] != TRF_BLOCK_BYTES)
        return 0;
    return ends_with(part, kBlocks[0]) || strcmp(part, kBlocks[1]) == 0;
}

/* @return whether a tensor alone shows that the model is quantized. */
static int is_packed(const trf_tensor *tensor) {
    const char *dot = strrchr(tensor->name, '.');
    const char *part = dot ? dot + 1 : tensor->name;
    if (is_block_dtype(tensor->dtype) || is_blocks(tensor, part))
        return 1;
    return is_quantized_dtype(tensor->dtype) &&
           (is_listed(kPackedParts, TRF_COUNT(kPackedParts), part) || ends_with(tensor->name, kQuantoPacked) ||
            begins_with(part, kBitsandbytes));
}

/* Makes room for stems of a tensor's name. Release stem->name with free. */
static trf_status begin_stem(const trf_checkpoint *checkpoint, const char *name, trf_stem *stem, trf_error *err) {
    const size_t bytes = strlen(name) + TRF_LONGEST_END;
    *stem = (trf_stem){checkpoint, malloc(bytes), 0};
    return stem->name ? TRF_OK : trf_fail_memory(err, bytes);
}

trf_status trf_find_quantized_tensor(const trf_checkpoint *checkpoint, const trf_fp8_model *fp8,
                                     const trf_checkpoint_file **file, const trf_tensor **tensor, trf_error *err) {
    *file = NULL, *tensor = NULL;
    for (size_t i = 0; i < checkpoint->num_files; i++)
        for (size_t t = 0; t < checkpoint->files[i].num_tensors; t++) {
            trf_stem stem;
            const trf_tensor *candidate = checkpoint->files[i].tensors[t].source;
            if (trf_fp8_model_find(fp8, &checkpoint->files[i], candidate))
                continue;
            trf_status status = begin_stem(checkpoint, candidate->name, &stem, err);
            if (status != TRF_OK)
                return status;
            const int found = is_packed(candidate) || is_companion(&stem, candidate->name);
            free(stem.name);
            if (found) {
                *file = &checkpoint->files[i], *tensor = candidate;
                return TRF_OK;
            }
        }
    return TRF_OK;
}

/* ---- adapters ---- */

/* @return whether a part of a name, `bytes` long, is a part of an adapter's names. */
static int is_adapter_part(const char *part, size_t bytes) {
    for (size_t i = 0; i < TRF_COUNT(kAdapterParts); i++)
        if (bytes >= strlen(kAdapterParts[i]) && begins_with(part, kAdapterParts[i]))
            return 1;
    if (!begins_with(part + bytes, ".down.") && !begins_with(part + bytes, ".up."))
        return 0;
    for (size_t i = 0; i < TRF_COUNT(kAdapterPartEnds); i++) {
        const char *end = kAdapterPartEnds[i];
        const size_t tail = strlen(end);
        if ((end[0] == '_' ? bytes > tail : bytes == tail) && strncmp(part + bytes - tail, end, tail) == 0)
            return 1;
    }
    return 0;
}

/* Sets the stem to the name of the module whose weight a tensor changes, with a dot. @return whether the tensor is an
 * adapter's. */
static int take_adapted(trf_stem *stem, const char *name) {
    const char *behind = NULL, *dot = strchr(name, '.');
    for (size_t i = 0; i < TRF_COUNT(kAdapterNames) && dot; i++)
        if (begins_with(name, kAdapterNames[i]))
            behind = dot + 1;
    for (const char *part = name; part && !behind; part = dot ? dot + 1 : NULL) {
        dot = strchr(part, '.');
        if (is_adapter_part(part, dot ? (size_t)(dot - part) : strlen(part)))
            behind = part;
    }
    if (!behind)
        return 0;
    stem->bytes = (size_t)(behind - name);
    memcpy(stem->name, name, stem->bytes);
    return 1;
}

trf_status trf_find_adapter_tensor(const trf_checkpoint *checkpoint, const trf_checkpoint_file *file,
                                   const trf_tensor **tensor, trf_error *err) {
    const trf_tensor *first = NULL;
    size_t updates = 0;
    *tensor = NULL;
    for (size_t t = 0; t < file->num_tensors; t++) {
        trf_stem stem;
        trf_status status = begin_stem(checkpoint, file->tensors[t].source->name, &stem, err);
        if (status != TRF_OK)
            return status;
        int alone = take_adapted(&stem, file->tensors[t].source->name);
        for (size_t i = 0; i < TRF_COUNT(kAdaptedEnds) && alone; i++)
            alone = find_beside(&stem, 0, kAdaptedEnds[i]) == NULL;
        free(stem.name);
        updates += alone != 0;
        first = alone && !first ? file->tensors[t].source : first;
    }
    if (first && 2 * updates >= file->num_tensors)
        *tensor = first;
    return TRF_OK;
}
