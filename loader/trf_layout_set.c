/* SPDX-License-Identifier: Apache-2.0 */
/* The layers of a checkpoint to choose layouts for, with what each takes in each layout on one of the GPUs. */
#include "trf_blob.h"
#include "trf_compress_check.h"
#include "trf_error.h"
#include "trf_estimate.h"
#include "trf_fp8_model.h"
#include "trf_job.h"
#include "trf_layer.h"
#include "trf_layer_parts.h"
#include "trf_model_sizes.h"
#include "trf_packed8_head.h"
#include "trf_source_kind.h"
#include "trf_split.h"
#include "trf_struct.h"
#include "trf_tensor_selection.h"

#include "transfuse/layouts.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    TRF_MOST_GPUS = 1024
};
/* What an estimate of a coded layer's size may be too small, and a little more. */
static const double kEstimateMargin = 1.02;
static const char kExperts[] = ".experts";

/* Which layer a tensor belongs to. */
typedef struct tensor_place {
    char *name;
    uint32_t layer;
} tensor_place;

/* What is known of the scales of a tensor's FP8 weights, all matrices together. */
typedef struct fp8_scales {
    trf_granularity granularity; /* the finest of all matrices; CHANNEL for scale blocks of several sizes */
    uint32_t block;              /* rows and columns of a scale block */
    int is_fp8;                  /* the weights are E4M3, without scales or with those */
    int in_range;                /* each scale has a pair of constants, as far as its value is known */
} fp8_scales;

/* What is summed up of matrices of experts that are packed together: of gate and up, or of down. */
typedef struct container_sums {
    uint64_t matrices;
    uint64_t packed_bytes, packed8_bytes; /* of all of them, each by itself, as packed BF16, and as packed FP8 */
    trf_layer_part first;
    int is_mixed;           /* not all have the first one's shape */
    int has_bf16;           /* one of them cannot be packed as FP8, so that none is */
    double coded_share;     /* of the first matrix, which was sampled: coded bytes by plain bytes; 0: none yet */
    trf_layer_info sampled; /* what its blob would be */
} container_sums;

/* What is summed up of the matrices of a layer of experts. */
typedef struct expert_sums {
    uint64_t matrices, weights;   /* weights: of a GPU's parts */
    uint64_t numbers;             /* one more than the highest number of an expert */
    uint64_t cols;                /* of the first matrix */
    container_sums containers[2]; /* of gate and up, and of down */
} expert_sums;

struct trf_layout_set {
    trf_layout_set_info info;
    trf_layout_layer *layers;
    char **names;      /* of the layers */
    expert_sums *sums; /* [num_layers]; of those without experts zeros */
    tensor_place *places;
};

/* A set that is being read. */
typedef struct reading {
    trf_checkpoint *checkpoint;
    trf_layout_set_options options;
    trf_source_config config;
    trf_selection_rules rules; /* of a checkpoint that is not compressed, as fp8 is */
    trf_fp8_model fp8;
    trf_checkpoint_options compress_options;
    int is_compressed, is_tied;
    uint64_t kv_heads;
    trf_file file; /* the one that samples are read from */
    const char *file_path;
    fp8_scales scales; /* of the tensor that is being added, if it is compressed */
    trf_layout_set *set;
} reading;

void trf_layout_layer_init(trf_layout_layer *layer) {
    *layer = (trf_layout_layer){.struct_bytes = sizeof *layer, .codec = TRF_CODEC_BF16};
}

void trf_layout_set_options_init(trf_layout_set_options *options) {
    *options = (trf_layout_set_options){.struct_bytes = sizeof *options, .gpus = 1};
}

void trf_layout_set_free(trf_layout_set *set) {
    if (!set)
        return;
    for (uint32_t i = 0; i < set->info.num_layers; i++)
        free(set->names[i]);
    for (uint64_t i = 0; i < set->info.tensors; i++)
        free(set->places[i].name);
    free(set->layers);
    free(set->names);
    free(set->sums);
    free(set->places);
    free(set);
}

void trf_layout_set_get_info(const trf_layout_set *set, trf_layout_set_info *info) { *info = set->info; }

const trf_layout_layer *trf_layout_set_layers(const trf_layout_set *set) { return set->layers; }

static int compare_places(const void *a, const void *b) {
    const tensor_place *left = a, *right = b;
    return strcmp(left->name, right->name);
}

uint32_t trf_layout_set_find(const trf_layout_set *set, const char *tensor) {
    uint64_t low = 0, high = set->info.tensors;
    while (low < high) {
        const uint64_t middle = low + (high - low) / 2;
        const int order = strcmp(set->places[middle].name, tensor);
        if (order == 0)
            return set->places[middle].layer;
        if (order < 0)
            low = middle + 1;
        else
            high = middle;
    }
    return UINT32_MAX;
}

/* ---- layers ---- */

/* Adds a layer with a name of so many bytes. Errors: TRF_ERR_MEMORY. */
static trf_status add_layer(trf_layout_set *set, const char *name, size_t bytes, uint32_t *index, trf_error *err) {
    *index = set->info.num_layers;
    char *copy = strndup(name, bytes);
    if (!copy)
        return trf_fail_memory(err, bytes);
    trf_layout_layer_init(&set->layers[*index]);
    set->layers[*index].name = set->names[*index] = copy;
    set->info.num_layers++;
    return TRF_OK;
}

/* Finds a layer of experts, or adds it. The last layers are looked at first, because tensors of a layer mostly lie side
 * by side. Errors: TRF_ERR_MEMORY. */
static trf_status find_or_add_layer(trf_layout_set *set, const char *name, size_t bytes, uint32_t *index,
                                    trf_error *err) {
    for (uint32_t i = set->info.num_layers; i-- > 0;)
        if (strncmp(set->names[i], name, bytes) == 0 && !set->names[i][bytes]) {
            *index = i;
            return TRF_OK;
        }
    return add_layer(set, name, bytes, index, err);
}

/* @return the bytes of a name that stand for its layer of experts, "layers.0.mlp.experts"; 0 if it is of none.
 * *number: of the expert, if the name has it. */
static size_t find_experts(const trf_tensor_info *tensor, uint64_t *number) {
    const char *at = strstr(tensor->name, kExperts);
    *number = 0;
    if (!at || (at[sizeof kExperts - 1] != '.' && at[sizeof kExperts - 1] != 0))
        return tensor->num_dims == 3 ? strlen(tensor->name) : 0;
    if (at[sizeof kExperts - 1] == '.')
        *number = strtoull(at + sizeof kExperts, NULL, 10);
    return (size_t)(at - tensor->name) + sizeof kExperts - 1;
}

/* info: of a layer that is coded; zeros of others. */
static unsigned find_layouts(trf_codec codec, const trf_layer_info *info, int is_expert) {
    const unsigned coded = 1u << TRF_LAYOUT_CODED, plain = 1u << TRF_LAYOUT_PLAIN, packed = 1u << TRF_LAYOUT_PACKED;
    if (codec == TRF_CODEC_E4M3 && info->dtype == TRF_DTYPE_F8_E4M3)
        return is_expert ? coded : coded | packed;
    if (codec == TRF_CODEC_BF16 || codec == TRF_CODEC_E4M3)
        return is_expert ? coded | packed : coded | plain | packed;
    return codec == TRF_CODEC_FP16 && !is_expert ? coded | plain : coded;
}

/* ---- sizes ---- */

/* @return the bytes of the scales that a blob of FP8 weights has. */
static uint64_t scale_bytes(const trf_layer_info *info) {
    const uint64_t side = info->scale_group_size;
    uint64_t count = 1;
    if (info->granularity == TRF_GRANULARITY_CHANNEL)
        count = info->rows;
    else if (info->granularity == TRF_GRANULARITY_SCALE_BLOCK)
        count = (info->rows / side + 1) * (info->cols / side + 1);
    return count * sizeof(float);
}

static trf_status open_sampled(reading *at, const char *path, trf_error *err) {
    uint64_t file_bytes;
    if (at->file_path && strcmp(at->file_path, path) == 0)
        return TRF_OK;
    if (at->file_path)
        trf_file_close(&at->file);
    at->file_path = NULL;
    const trf_status status = trf_file_open(path, &at->file, &file_bytes, err);
    if (status == TRF_OK)
        at->file_path = path;
    return status;
}

/* Estimates from a sample what a matrix would take, coded, of what it takes in its file. tensor->layer: of FP8 with
 * scales what describe_fp8 says; of others it becomes what is known of the blob. */
static trf_status estimate_share(reading *at, trf_tensor_info *tensor, double *share, trf_error *err) {
    const uint64_t rows = tensor->shape[tensor->num_dims - 2], cols = tensor->shape[tensor->num_dims - 1];
    const int is_fp8 = tensor->layer.codec == TRF_CODEC_E4M3;
    trf_encoded encoded;
    trf_layer_report report = {0};
    trf_encode_options encode;
    const trf_dtype dtype = trf_dtype_of_name(tensor->dtype);
    trf_status status = open_sampled(at, tensor->file, err);
    if (status != TRF_OK)
        return status;
    trf_encode_options_for(&at->compress_options.encode, dtype, &encode);
    if (is_fp8)
        encode.codec = TRF_CODEC_E4M3;
    const trf_sampled_matrix matrix = {&at->file, tensor->file_offset, dtype, rows, cols};
    status = trf_estimate_blob(&matrix, &encode, &encoded, &report, err);
    if (status != TRF_OK)
        return status;
    if (!is_fp8)
        tensor->layer = (trf_layer_info){.rows = (uint32_t)rows,
                                         .cols = (uint32_t)cols,
                                         .dtype = dtype,
                                         .codec = encoded.codec,
                                         .granularity = encoded.granularity,
                                         .scale_group_size = encoded.scale_group_size};
    const uint64_t bytes = encoded.blob_bytes + (is_fp8 ? scale_bytes(&tensor->layer) : 0);
    *share = (double)bytes * kEstimateMargin / (double)(rows * cols * trf_dtype_bytes(dtype));
    return status;
}

/* ---- packed FP8 ---- */

/* @return what an estimate, or the config of an FP8 checkpoint, says of scales, of which it knows no values. */
static fp8_scales scales_of(const trf_layer_info *info) {
    return (fp8_scales){.granularity = info->granularity,
                        .block = info->scale_group_size,
                        .is_fp8 = trf_is_scaled_fp8(info->codec, info->dtype) ||
                                  (info->codec == TRF_CODEC_E4M3 && info->dtype == TRF_DTYPE_F8_E4M3),
                        .in_range = 1};
}

static int have_pairs(const trf_blob_view *view) {
    const float *scales = view->scales;
    for (uint64_t i = 0; i < view->num_scales; i++)
        if (!trf_packed8_has_pair(scales[i]))
            return 0;
    return 1;
}

static int is_fine(const fp8_scales *scales) {
    return scales->granularity != TRF_GRANULARITY_NONE && scales->granularity != TRF_GRANULARITY_TENSOR;
}

/* A trf_look_at_blob_fn; context: the fp8_scales of the blobs before. */
static void add_blob(void *context, const trf_blob_view *view) {
    fp8_scales *const scales = context;
    trf_layer_info info;
    trf_blob_get_info(view, &info);
    const fp8_scales own = scales_of(&info);
    scales->is_fp8 &= own.is_fp8;
    scales->in_range &= !trf_is_scaled_fp8(info.codec, info.dtype) || have_pairs(view);
    if (!is_fine(scales)) {
        scales->granularity = own.granularity;
        scales->block = own.block;
    } else if (is_fine(&own) && (own.granularity != scales->granularity || own.block != scales->block))
        scales->granularity = TRF_GRANULARITY_CHANNEL;
}

/* Whether the weights of each GPU's part of rows `first` to `end`, which are cut into pieces, have one scale where they
 * have the same constants. part: of which cols, and the columns' pieces, count. */
static int fit_rows(const fp8_scales *scales, uint64_t first, uint64_t end, uint64_t piece, uint64_t cols,
                    const trf_layer_part *part, uint32_t tile_rows) {
    for (uint64_t row = first; row < end; row += piece)
        for (uint64_t col = 0; col < cols; col += part->cols) {
            const trf_packed8_part of_gpu = {.granularity = (uint32_t)scales->granularity,
                                             .scale_group_size = scales->block,
                                             .row = row,
                                             .rows = end - row < piece ? end - row : piece,
                                             .col = col,
                                             .cols = cols - col < part->cols ? cols - col : part->cols};
            if (!trf_packed8_scales_fit(&of_gpu, tile_rows))
                return 0;
        }
    return 1;
}

/* Whether a packed tensor becomes packed FP8 on every GPU, unless too many of its weights are no codes times scales. Of
 * experts rows of gate and up lie in turns, half of those that have the same constants each. */
static int becomes_packed8(const fp8_scales *scales, const trf_tensor_info *tensor, const trf_layer_part *part,
                           int is_expert) {
    const uint64_t rows = tensor->shape[tensor->num_dims - 2], cols = tensor->shape[tensor->num_dims - 1],
                   half = rows / 2;
    if (!scales->is_fp8 || !scales->in_range)
        return 0;
    if (!is_expert || !trf_name_is_gate_up(tensor->name))
        return fit_rows(scales, 0, rows, part->rows, cols, part, TRF_PACKED_TILE_ROWS);
    const uint64_t piece = (part->rows + 1) / 2;
    return fit_rows(scales, 0, half, piece, cols, part, TRF_PACKED_TILE_ROWS / 2) &&
           fit_rows(scales, half, rows, piece, cols, part, TRF_PACKED_TILE_ROWS / 2);
}

/* Adds what a matrix, or `count` experts of one shape, take to a layer, but for packed experts. coded_bytes: of all of
 * them, whole. info: of a layer that is coded; of others what is known of it, and else zeros, since it will be coded
 * with the defaults. */
static void add_bytes(trf_layout_layer *layer, const trf_layer_part *part, uint64_t count, double coded_bytes,
                      const trf_layer_info *info) {
    const uint64_t directory = trf_coded_part_directory_bytes(part, info);
    layer->bytes[TRF_LAYOUT_PLAIN] += count * trf_plain_part_bytes(part);
    layer->bytes[TRF_LAYOUT_CODED] += (uint64_t)(coded_bytes * part->tiles) + 1 + count * directory;
    layer->coded_workspace_bytes += count * trf_plain_part_bytes(part);
}

static void add_packed_experts(container_sums *sums, const trf_layer_part *part, uint64_t count, int is_packed8) {
    if (!sums->matrices)
        sums->first = *part;
    sums->is_mixed |= part->rows != sums->first.rows || part->cols != sums->first.cols;
    sums->matrices += count;
    sums->packed_bytes += count * trf_packed_part_bytes(part);
    sums->packed8_bytes += count * trf_packed8_part_bytes(part);
    sums->has_bf16 |= !is_packed8;
}

/* Counts gate and up as one matrix, which they are when they are packed. numbers: of experts. */
static void merge_packed_experts(container_sums *sums, uint64_t numbers) {
    trf_layer_part merged = sums->first;
    if (sums->is_mixed || sums->matrices < numbers || sums->matrices % numbers)
        return;
    merged.rows *= sums->matrices / numbers;
    sums->packed_bytes = numbers * trf_packed_part_bytes(&merged);
    sums->packed8_bytes = numbers * trf_packed8_part_bytes(&merged);
}

/* Experts of a container are all packed FP8, or none is. */
static void finish_packed_experts(trf_layout_layer *layer, expert_sums *sums) {
    layer->packed_is_fp8 = 1;
    for (int i = 0; i < 2; i++) {
        container_sums *of = &sums->containers[i];
        merge_packed_experts(of, sums->numbers);
        layer->bytes[TRF_LAYOUT_PACKED] += of->has_bf16 ? of->packed_bytes : of->packed8_bytes;
        layer->packed_is_fp8 &= !of->has_bf16;
    }
}

/* ---- tensors ---- */

/* @return what a tensor is in an FP8 checkpoint; or NULL. */
static const trf_fp8_tensor *find_fp8(const reading *at, uint64_t number) {
    for (size_t f = 0; f < at->checkpoint->num_files && at->fp8.is_fp8; f++) {
        const trf_checkpoint_file *file = &at->checkpoint->files[f];
        if (number < file->num_tensors)
            return trf_fp8_model_find(&at->fp8, file, file->tensors[number].source);
        number -= file->num_tensors;
    }
    return NULL;
}

/* Says of FP8 weights with scales what their blob would. */
static void describe_fp8(const reading *at, const trf_fp8_tensor *fp8, trf_tensor_info *tensor) {
    tensor->layer = (trf_layer_info){
        .rows = (uint32_t)tensor->shape[tensor->num_dims - 2],
        .cols = (uint32_t)tensor->shape[tensor->num_dims - 1],
        .dtype = TRF_DTYPE_BF16,
        .codec = TRF_CODEC_E4M3,
        .granularity = fp8->granularity,
        .scale_group_size = fp8->granularity == TRF_GRANULARITY_SCALE_BLOCK ? at->fp8.config.block_size : 0};
}

/* Whether a tensor is a layer, or a part of one, and its codec. fp8: as find_fp8 gives it. */
static trf_status select_codec(const reading *at, const trf_fp8_tensor *fp8, trf_tensor_info *tensor, trf_codec *codec,
                               trf_error *err) {
    *codec = TRF_CODEC_AUTO;
    if (at->is_compressed || trf_name_is_bias(tensor->name)) {
        if (tensor->compressed && !trf_name_is_bias(tensor->name))
            *codec = trf_element_codec(tensor->layer.codec, tensor->layer.dtype);
        return TRF_OK;
    }
    trf_tensor source = {.name = (char *)(uintptr_t)tensor->name,
                         .dtype = (char *)(uintptr_t)tensor->dtype,
                         .shape = (uint64_t *)(uintptr_t)tensor->shape,
                         .num_dims = tensor->num_dims};
    trf_tensor_selection selection;
    trf_left_reason reason;
    const trf_dtype dtype = trf_dtype_of_name(tensor->dtype);
    const trf_status status = trf_select_fp8(&at->rules, fp8, &source, &selection, &reason, err);
    if (status != TRF_OK || selection == TRF_SELECT_KEEP)
        return status;
    if (fp8) {
        describe_fp8(at, fp8, tensor);
        *codec = TRF_CODEC_BF16;
    } else
        *codec = dtype == TRF_DTYPE_BF16 ? TRF_CODEC_BF16 : dtype == TRF_DTYPE_F16 ? TRF_CODEC_FP16 : TRF_CODEC_AUTO;
    return status;
}

/* Counts a tensor that is no layer: matrices are cut as layers are, and all else is whole on each GPU. */
static void count_other(reading *at, const trf_tensor_info *tensor) {
    uint64_t number, bytes = tensor->compressed ? tensor->source_bytes : tensor->bytes;
    if (tensor->num_dims == 2 && tensor->shape[0] && tensor->shape[1]) {
        const trf_layer_part part =
            trf_layer_part_find(tensor->name, tensor->shape[0], tensor->shape[1], find_experts(tensor, &number) > 0,
                                at->options.gpus, at->kv_heads);
        bytes = (uint64_t)((double)bytes * ((double)part.rows / (double)tensor->shape[0]) *
                           ((double)part.cols / (double)tensor->shape[1])) +
                1;
    }
    at->set->info.other_bytes += bytes;
}

static int is_lookup(const reading *at, const char *name) {
    size_t length;
    char last[64];
    const char *part = trf_name_last_part(name, &length);
    snprintf(last, sizeof last, "%.*s", (int)(length < sizeof last ? length : sizeof last - 1), part);
    return !at->is_tied && trf_last_part_is_embedding(last);
}

/* Estimates what a matrix would take when it is coded, or, of experts, what the container's first one would. */
static trf_status sample_once(reading *at, trf_tensor_info *tensor, int is_expert, container_sums *container,
                              trf_error *err) {
    const int is_described = tensor->layer.codec == TRF_CODEC_E4M3; /* by describe_fp8 */
    if (is_expert && container->coded_share > 0) {
        if (!is_described)
            tensor->layer = container->sampled;
        return TRF_OK;
    }
    const trf_status status = estimate_share(at, tensor, &container->coded_share, err);
    container->sampled = tensor->layer;
    return status;
}

/* Adds a tensor to its layer, whose number becomes *index. */
static trf_status add_to_layer(reading *at, trf_tensor_info *tensor, trf_codec codec, uint32_t *index, trf_error *err) {
    trf_layout_set *set = at->set;
    uint64_t number;
    const uint64_t rows = tensor->shape[tensor->num_dims - 2], cols = tensor->shape[tensor->num_dims - 1];
    const uint64_t count = tensor->num_dims == 3 ? tensor->shape[0] : 1;
    const size_t expert_name = find_experts(tensor, &number);
    const trf_layer_part part =
        trf_layer_part_find(tensor->name, rows, cols, expert_name > 0, at->options.gpus, at->kv_heads);
    trf_status status = expert_name ? find_or_add_layer(set, tensor->name, expert_name, index, err)
                                    : add_layer(set, tensor->name, strlen(tensor->name), index, err);
    if (status != TRF_OK)
        return status;
    trf_layout_layer *layer = &set->layers[*index];
    expert_sums *sums = &set->sums[*index];
    container_sums *container = &sums->containers[trf_name_is_second(tensor->name)];
    if (!at->is_compressed)
        status = sample_once(at, tensor, expert_name > 0, container, err);
    if (status != TRF_OK)
        return status;
    const double coded_bytes = (double)tensor->bytes * (at->is_compressed ? 1 : container->coded_share);
    const fp8_scales scales = at->is_compressed ? at->scales : scales_of(&tensor->layer);
    const int is_packed8 = becomes_packed8(&scales, tensor, &part, expert_name > 0);
    layer->layouts =
        find_layouts(codec, &tensor->layer, expert_name > 0) & (sums->matrices ? layer->layouts : UINT32_MAX);
    layer->codec = codec;
    add_bytes(layer, &part, count, coded_bytes, &tensor->layer);
    sums->matrices += count;
    if (!expert_name) {
        layer->packed_is_fp8 = is_packed8;
        layer->bytes[TRF_LAYOUT_PACKED] = is_packed8 ? trf_packed8_part_bytes(&part) : trf_packed_part_bytes(&part);
        layer->rows = (uint32_t)part.rows;
        layer->cols = (uint32_t)part.cols;
        layer->is_lookup = is_lookup(at, tensor->name);
        return TRF_OK;
    }
    add_packed_experts(container, &part, count, is_packed8);
    sums->weights += count * part.rows * part.cols;
    sums->numbers = number + count > sums->numbers ? number + count : sums->numbers;
    sums->cols = sums->cols ? sums->cols : part.cols;
    return TRF_OK;
}

static trf_status add_tensor(reading *at, uint64_t number, trf_error *err) {
    trf_layout_set *set = at->set;
    trf_tensor_info tensor;
    trf_codec codec;
    at->scales = (fp8_scales){.is_fp8 = 1, .in_range = 1};
    trf_status status = trf_checkpoint_look(at->checkpoint, number, add_blob, &at->scales, &tensor, err);
    const trf_fp8_tensor *fp8 = status == TRF_OK ? find_fp8(at, number) : NULL;
    if (fp8 && fp8->role != TRF_FP8_WEIGHT)
        return TRF_OK; /* blobs have the scales that are used */
    if (status == TRF_OK)
        status = select_codec(at, fp8, &tensor, &codec, err);
    if (status != TRF_OK)
        return status;
    if (codec == TRF_CODEC_AUTO) {
        count_other(at, &tensor);
        return TRF_OK;
    }
    uint32_t layer;
    status = add_to_layer(at, &tensor, codec, &layer, err);
    char *name = status == TRF_OK ? strdup(tensor.name) : NULL;
    if (status == TRF_OK && !name)
        status = trf_fail_memory(err, strlen(tensor.name));
    if (status != TRF_OK)
        return status;
    set->places[set->info.tensors++] = (tensor_place){name, layer};
    return TRF_OK;
}

/* Says of the layers of experts what only all of their tensors together tell. */
static trf_status finish_experts(reading *at, trf_error *err) {
    uint32_t routed = 0;
    for (uint32_t i = 0; i < at->set->info.num_layers; i++) {
        trf_layout_layer *layer = &at->set->layers[i];
        expert_sums *sums = &at->set->sums[i];
        if (!sums->numbers)
            continue;
        const trf_status status = routed ? TRF_OK : trf_model_routed_read(&at->config, &routed, err);
        if (status != TRF_OK)
            return status;
        const uint64_t of_all = sums->numbers * sums->cols;
        layer->experts = (uint32_t)sums->numbers;
        layer->routed = routed < layer->experts ? routed : layer->experts;
        layer->cols = (uint32_t)sums->cols;
        layer->rows = (uint32_t)((sums->weights + of_all - 1) / of_all);
        finish_packed_experts(layer, sums);
    }
    return TRF_OK;
}

/* ---- the whole ---- */

static trf_status find_out_compressed(reading *at, trf_error *err) {
    const uint64_t count = trf_checkpoint_num_tensors(at->checkpoint);
    for (uint64_t i = 0; i < count && !at->is_compressed; i++) {
        trf_tensor_info tensor;
        const trf_status status = trf_checkpoint_tensor(at->checkpoint, i, &tensor, err);
        if (status != TRF_OK)
            return status;
        at->is_compressed = tensor.compressed;
    }
    at->set->info.is_estimated = !at->is_compressed;
    return TRF_OK;
}

/* Refuses what nothing could load. */
static trf_status check_source(reading *at, trf_error *err) {
    char obstacle[TRF_OBSTACLE_BYTES] = "";
    const json_t *ours = trf_source_config_find_ours(&at->config);
    if (json_is_true(json_object_get(ours, "stored")))
        return trf_fail(err, TRF_ERR_UNSUPPORTED, TRF_NO_OFFSET,
                        "the checkpoint is stored only: it has to be decompressed before anything loads it");
    if (at->is_compressed)
        return TRF_OK;
    trf_status status = trf_fp8_model_read(at->checkpoint, &at->config, &at->fp8, obstacle, err);
    if (status == TRF_OK && !obstacle[0])
        status = trf_source_find_obstacle(at->checkpoint, &at->config, &at->fp8, obstacle, err);
    return status != TRF_OK || !obstacle[0] ? status
                                            : trf_fail(err, TRF_ERR_UNSUPPORTED, TRF_NO_OFFSET, "%s", obstacle);
}

static trf_status read_config(reading *at, trf_error *err) {
    trf_model_cache cache;
    trf_status status = trf_source_config_read(at->checkpoint, &at->config, err);
    if (status != TRF_OK)
        return status;
    at->is_tied = trf_source_config_is_tied(&at->config);
    trf_checkpoint_options_init(&at->compress_options);
    at->rules = (trf_selection_rules){.options = &at->compress_options, .tied_embeddings = at->is_tied};
    const trf_status known = trf_model_cache_read(&at->config, &cache, at->options.context_tokens ? err : NULL);
    if (known != TRF_OK)
        return at->options.context_tokens ? known : TRF_OK;
    at->kv_heads = cache.is_latent ? 0 : cache.kv_heads;
    at->set->info.cache_bytes = at->options.context_tokens * trf_model_cache_token_bytes(&cache, at->options.gpus);
    return TRF_OK;
}

static trf_status read_set(reading *at, trf_error *err) {
    const uint64_t count = trf_checkpoint_num_tensors(at->checkpoint);
    at->set->layers = calloc(count + 1, sizeof *at->set->layers);
    at->set->names = calloc(count + 1, sizeof *at->set->names);
    at->set->sums = calloc(count + 1, sizeof *at->set->sums);
    at->set->places = calloc(count + 1, sizeof *at->set->places);
    if (!at->set->layers || !at->set->names || !at->set->sums || !at->set->places)
        return trf_fail_memory(err, count * sizeof *at->set->layers);
    trf_status status = find_out_compressed(at, err);
    if (status == TRF_OK)
        status = read_config(at, err);
    if (status == TRF_OK)
        status = check_source(at, err);
    for (uint64_t i = 0; i < count && status == TRF_OK; i++)
        status = add_tensor(at, i, err);
    if (status == TRF_OK)
        status = finish_experts(at, err);
    if (status == TRF_OK)
        qsort(at->set->places, at->set->info.tensors, sizeof *at->set->places, compare_places);
    return status;
}

static trf_status take_set_options(const trf_layout_set_options *from, trf_layout_set_options *options,
                                   trf_error *err) {
    static const trf_struct_type type = {"trf_layout_set_options", sizeof *options,
                                         TRF_STRUCT_BYTES(trf_layout_set_options, context_tokens)};
    trf_layout_set_options_init(options);
    const trf_status status = from ? trf_take_struct(&type, options, from, err) : TRF_OK;
    if (status == TRF_OK && (options->gpus < 1 || options->gpus > TRF_MOST_GPUS))
        return trf_fail(err, TRF_ERR_ARGUMENT, TRF_NO_OFFSET, "gpus is %" PRIu32 "; it must be from 1 to 1024",
                        options->gpus);
    return status;
}

trf_status trf_layout_set_read(trf_checkpoint *checkpoint, const trf_layout_set_options *options, trf_layout_set **set,
                               trf_error *err) {
    reading at = {.checkpoint = checkpoint};
    if (!checkpoint || !set)
        return trf_fail(err, TRF_ERR_ARGUMENT, TRF_NO_OFFSET, "layers are read from a checkpoint");
    trf_status status = take_set_options(options, &at.options, err);
    if (status == TRF_OK && checkpoint->num_parts)
        status = trf_fail(err, TRF_ERR_UNSUPPORTED, TRF_NO_OFFSET,
                          "%s: layouts are chosen for one model; this is a pipeline of several", checkpoint->root);
    at.set = status == TRF_OK ? calloc(1, sizeof *at.set) : NULL;
    if (status == TRF_OK && !at.set)
        status = trf_fail_memory(err, sizeof *at.set);
    if (status == TRF_OK)
        status = read_set(&at, err);
    trf_fp8_model_free(&at.fp8);
    trf_source_config_free(&at.config);
    if (at.file_path)
        trf_file_close(&at.file);
    if (status == TRF_OK)
        *set = at.set;
    else
        trf_layout_set_free(at.set);
    return trf_sanitize_error(status, err);
}
