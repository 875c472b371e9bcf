/* SPDX-License-Identifier: Apache-2.0 */
#include "trf_layer_parts.h"

#include "trf_blob.h"
#include "trf_packed8.h"
#include "trf_split.h"

#include <string.h>

enum {
    TRF_PART_ALIGNMENT = 256,
    TRF_PART_SLAB_ROWS = 32,
    TRF_PART_SLAB_BYTES = 8, /* of a slab directory */
    TRF_PART_SLOT_BYTES = 4, /* of a decode table */
    TRF_PART_PAIR_BYTES = 4  /* a scale pair of scaled FP8 */
};

/* The second of two matrices in a row, whose columns are cut where the rows of the first one are. */
static const char *const kSecond[] = {"o_proj", "down_proj", "out_proj", "dense_4h_to_h", "c_proj",
                                      "w2",     "wo",        "fc2",      "fc_out",        "dense"};
/* Every GPU has all of these: routers, and what makes latent vectors. */
static const char *const kWhole[] = {"gate", "router", "shared_expert_gate", "q_a_proj", "kv_a_proj_with_mqa"};
static const char *const kGateUp[] = {"gate_up_proj", "gate_up", "w13"};
static const char *const kKeysOrValues[] = {"k_proj", "v_proj"};

const char *trf_name_last_part(const char *name, size_t *length) {
    static const char tail[] = ".weight";
    const size_t tail_bytes = sizeof tail - 1;
    *length = strlen(name);
    if (*length > tail_bytes && strcmp(name + *length - tail_bytes, tail) == 0)
        *length -= tail_bytes;
    const char *begin = name + *length;
    while (begin > name && begin[-1] != '.')
        begin--;
    *length -= (size_t)(begin - name);
    return begin;
}

int trf_name_is_bias(const char *name) {
    size_t length;
    const char *part = trf_name_last_part(name, &length);
    return (length == 4 && memcmp(part, "bias", 4) == 0) || (length > 5 && memcmp(part + length - 5, "_bias", 5) == 0);
}

static int is_one_of(const char *const *names, size_t count, const char *part, size_t length) {
    for (size_t i = 0; i < count; i++)
        if (strlen(names[i]) == length && memcmp(names[i], part, length) == 0)
            return 1;
    return 0;
}

#define IS_ONE_OF(names, part, length) is_one_of(names, sizeof(names) / sizeof(names)[0], part, length)

int trf_name_is_second(const char *name) {
    size_t length;
    const char *last = trf_name_last_part(name, &length);
    return IS_ONE_OF(kSecond, last, length);
}

int trf_name_is_gate_up(const char *name) {
    size_t length;
    const char *last = trf_name_last_part(name, &length);
    return IS_ONE_OF(kGateUp, last, length);
}

static uint64_t divide_up(uint64_t a, uint64_t b) { return (a + b - 1) / b; }

/* @return the most tiles that one of the parts of a side touches, if it is cut to pieces of that length. */
static uint64_t count_touched(uint64_t side, uint64_t piece) {
    uint64_t most = 0;
    for (uint64_t begin = 0; begin < side; begin += piece) {
        const uint64_t end = begin + piece < side ? begin + piece : side;
        const uint64_t touched = divide_up(end, TRF_TILE_SIZE) - begin / TRF_TILE_SIZE;
        most = touched > most ? touched : most;
    }
    return most;
}

trf_layer_part trf_layer_part_find(const char *name, uint64_t rows, uint64_t cols, int is_expert, uint32_t gpus,
                                   uint64_t kv_heads) {
    size_t length;
    const char *last = trf_name_last_part(name, &length);
    trf_layer_part part = {rows, cols, 1};
    uint64_t *cut = &part.rows, pieces = gpus;
    if (IS_ONE_OF(kSecond, last, length))
        cut = &part.cols;
    else if (IS_ONE_OF(kWhole, last, length) && !is_expert)
        pieces = 1;
    else if (IS_ONE_OF(kKeysOrValues, last, length) && kv_heads && kv_heads < gpus)
        pieces = kv_heads;
    if (pieces < 2)
        return part;
    const uint64_t side = *cut;
    *cut = divide_up(side, pieces);
    part.tiles = (double)count_touched(side, *cut) / (double)divide_up(side, TRF_TILE_SIZE);
    return part;
}

static uint64_t align(uint64_t bytes) { return divide_up(bytes, TRF_PART_ALIGNMENT) * TRF_PART_ALIGNMENT; }

static uint64_t tiled_bytes(const trf_layer_part *part, uint64_t tile_bytes) {
    const uint64_t bands = divide_up(part->rows, TRF_PACKED_TILE_ROWS),
                   tiles = divide_up(part->cols, TRF_PACKED_TILE_COLS);
    const uint64_t lines = bands * divide_up(tiles, TRF_PACKED_LINE_TILES);
    return align(TRF_LAYOUT_HEAD_BYTES + lines * TRF_PACKED_LINE_BYTES) + bands * tiles * tile_bytes;
}

uint64_t trf_packed_part_bytes(const trf_layer_part *part) { return tiled_bytes(part, TRF_PACKED_TILE_BYTES); }

uint64_t trf_packed8_part_bytes(const trf_layer_part *part) { return tiled_bytes(part, TRF_PACKED8_TILE_BYTES); }

uint64_t trf_plain_part_bytes(const trf_layer_part *part) {
    return TRF_LAYOUT_HEAD_BYTES + 2 * part->rows * part->cols;
}

/* @return the number of scale pairs in a part's directory. */
static uint64_t count_scale_pairs(const trf_layer_part *part, const trf_layer_info *info) {
    if (!trf_is_scaled_fp8(info->codec, info->dtype))
        return 0;
    const uint64_t side = info->scale_group_size;
    return info->granularity == TRF_GRANULARITY_CHANNEL ? part->rows
           : side                                       ? (part->rows / side + 2) * (part->cols / side + 2)
                                                        : 1;
}

uint64_t trf_coded_part_directory_bytes(const trf_layer_part *part, const trf_layer_info *info) {
    const uint32_t slab_cols = info->slab_cols ? info->slab_cols : TRF_MIN_SLAB_COLS,
                   probability_bits = info->probability_bits ? info->probability_bits : TRF_QUADS_PROBABILITY_BITS;
    const uint64_t slabs = divide_up(part->rows, TRF_PART_SLAB_ROWS) * divide_up(part->cols, slab_cols);
    return align(slabs * TRF_PART_SLAB_BYTES) + align((uint64_t)TRF_PART_SLOT_BYTES << probability_bits) +
           align(TRF_PART_PAIR_BYTES * count_scale_pairs(part, info)) + TRF_PART_ALIGNMENT;
}
