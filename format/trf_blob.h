/* SPDX-License-Identifier: Apache-2.0 */
/* The structures of a layer blob as they are on disk: FORMAT.md, sections 2 to 4, in C and CUDA. */
#ifndef TRF_BLOB_H
#define TRF_BLOB_H

#include "trf_host.h"

#include <stddef.h>
#include <stdint.h>

#ifdef __CUDACC__
#define TRF_HD __host__ __device__ __forceinline__
#else
#define TRF_HD static inline __attribute__((always_inline, unused))
#endif
#ifdef __cplusplus
#define TRF_STATIC_ASSERT(condition, text) static_assert(condition, text)
#else
#define TRF_STATIC_ASSERT(condition, text) _Static_assert(condition, text)
#endif

enum {
    TRF_MAGIC = 0x52414E53,
    TRF_EXPERT_INDEX_MAGIC = 0x58414E53, /* index in front of a 3-D tensor's blobs */
    TRF_FORMAT_VERSION = 4,
    TRF_SCALED_FP8_VERSION = 5, /* of blobs of scaled FP8 (trf_is_scaled_fp8), and of no others */
    TRF_TILE_SIZE = 256,        /* rows and columns */
    TRF_SLAB_ROWS = 32,
    TRF_MIN_SLAB_COLS = 128, /* a layer's slab_cols is one of these two */
    TRF_MAX_SLAB_COLS = 256,
    TRF_BANDS_PER_TILE = TRF_TILE_SIZE / TRF_SLAB_ROWS,       /* a band: 32 rows and the slabs side by side in them */
    TRF_MAX_SLABS_ACROSS = TRF_TILE_SIZE / TRF_MIN_SLAB_COLS, /* of a tile */
    TRF_MAX_SLABS_PER_TILE = TRF_BANDS_PER_TILE * TRF_MAX_SLABS_ACROSS,
    TRF_FRAGMENT_SIZE = 16, /* rows of an mma A fragment; also its columns */
    TRF_LANES = 32,
    TRF_LANE_PAIRS = 16,
    TRF_CHUNK_WEIGHTS = 64, /* weights of a lane whose raw bits lie together */
    TRF_MAX_LANE_WEIGHTS = TRF_SLAB_ROWS * TRF_MAX_SLAB_COLS / TRF_LANES, /* at most, 256 */
    TRF_ALPHABET = 256,
    TRF_MIN_PROBABILITY_BITS = 9,
    TRF_MAX_PROBABILITY_BITS = 12,
    /* Encoders choose these if they are not told, and the GPU's faster kernels are made for them. Pairs have more
     * symbols than 512 slots serve well: 10 bits halve the exceptions and save 0.03 bit a weight. */
    TRF_QUADS_PROBABILITY_BITS = 9,
    TRF_PAIRS_PROBABILITY_BITS = 10,
    TRF_DEFAULT_P_MAX_FREQUENCY = 255, /* these kernels hold a frequency in a byte */
    TRF_MAX_STATE_BITS = 16,
    TRF_MAX_SLOTS = 1 << TRF_MAX_PROBABILITY_BITS,
    TRF_MAX_RAW_BITS = 13,
    TRF_MAX_PLANES = 3,
    TRF_MAX_INT_RAW_BITS = 8,
    TRF_MAX_CODE = 1023, /* of an exception or stored element of the int codec, either sign */
    TRF_ALIGNMENT = 16,
    TRF_TILE_ALIGNMENT = 128, /* of tile data and raw bits: a cache line of the devices that read them */
    TRF_MAX_SCALE_GROUP_SIZE = 1 << 20,
};

typedef enum trf_tile_coding {
    TRF_TILE_CODED = 0,
    TRF_TILE_STORED = 1
} trf_tile_coding;

enum {
    TRF_PREDICT_ROW = 1,
    TRF_PREDICT_COL = 2
};

typedef enum trf_scale_dtype {
    TRF_SCALE_NONE = 0,
    TRF_SCALE_F32 = 1,
    TRF_SCALE_F16 = 2
} trf_scale_dtype;

typedef struct trf_header {
    uint32_t magic;
    uint16_t version;
    uint8_t codec;        /* trf_codec */
    uint8_t source_dtype; /* trf_dtype */
    uint8_t class_bits;
    uint8_t raw_bits;
    uint16_t tile_size;
    uint32_t rows;
    uint32_t cols;
    uint32_t num_tile_rows;
    uint32_t num_tile_cols;
    uint8_t probability_bits;
    uint8_t state_bits;
    uint8_t slab_rows;
    uint8_t rans_streams_per_lane;
    uint16_t slab_cols;
    uint8_t stored_element_bytes; /* of an element that is stored */
    uint8_t predictor_modes;
    uint32_t extension_offset;
    uint32_t extension_bytes;
    uint32_t flags;
    uint64_t blob_bytes;
    uint64_t head_checksum;
} trf_header;

typedef struct trf_extension {
    int16_t class_value[16];
    int32_t exponent_offset;
    uint8_t granularity; /* trf_granularity */
    uint8_t scale_dtype; /* trf_scale_dtype */
    uint16_t reserved0;
    uint32_t scale_group_size;
    int32_t scale_exponent;
    uint64_t frequency_offset;
    uint64_t tiles_offset;
    uint64_t scales_offset;
    uint64_t scales_bytes;
    uint64_t row_offsets_offset;
    uint64_t row_offsets_bytes;
    uint64_t col_offsets_offset;
    uint64_t col_offsets_bytes;
    uint64_t data_offset;
    uint64_t exception_count;
    uint8_t reserved1[128];
} trf_extension;

typedef struct trf_tile_meta {
    uint64_t data_offset;
    uint32_t data_size;
    uint8_t predictor_mode;
    uint8_t coding; /* trf_tile_coding */
    uint16_t reserved0;
    uint32_t exception_count;
    uint32_t reserved1;
    uint64_t checksum;
} trf_tile_meta;

TRF_STATIC_ASSERT(sizeof(trf_header) == 64, "header is 64 bytes");
TRF_STATIC_ASSERT(offsetof(trf_header, rows) == 12, "header layout");
TRF_STATIC_ASSERT(offsetof(trf_header, probability_bits) == 28, "header layout");
TRF_STATIC_ASSERT(offsetof(trf_header, extension_offset) == 36, "header layout");
TRF_STATIC_ASSERT(offsetof(trf_header, blob_bytes) == 48, "header layout");
TRF_STATIC_ASSERT(offsetof(trf_header, head_checksum) == 56, "header layout");
TRF_STATIC_ASSERT(sizeof(trf_extension) == 256, "extension is 256 bytes");
TRF_STATIC_ASSERT(offsetof(trf_extension, exponent_offset) == 32, "extension layout");
TRF_STATIC_ASSERT(offsetof(trf_extension, scale_group_size) == 40, "extension layout");
TRF_STATIC_ASSERT(offsetof(trf_extension, frequency_offset) == 48, "extension layout");
TRF_STATIC_ASSERT(offsetof(trf_extension, data_offset) == 112, "extension layout");
TRF_STATIC_ASSERT(offsetof(trf_extension, reserved1) == 128, "extension layout");
TRF_STATIC_ASSERT(sizeof(trf_tile_meta) == 32, "tile metadata is 32 bytes");
TRF_STATIC_ASSERT(offsetof(trf_tile_meta, checksum) == 24, "tile metadata layout");

enum {
    TRF_EXTENSION_OFFSET = sizeof(trf_header),
    TRF_FREQUENCY_OFFSET = TRF_EXTENSION_OFFSET + sizeof(trf_extension),
    TRF_FREQUENCY_BYTES = TRF_ALPHABET * 2,
    TRF_TILES_OFFSET = TRF_FREQUENCY_OFFSET + TRF_FREQUENCY_BYTES,
};

/* Rounds up to a multiple of 16. The caller has bounded `bytes` below 2^64 - 16. */
TRF_HD uint64_t trf_align(uint64_t bytes) { return (bytes + (TRF_ALIGNMENT - 1)) & ~(uint64_t)(TRF_ALIGNMENT - 1); }

/* Rounds up to a multiple of 128, where tile data begins and ends. */
TRF_HD uint64_t trf_tile_align(uint64_t bytes) {
    return (bytes + (TRF_TILE_ALIGNMENT - 1)) & ~(uint64_t)(TRF_TILE_ALIGNMENT - 1);
}

#endif
