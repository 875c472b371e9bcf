/* SPDX-License-Identifier: Apache-2.0 */
/* The one validator of layer blobs: every reader opens a blob here before it uses a byte of it. */
#ifndef TRF_VALIDATE_H
#define TRF_VALIDATE_H

#include "trf_error.h"
#include "trf_lane.h"
#include "trf_split.h"

/* A blob's head, checked. Pointers lead into the head that was passed in, which must outlive the view. */
typedef struct trf_blob_view {
    trf_header header;
    trf_extension extension;
    uint64_t num_tiles;
    const uint8_t *head;
    const uint16_t *frequency;  /* [256] */
    const trf_tile_meta *tiles; /* [num_tiles] */
    const void *scales;         /* F32 or F16, or NULL */
    uint64_t num_scales;
    const int8_t *row_offsets; /* exponent offsets of the rows, [rows], or NULL */
    const int8_t *col_offsets; /* of the columns, [cols], or NULL */
    uint32_t scale_cols;       /* scales in a row of the scale table: 1, or ceil(cols / scale_group_size) */
    uint32_t num_planes;
    uint32_t plane_width[TRF_MAX_PLANES]; /* widest first; they add up to raw_bits */
    trf_float_fields fields;
} trf_blob_view;

/* The rectangle that a tile covers and how it is cut. */
typedef struct trf_tile_shape {
    uint32_t row, col;               /* of the tile's first weight in the layer */
    uint32_t rows, cols;             /* h, w */
    uint32_t coded_rows, coded_cols; /* H, V; 0, 0 for a stored tile */
    uint32_t slab_cols;
    uint32_t slabs_across; /* Q: side by side in 32 rows */
    uint32_t num_slabs;    /* S; number s is the (s % Q)th of band s / Q */
} trf_tile_shape;

/* Where the parts of a tile's data lie, as byte offsets from its first byte. All 0 for a stored tile. */
typedef struct trf_tile_sections {
    uint32_t band_raw_bytes; /* band b's raw bits begin at b times this, a multiple of 128 */
    uint32_t slab_table;     /* u16[num_slabs]: where each slab's rANS streams end; 16-byte units from `rans_streams` */
    uint32_t rans_streams;   /* slab 0's begin here, slab s + 1's where slab s's end; slivers follow the last ones */
} trf_tile_sections;

/* Where one slab's two parts lie, as byte offsets from its tile's first byte. */
typedef struct trf_slab_location {
    trf_slab_shape shape;
    uint32_t raw;          /* chunk c at trf_chunk_offset from here */
    uint32_t rans_streams; /* begin; trf_lane.h has what is in them */
    uint32_t end;          /* of the rANS streams */
} trf_slab_location;

/* The most that a tile can take. It may have an exception for every weight, and each slab as many words as
 * lane_pair_words can say. No slab has more chunks of raw bits than its share of a whole tile's. */
enum {
    TRF_MAX_TILE_RAW_BYTES = TRF_TILE_SIZE * TRF_TILE_SIZE * TRF_MAX_RAW_BITS / 8,
    TRF_MAX_TILE_RANS_BYTES =
        4 * TRF_TILE_SIZE * TRF_TILE_SIZE +
        TRF_MAX_SLABS_PER_TILE * (TRF_RANS_FIXED_BYTES + 2 * 255 * TRF_LANE_PAIRS + TRF_ALIGNMENT - 1),
    TRF_MAX_SLAB_TABLE_BYTES = 2 * TRF_MAX_SLABS_PER_TILE,
    TRF_MAX_SLIVER_BYTES = 2 * 2 * (TRF_FRAGMENT_SIZE - 1) * TRF_TILE_SIZE,
    TRF_MAX_TILE_BYTES = (TRF_MAX_TILE_RAW_BYTES + TRF_MAX_TILE_RANS_BYTES + TRF_MAX_SLAB_TABLE_BYTES +
                          TRF_MAX_SLIVER_BYTES + TRF_TILE_ALIGNMENT - 1) /
                         TRF_TILE_ALIGNMENT * TRF_TILE_ALIGNMENT,
};
TRF_STATIC_ASSERT(TRF_MAX_TILE_RANS_BYTES / TRF_ALIGNMENT <= UINT16_MAX,
                  "a slab table's u16 can say where the last rANS streams end");
TRF_STATIC_ASSERT(TRF_MAX_SLAB_TABLE_BYTES % TRF_ALIGNMENT == 0, "the largest slab table has no padding");
TRF_STATIC_ASSERT(TRF_MAX_TILE_BYTES >= 2 * TRF_TILE_SIZE * TRF_TILE_SIZE, "a stored tile is no larger");

/* Size of the head (data_offset) that the first 320 bytes promise, so that a streaming reader knows how much to read.
 * Checks what those bytes can show. available_bytes: how many bytes there are at first_320_bytes; fewer than 320 are
 * TRF_ERR_TRUNCATED. blob_bytes: how many bytes of the blob there are, in its file, tensor or memory. */
trf_status trf_blob_head_bytes(const void *first_320_bytes, uint64_t available_bytes, uint64_t blob_bytes,
                               uint64_t *head_bytes, trf_error *err);

/* Opens a blob from its head (16-byte aligned, head_bytes = data_offset or more of the blob's first bytes). blob_bytes:
 * size of the whole blob. Checks all of FORMAT.md section 9 that the head shows, head_checksum included. Errors:
 * TRF_ERR_TRUNCATED, _MAGIC, _VERSION, _HEADER, _TABLE, _TILE, _CHECKSUM; _ARGUMENT if misaligned. err->offset counts
 * from the blob's first byte. */
trf_status trf_blob_open(const void *head, uint64_t head_bytes, uint64_t blob_bytes, trf_blob_view *view,
                         trf_error *err);

/* Checks one tile's data: checksum, sizes, slab table, start states, exceptions, padding. tile_bytes: data_size bytes,
 * 16-byte aligned. Errors: TRF_ERR_CHECKSUM, _TILE, _RANS (start state 0); offsets from the blob's first byte.
 * Thread-safe. */
trf_status trf_blob_check_tile(const trf_blob_view *view, uint64_t tile, const uint8_t *tile_bytes, trf_error *err);

/* Opens a blob with trf_blob_open and checks every tile. blob: the whole blob, 16-byte aligned. */
trf_status trf_blob_validate(const void *blob, uint64_t blob_bytes, trf_blob_view *view, trf_error *err);

/* Checksum of a tile's data, bound to its index. */
uint64_t trf_tile_checksum(const void *tile_bytes, uint64_t size, uint64_t tile);

/* head_checksum of a head whose header.head_checksum is ignored. */
uint64_t trf_head_checksum(const void *head, uint64_t head_bytes);

/* Cuts raw_bits into planes, widest first. @return their number. */
uint32_t trf_plane_widths(uint32_t raw_bits, uint32_t width[TRF_MAX_PLANES]);

/* The tile at (tile_row, tile_col) of a layer of rows x cols weights in slabs of slab_cols, inside it. coding as in the
 * tile's metadata. */
TRF_HD trf_tile_shape trf_tile_shape_at(uint32_t rows, uint32_t cols, uint32_t slab_cols, uint32_t tile_row,
                                        uint32_t tile_col, uint32_t coding) {
    trf_tile_shape shape;
    shape.row = tile_row * TRF_TILE_SIZE;
    shape.col = tile_col * TRF_TILE_SIZE;
    shape.rows = rows - shape.row < TRF_TILE_SIZE ? rows - shape.row : (uint32_t)TRF_TILE_SIZE;
    shape.cols = cols - shape.col < TRF_TILE_SIZE ? cols - shape.col : (uint32_t)TRF_TILE_SIZE;
    shape.coded_rows = coding == TRF_TILE_CODED ? shape.rows / TRF_FRAGMENT_SIZE * TRF_FRAGMENT_SIZE : 0;
    shape.coded_cols = coding == TRF_TILE_CODED ? shape.cols / TRF_FRAGMENT_SIZE * TRF_FRAGMENT_SIZE : 0;
    shape.slab_cols = slab_cols;
    shape.slabs_across = (shape.coded_cols + slab_cols - 1) / slab_cols;
    shape.num_slabs = (shape.coded_rows + TRF_SLAB_ROWS - 1) / TRF_SLAB_ROWS * shape.slabs_across;
    return shape;
}

/* tile < num_tiles. */
trf_tile_shape trf_tile_shape_of(const trf_header *header, uint64_t tile, uint32_t coding);

/* Where a slab's first weight lies, from the tile's; slab < tile->num_slabs. */
TRF_HD uint32_t trf_slab_row(const trf_tile_shape *tile, uint32_t slab) {
    return slab / tile->slabs_across * TRF_SLAB_ROWS;
}
TRF_HD uint32_t trf_slab_col(const trf_tile_shape *tile, uint32_t slab) {
    return slab % tile->slabs_across * tile->slab_cols;
}

/* Shape of the slab whose first weight lies at (row, col) of the tile, inside its coded region. */
TRF_HD trf_slab_shape trf_slab_shape_from(const trf_tile_shape *tile, uint32_t row, uint32_t col) {
    const uint32_t left = tile->coded_cols - col;
    trf_slab_shape shape;
    shape.row_blocks = tile->coded_rows - row >= TRF_SLAB_ROWS ? 2 : 1;
    shape.steps = (left < tile->slab_cols ? left : tile->slab_cols) / TRF_FRAGMENT_SIZE;
    return shape;
}

/* slab < tile->num_slabs. */
TRF_HD trf_slab_shape trf_slab_shape_at(const trf_tile_shape *tile, uint32_t slab) {
    return trf_slab_shape_from(tile, trf_slab_row(tile, slab), trf_slab_col(tile, slab));
}

trf_tile_sections trf_find_tile_sections(const trf_tile_shape *tile, uint32_t raw_bits);

/* slab < tile->num_slabs. tile_bytes: the tile's data, whose slab table is checked up to this slab. */
trf_slab_location trf_locate_slab(const trf_tile_shape *tile, const uint8_t *tile_bytes, uint32_t slab,
                                  uint32_t raw_bits);

/* Index of the scale of weight (row, col) in the scale table. */
TRF_HD uint64_t trf_scale_table_index(uint32_t granularity, uint32_t scale_group_size, uint32_t scale_cols,
                                      uint64_t row, uint64_t col) {
    switch (granularity) {
    case TRF_GRANULARITY_CHANNEL:
        return row;
    case TRF_GRANULARITY_SCALE_GROUP:
        return row * scale_cols + col / scale_group_size;
    case TRF_GRANULARITY_SCALE_BLOCK:
        return row / scale_group_size * scale_cols + col / scale_group_size;
    default:
        return 0;
    }
}
static inline uint64_t trf_scale_index(const trf_blob_view *view, uint64_t row, uint64_t col) {
    return trf_scale_table_index(view->extension.granularity, view->extension.scale_group_size, view->scale_cols, row,
                                 col);
}

#endif
