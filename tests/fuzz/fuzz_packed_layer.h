/* SPDX-License-Identifier: Apache-2.0 */
/* Packed layers, of BF16 or of FP8, over which a fuzzer writes any bytes, but not over their heads. */
#ifndef FUZZ_PACKED_LAYER_H
#define FUZZ_PACKED_LAYER_H

#include "common/packed_layer.h"
#include "fuzz_bytes.h"
#include "trf_pack8.h"
#include "trf_packed8_form.h"

#include <stdlib.h>
#include <string.h>

/* Options of a layer. What the lowest bits ask for differs between the kinds. */
enum {
    FUZZ_ROW_OFFSETS = 1,  /* BF16 */
    FUZZ_ONE_CONSTANT = 1, /* FP8: all scales need one constant, not two */
    FUZZ_ZEROING = 2,      /* BF16 */
    FUZZ_RECORDS = 4,
    FUZZ_STORED = 8, /* BF16 */
    FUZZ_IS_FP8 = 128,
    FUZZ_IN_TURNS = 256 /* FP8: rows of gate and up, as experts have them */
};

/* A layer of either kind. */
typedef struct fuzz_packed_layer {
    int is_fp8;
    packed_layer bf16;
    trf_packed8_view view; /* of a BF16 layer only `packed` is set */
    uint8_t *memory;       /* the packed layer; or NULL */
    uint64_t lines_offset, line_bytes, bytes;
} fuzz_packed_layer;

static inline void *fuzz_allocate(size_t bytes) {
    void *memory = malloc(bytes ? bytes : 1);
    if (!memory)
        abort();
    return memory;
}

static inline void fuzz_make_bf16(fuzz_packed_layer *layer, uint32_t rows, uint32_t cols, uint32_t options) {
    layer->bf16 = packed_layer_make(rows, cols, options & FUZZ_ROW_OFFSETS);
    const trf_packed_window window = {.base = 112, .zeroing = (options & FUZZ_ZEROING) != 0};
    for (size_t i = 0; i < (size_t)rows * cols; i++) {
        const uint32_t mixed = (uint32_t)i * 0x9E3779B1u;
        layer->bf16.weights[i] = (uint16_t)((mixed >> 16 & 0x807F) | (113 + (mixed >> 12) % 15) << 7);
        if (options & FUZZ_RECORDS && i % 1999 == 0)
            layer->bf16.weights[i] = 0x4480; /* a record */
        if (options & FUZZ_STORED && i / cols < 64 && i % cols / 32 == 1)
            layer->bf16.weights[i] = (uint16_t)(0x4480 | (mixed >> 20 & 0x7F)); /* a stored tile */
    }
    if (packed_layer_pack(&layer->bf16, &window, NULL) != TRF_OK)
        return;
    layer->memory = layer->bf16.packed;
    layer->view.packed = trf_packed_view_of(&layer->bf16.head, layer->memory);
    layer->lines_offset = layer->bf16.head.lines_offset;
    layer->line_bytes = layer->bf16.head.num_lines * TRF_PACKED_LINE_BYTES;
    layer->bytes = layer->bf16.head.common.buffer_bytes;
}

/* Packs codes and scales that `options` ask for: scales that need one constant or two, and few records. */
static inline void fuzz_pack_fp8(fuzz_packed_layer *layer, trf_pack8_input *input, uint8_t *codes, uint16_t *weights,
                                 float *scales, uint32_t options) {
    const size_t across = (input->cols - 1) / input->block_cols + 1,
                 blocks = across * ((input->rows - 1) / input->block_rows + 1), tables = input->second_scales ? 2 : 1;
    for (size_t i = 0; i < tables * blocks; i++)
        scales[i] = 0x1p-9f * (1 + (options & FUZZ_ONE_CONSTANT ? 0x1p-23f : 0x1p-7f) * (float)(i * 37 % 101));
    for (size_t i = 0; i < (size_t)input->rows * input->cols; i++) {
        const uint32_t mixed = (uint32_t)i * 0x9E3779B1u;
        const size_t row = i / input->cols, table = tables > 1 ? row / 8 % 2 : 0,
                     block = row / input->block_rows * across + i % input->cols / input->block_cols + table * blocks;
        codes[i] = (uint8_t)((mixed >> 24 & 0x80) | (mixed >> 16) % TRF_PACKED8_NAN_CODE);
        weights[i] = (uint16_t)trf_packed8_define_weight(codes[i], scales[block]);
        if (options & FUZZ_RECORDS && i % 5003 == 0)
            weights[i] = 0x3E80; /* a record */
    }
    trf_packed8_head head;
    if (trf_pack8_head(input, &head, NULL) != TRF_OK)
        return;
    layer->bytes = head.common.buffer_bytes;
    layer->memory = aligned_alloc(TRF_PACKED_ALIGNMENT, layer->bytes);
    if (!layer->memory || trf_pack8(input, &head, layer->memory, NULL) != TRF_OK)
        abort();
    layer->view = trf_packed8_view_of(&head, layer->memory);
    layer->lines_offset = head.lines_offset;
    layer->line_bytes = head.num_lines * TRF_PACKED_LINE_BYTES;
}

static inline void fuzz_make_fp8(fuzz_packed_layer *layer, uint32_t rows, uint32_t cols, uint32_t options) {
    const size_t count = (size_t)rows * cols;
    uint8_t *codes = fuzz_allocate(count);
    uint16_t *weights = fuzz_allocate(count * sizeof *weights);
    float *scales = fuzz_allocate(2 * count * sizeof *scales);
    const size_t blocks = ((rows - 1) / 64 + 1) * (size_t)((cols - 1) / 128 + 1);
    trf_pack8_input input = {.codes = codes,
                             .weights = weights,
                             .stride = cols,
                             .rows = rows,
                             .cols = cols,
                             .scales = scales,
                             .block_rows = 64,
                             .block_cols = 128,
                             .second_scales = options & FUZZ_IN_TURNS ? scales + blocks : NULL};
    fuzz_pack_fp8(layer, &input, codes, weights, scales, options);
    free(codes);
    free(weights);
    free(scales);
}

/* Makes a layer of the kind that `options` ask for; memory is NULL if it cannot be packed. */
static inline void fuzz_make_packed(fuzz_packed_layer *layer, uint32_t rows, uint32_t cols, uint32_t options) {
    memset(layer, 0, sizeof *layer);
    layer->is_fp8 = (options & FUZZ_IS_FP8) != 0;
    if (layer->is_fp8)
        fuzz_make_fp8(layer, rows, cols, options);
    else
        fuzz_make_bf16(layer, rows, cols, options);
}

static inline void fuzz_free_packed(fuzz_packed_layer *layer) {
    packed_layer_free(&layer->bf16);
    if (layer->is_fp8)
        free(layer->memory);
}

static inline void fuzz_spoil(const fuzz_packed_layer *layer, fuzz_bytes *bytes) {
    while (bytes->left >= 4) {
        const uint32_t at = fuzz_take_two(bytes), where = fuzz_take(bytes);
        const uint64_t after = layer->bytes - layer->lines_offset;
        layer->memory[layer->lines_offset + (where < 192 ? at % layer->line_bytes : (at * 257ull + where) % after)] =
            (uint8_t)fuzz_take(bytes);
    }
}

#endif
