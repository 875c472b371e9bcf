/* A layer in device memory, as the kernels see it. Made by runtime/trf_device.c; plain C and CUDA. */
#ifndef TRF_DEVICE_LAYER_H
#define TRF_DEVICE_LAYER_H

#include "transfuse.h"
#include "trf_blob.h"
#include "trf_validate.h"

/* Where the slab at rows 32*band and columns slab_cols*j lies: entry [band * num_slab_cols + j]. */
typedef struct trf_device_slab {
    uint32_t raw_units;  /* of 128 bytes, from the blob's first byte: where its raw bits begin */
    uint16_t rans_units; /* of 16 bytes, from the raw bits' first byte: where its streams begin */
    /* Of 16 bytes, of its streams; 0: there is no slab (a stored tile, or slivers alone). */
    uint16_t size_units;
} trf_device_slab;
TRF_STATIC_ASSERT(sizeof(trf_device_slab) == 8, "kernels load a slab's entry as 8 bytes");
TRF_STATIC_ASSERT(TRF_MAX_TILE_BYTES / TRF_ALIGNMENT <= UINT16_MAX, "streams are in reach of their slab's raw bits");

/* Where its two parts begin in the blob. */
TRF_HD uint64_t trf_device_slab_raw(trf_device_slab slab) { return (uint64_t)slab.raw_units * TRF_TILE_ALIGNMENT; }
TRF_HD uint64_t trf_device_slab_rans_streams(trf_device_slab slab) {
    return trf_device_slab_raw(slab) + (uint32_t)slab.rans_units * TRF_ALIGNMENT;
}

/* What a kernel's first threads set when a tile turns out corrupt; the first one stays. */
typedef struct trf_device_fault {
    uint32_t set;
    uint32_t tile_low, tile_high;
} trf_device_fault;

/* Passed to kernels by value. Pointers are device pointers, into the blob where a blob holds it. */
typedef struct trf_device_view {
    const uint8_t *blob;
    uint64_t blob_bytes;
    const trf_device_slab *slabs; /* [num_bands][num_slab_cols] */
    const uint32_t *slots;        /* [2^p], trf_slot_entry */
    const trf_tile_meta *tiles;   /* [num_tile_rows * num_tile_cols] */
    const void *scales;           /* F32 or F16, or NULL */
    const int8_t *row_offsets;    /* [rows] or NULL */
    const int8_t *col_offsets;    /* [cols] or NULL */
    trf_device_fault *fault;
    uint32_t rows, cols, num_tile_rows, num_tile_cols;
    uint32_t slab_cols;     /* 128 or 256 */
    uint32_t num_slab_cols; /* ceil(cols / slab_cols) */
    uint32_t num_bands;     /* ceil(rows / 32) */
    uint32_t codec, source_dtype, class_bits, raw_bits, probability_bits, state_bits, stored_bytes;
    uint32_t granularity, scale_dtype, scale_group_size, scale_cols;
    int32_t scale_exponent, exponent_offset;
    uint32_t num_planes, plane_width[TRF_MAX_PLANES];
    int16_t class_value[16];
} trf_device_view;

/* Properties of the whole layer that decide which kernels take it; found on the host while it is uploaded. */
typedef struct trf_layer_traits {
    uint64_t irregular_weights;   /* in stored tiles, slivers, and slabs that are not 32 rows of whole chunks */
    uint64_t slabs;               /* coded ones */
    uint32_t max_rans_bytes;      /* of a slab's streams */
    uint32_t max_frequency;       /* of a symbol */
    uint32_t predictor_modes;     /* union over tiles */
    int mixed_modes;              /* coded tiles differ in their mode */
    uint32_t max_abs_offset;      /* bound of exponents' |D + row offset + column offset| */
    uint32_t max_abs_code;        /* bound for coded, exceptional and stored codes of the int codec */
    int exceptions_fit_fragments; /* every exception as a fragment has it is exact in the fragment's type */
} trf_layer_traits;

/* The exponent by which matrix fragments of a codec are too small, beside their offsets: kernels make F16 of E4M3 by
 * moving bits (trf_fragment.cuh). */
TRF_HD int trf_fragment_exponent(uint32_t codec) { return codec == TRF_CODEC_E4M3 ? 8 : 0; }

/* Which rows and columns of a layer's matrix are meant: all of them, or those of a shard, which has whole tiles. */
typedef struct trf_shard_range {
    uint32_t row, rows, col, cols;
} trf_shard_range;

struct trf_device_layer {
    trf_context *context;
    int device;          /* the context's */
    uint32_t serial;     /* of this layer among all that the process made; plans name it */
    trf_layer_info info; /* rows and cols: the shard's */
    trf_shard_range shard;
    uint64_t memory_bytes; /* of device memory */
    trf_device_view view;  /* on the CPU without slabs and fault */
    /* A GPU's. */
    trf_layer_traits traits;
    void *memory; /* the one device allocation; NULL: of a stack, which has it */
    /* The CPU's; on a GPU, of an offloaded layer: where its blob lies in host memory. */
    trf_layer *host;
    struct trf_cpu_fault *fault;
};

#endif
