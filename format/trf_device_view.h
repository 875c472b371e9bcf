/* SPDX-License-Identifier: Apache-2.0 */
/* What device code sees of a layer in memory: pointers into its blob, where each slab lies, and the fault in which a
 * corrupt tile is noted; and how such memory is aligned. The CPU's device fills in a view, too, so that it can share
 * that code. C and CUDA. */
#ifndef TRF_DEVICE_VIEW_H
#define TRF_DEVICE_VIEW_H

#include "transfuse.h"
#include "trf_blob.h"
#include "trf_validate.h"

enum {
    TRF_DEVICE_ALIGNMENT = 256 /* of device memory, and of what is laid out in one allocation */
};

TRF_HD uint64_t trf_device_align(uint64_t bytes) {
    return (bytes + TRF_DEVICE_ALIGNMENT - 1) & ~(uint64_t)(TRF_DEVICE_ALIGNMENT - 1);
}

/* Where the slab at rows 32*band and columns slab_cols*j lies: entry [band * num_panels + j]. */
typedef struct trf_device_slab {
    uint32_t raw_offset_128; /* in multiples of 128 bytes, from the blob's first byte: where its raw bits begin */
    uint16_t rans_offset_16; /* in multiples of 16 bytes, from the raw bits' first byte: where its rANS streams begin */
    /* The size of its rANS streams in multiples of 16 bytes. 0 means that there is no slab (a stored tile, or slivers
     * alone). */
    uint16_t rans_size_16;
} trf_device_slab;
TRF_STATIC_ASSERT(sizeof(trf_device_slab) == 8, "kernels load a slab's entry as 8 bytes");
TRF_STATIC_ASSERT(TRF_MAX_TILE_BYTES / TRF_ALIGNMENT <= UINT16_MAX,
                  "rANS streams are in reach of their slab's raw bits");

/* Where a slab's raw bits and its rANS streams begin in the blob, in bytes. */
TRF_HD uint64_t trf_device_slab_raw(trf_device_slab slab) { return (uint64_t)slab.raw_offset_128 * TRF_TILE_ALIGNMENT; }
TRF_HD uint64_t trf_device_slab_rans_streams(trf_device_slab slab) {
    return trf_device_slab_raw(slab) + (uint32_t)slab.rans_offset_16 * TRF_ALIGNMENT;
}

/* A fault: which tile is corrupt. The first thread that meets one sets it; later ones change nothing. */
typedef struct trf_device_fault {
    uint32_t set;
    uint32_t tile_low, tile_high;
} trf_device_fault;

/* Kernels get this by value. The pointers are device pointers; they lead into the blob for what a blob holds. For a
 * layer in another layout, only buffer, buffer_bytes, rows, cols, codec and source_dtype are set. */
typedef struct trf_device_view {
    const uint8_t *buffer; /* a coded layer's blob */
    uint64_t buffer_bytes;
    const trf_device_slab *slabs; /* [num_bands][num_panels] */
    const uint32_t *decode_table; /* [2^p], trf_slot_entry; the scale pairs follow it (trf_scale_pairs_of) */
    const trf_tile_meta *tiles;   /* [num_tile_rows * num_tile_cols] */
    const void *scales;           /* F32 or F16, or NULL */
    const int8_t *row_offsets;    /* exponent offsets of the rows, [rows], or NULL */
    const int8_t *col_offsets;    /* of the columns, [cols], or NULL */
    trf_device_fault *fault;
    uint32_t rows, cols, num_tile_rows, num_tile_cols;
    uint32_t slab_cols;  /* 128 or 256 */
    uint32_t num_panels; /* ceil(cols / slab_cols) */
    uint32_t num_bands;  /* ceil(rows / 32) */
    uint32_t codec, source_dtype, class_bits, raw_bits, probability_bits, state_bits, stored_element_bytes;
    uint32_t granularity, scale_dtype, scale_group_size, scale_cols;
    uint32_t scale_row; /* the row of the scale table's layer that row 0 is: 0, but for a part of some rows of tiles */
    int32_t scale_exponent, exponent_offset;
    uint32_t num_planes, plane_width[TRF_MAX_PLANES];
    /* What a class stands for. For float codecs it is an exponent less its offsets (with quads, without its two low
     * bits); for the int codec it is the code that the raw bits are added to. */
    int16_t class_value[16];
} trf_device_view;

/* The scale pairs of a layer of scaled FP8 on a GPU, which products take in place of its scales: for each entry of the
 * scale table, in its order, what trf_packed8_find_pair gives for the scale times 2^-8. */
TRF_HD const uint32_t *trf_scale_pairs_of(const trf_device_view *view) {
    return view->decode_table + (1u << view->probability_bits);
}

/* The predictor mode of a tile, whose metadata say `stored`. In device memory that may no longer be what was checked:
 * the mode never names offsets that the layer does not have. */
TRF_HD uint32_t trf_bounded_predictor_mode(const trf_device_view *view, uint32_t stored) {
    const uint32_t rows = view->row_offsets ? (uint32_t)TRF_PREDICT_ROW : 0,
                   cols = view->col_offsets ? (uint32_t)TRF_PREDICT_COL : 0;
    return stored & (rows | cols);
}

/* One expert of several, as kernels see it: an array of them lies in device memory. */
typedef struct trf_expert {
    trf_device_view view;
    uint32_t has_edges, unused;
} trf_expert;

#endif
