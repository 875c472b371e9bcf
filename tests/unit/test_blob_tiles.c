/* SPDX-License-Identifier: Apache-2.0 */
/* The validator of blobs: where it says that tile metadata or a tile's data are wrong, of which a golden file gets one
 * fault at a time. */
#include "common/expect.h"
#include "common/golden_blob.h"
#include "common/run_suite.h"

/* ---- tile metadata ---- */

#define TILE_FIELD(name) offsetof(trf_tile_meta, name), sizeof((trf_tile_meta *)0)->name

static void try_meta(blob *b, uint64_t tile, size_t field, size_t bytes, uint64_t value, uint64_t offset) {
    try_head(b, TRF_TILES_OFFSET + tile * sizeof(trf_tile_meta) + field, bytes, value, 1, TRF_ERR_TILE, offset);
}

START_TEST(tile_metadata) {
    blob b = read_golden(MODES); /* 20x1180, five tiles in modes 0 to 3, the last one stored */
    const uint64_t sums = TRF_TILES_OFFSET;
    ck_assert_uint_eq(b.view.num_tiles, 5);
    ck_assert_uint_eq(b.view.tiles[4].coding, TRF_TILE_STORED);
    for (uint64_t t = 0; t < 5; t++) {
        const trf_tile_meta meta = *tile_meta(&b, t);
        const uint64_t at = TRF_TILES_OFFSET + 32 * t, limit = t == 4 ? 0 : 16 * 256;
        try_meta(&b, t, TILE_FIELD(coding), 2, at);
        try_meta(&b, t, TILE_FIELD(reserved0), 1, at);
        try_meta(&b, t, TILE_FIELD(reserved0), 0x8000, at);
        try_meta(&b, t, TILE_FIELD(reserved1), 1, at);
        try_meta(&b, t, TILE_FIELD(reserved1), 1u << 31, at);
        try_meta(&b, t, TILE_FIELD(predictor_mode), 4 | meta.predictor_mode, at);
        try_meta(&b, t, TILE_FIELD(exception_count), limit + 1, at);
        if (t < 4)
            try_meta(&b, t, TILE_FIELD(exception_count), limit, sums);
        try_meta(&b, t, TILE_FIELD(data_offset), meta.data_offset + 128, at);
        try_meta(&b, t, TILE_FIELD(data_offset), meta.data_offset - 128, at);
        try_meta(&b, t, TILE_FIELD(data_size), 0, at);
        try_meta(&b, t, TILE_FIELD(data_size), meta.data_size + 64, at);
        try_meta(&b, t, TILE_FIELD(data_size), b.size - meta.data_offset + 128, at);
        if (t < 4)
            try_meta(&b, t, TILE_FIELD(data_size), b.size - meta.data_offset, at + 32);
        try_meta(&b, t, TILE_FIELD(data_size), meta.data_size - 128, t == 4 ? sums : at + 32);
    }
    try_meta(&b, 4, TILE_FIELD(predictor_mode), 1, TRF_TILES_OFFSET + 32 * 4); /* stored */
    free(b.bytes);
}
END_TEST

START_TEST(sums_of_tile_metadata) {
    blob b = read_golden("fp16_row_offsets_on_one_tile"); /* the second of three tiles */
    try_meta(&b, 1, TILE_FIELD(predictor_mode), 0, TRF_TILES_OFFSET);
    try_meta(&b, 0, TILE_FIELD(predictor_mode), 2, TRF_TILES_OFFSET); /* the header has no such mode */
    try_head(&b, EXTENSION_FIELD(exception_count), 0, 1, TRF_ERR_TILE, TRF_TILES_OFFSET);
    const uint64_t at = TRF_EXTENSION_OFFSET + offsetof(trf_extension, exception_count);
    try_head(&b, at, 8, b.view.extension.exception_count + 1, 1, TRF_ERR_TILE, TRF_TILES_OFFSET);
    free(b.bytes);
}
END_TEST

/* Tiles with a side below 16 are stored. */
START_TEST(tiles_too_small_to_be_coded) {
    blob b = read_golden("bf16_16x16"), stored = read_golden("bf16_15x300_stored");
    try_head(&b, HEADER_FIELD(rows), 15, 1, TRF_ERR_TILE, TRF_TILES_OFFSET);
    try_head(&b, HEADER_FIELD(cols), 15, 1, TRF_ERR_TILE, TRF_TILES_OFFSET);
    try_meta(&stored, 1, TILE_FIELD(coding), TRF_TILE_CODED, TRF_TILES_OFFSET + 32);
    free(b.bytes);
    free(stored.bytes);
}
END_TEST

/* ---- a tile's data ---- */

/* Bases with slabs of all sorts: of 16 and 32 rows, one or two side by side, full chunks and others, with exceptions.
 */
static const char *const kSlabs[] = {
    "bf16_pairs_one_step",        "e4m3_quads_one_step",       "e5m2_pairs_one_step",
    "fp16_quads_slabs128_53x161", "e4m3_pairs_exceptions_T11", "int_i8_pairs",
    "int_pairs_r7_one_step",      "int_r1_channel_bf16",       "int_r5_scale_group64_f32",
    "int_quads_slabs128_50x407",  "scaled_fp8_tensor_pairs",   MODES};
enum {
    SLAB_BASES = sizeof kSlabs / sizeof *kSlabs
};

/* A slab in its blob. */
typedef struct slab_place {
    uint64_t raw, rans, end, exceptions, padding;
    uint32_t num_exceptions;
    trf_slab_shape shape;
} slab_place;

static slab_place find_slab(const blob *b, uint64_t tile, uint32_t slab) {
    const trf_tile_meta *meta = &b->view.tiles[tile];
    const trf_tile_shape shape = trf_tile_shape_of(&b->view.header, tile, meta->coding);
    const trf_slab_location location =
        trf_locate_slab(&shape, b->bytes + meta->data_offset, slab, b->view.header.raw_bits);
    slab_place place = {meta->data_offset + location.raw,
                        meta->data_offset + location.rans_streams,
                        meta->data_offset + location.end,
                        0,
                        0,
                        0,
                        location.shape};
    const uint8_t *rans = b->bytes + place.rans;
    place.exceptions = place.rans + 84;
    place.num_exceptions = (uint32_t)(rans[80] | rans[81] << 8);
    place.padding = place.exceptions + 4 * place.num_exceptions;
    for (uint32_t pair = 0; pair < 16; pair++)
        place.padding += 2 * rans[64 + pair];
    return place;
}

static void check_streams(blob *b, uint64_t tile, const slab_place *slab, uint64_t table_entry) {
    const uint64_t ends = slab->end - slab->rans, units = (slab->end - slab->rans) / 16;
    uint16_t end;
    memcpy(&end, b->bytes + table_entry, sizeof end);
    try_tile(b, tile, table_entry, 2, end - units, TRF_ERR_TILE, slab->rans);
    try_tile(b, tile, table_entry, 2, end - units + 5, TRF_ERR_TILE, slab->rans); /* 80 bytes hold no head */
    try_tile(b, tile, table_entry, 2, end + 1u, TRF_ERR_TILE, slab->rans);
    try_tile(b, tile, table_entry, 2, 0xFFFF, TRF_ERR_TILE, slab->rans);
    ck_assert_uint_gt(ends, 84);
    for (uint32_t lane = 0; lane < 32; lane++) {
        try_tile(b, tile, slab->rans + 2 * lane, 2, 0, TRF_ERR_RANS, slab->rans + 2 * lane);
        try_tile(b, tile, slab->rans + 2 * lane, 2, 0x0100, TRF_OK, 0); /* only decoding sees that */
    }
    const uint64_t first_pair = slab->rans + 64, last_pair = slab->rans + 79;
    try_tile(b, tile, first_pair, 1, b->bytes[first_pair] + 8u, TRF_ERR_TILE, slab->rans);
    try_tile(b, tile, last_pair, 1, b->bytes[last_pair] + 8u, TRF_ERR_TILE, slab->rans);
    try_tile(b, tile, slab->rans + 80, 2, slab->num_exceptions + 4, TRF_ERR_TILE, slab->rans);
    try_tile(b, tile, slab->rans + 82, 2, 1, TRF_ERR_TILE, slab->rans + 82);
    try_tile(b, tile, slab->rans + 82, 2, 0x100, TRF_ERR_TILE, slab->rans + 82);
    for (uint64_t at = slab->padding; at < slab->end; at++)
        try_tile(b, tile, at, 1, 1, TRF_ERR_TILE, at);
}

/* An exception's bits of no meaning, its order, and its place behind the slab's last weight. */
static void check_list(blob *b, uint64_t tile, const slab_place *slab) {
    const uint32_t weights = 8 * slab->shape.row_blocks * slab->shape.steps;
    for (uint32_t e = 0; e < slab->num_exceptions; e += slab->num_exceptions / 3 + 1) {
        const uint64_t at = slab->exceptions + 4ull * e;
        uint32_t exception, last;
        memcpy(&exception, b->bytes + at, 4);
        memcpy(&last, b->bytes + slab->exceptions + 4ull * (slab->num_exceptions - 1), 4);
        for (uint32_t bit = 16; bit < 19; bit++)
            try_tile(b, tile, at, 4, exception | 1u << bit, TRF_ERR_TILE, at);
        if (e > 0) {
            uint32_t before;
            memcpy(&before, b->bytes + at - 4, 4);
            try_tile(b, tile, at, 4, before, TRF_ERR_TILE, at);
        }
        if (e + 1 < slab->num_exceptions)
            try_tile(b, tile, at, 4, (last & ~0xFFFFu) | (exception & 0xFFFF), TRF_ERR_TILE, at + 4);
        try_tile(b, tile, at, 4, 32 * weights << 19 | (exception & 0xFFFF), TRF_ERR_TILE, at);
    }
    if (slab->num_exceptions) {
        const uint64_t at = slab->exceptions + 4ull * (slab->num_exceptions - 1);
        uint32_t exception;
        memcpy(&exception, b->bytes + at, 4);
        try_tile(b, tile, at, 4, (32 * weights - 1) << 19 | (exception & 0xFFFF), TRF_OK, 0);
    }
}

/* loop: bases. */
START_TEST(a_tile_is_wrong_where_it_says) {
    blob b = read_golden(kSlabs[_i]);
    for (uint64_t t = 0; t < b.view.num_tiles; t++) {
        const trf_tile_meta meta = b.view.tiles[t];
        const trf_tile_shape shape = trf_tile_shape_of(&b.view.header, t, meta.coding);
        uint64_t table = meta.data_offset;
        for (uint32_t s = 0; s < shape.num_slabs; s++)
            table += trf_raw_bytes(b.view.header.raw_bits, trf_lane_weights(find_slab(&b, t, s).shape));
        for (uint32_t s = 0; s < shape.num_slabs; s++) {
            const slab_place slab = find_slab(&b, t, s);
            check_streams(&b, t, &slab, table + 2 * s);
            check_list(&b, t, &slab);
        }
        for (uint64_t at = table + 2 * shape.num_slabs; at % 16; at++)
            try_tile(&b, t, at, 1, 1, TRF_ERR_TILE, at);
        try_tile(&b, t, meta.data_offset + meta.data_size - 1, 1, 1, TRF_ERR_TILE,
                 meta.data_offset + meta.data_size - 1);
        tile_meta(&b, t)->checksum ^= 1;
        seal_head(&b);
        expect_at(&b, TRF_ERR_CHECKSUM, meta.data_offset);
        seal(&b, t);
    }
    free(b.bytes);
}
END_TEST

/* How many of a slab's raw bits are unused: FORMAT.md section 7. */
static uint32_t unused_bits(uint32_t raw_bits, uint32_t weights) {
    const uint32_t left = weights % 64;
    uint32_t unused = 0;
    for (uint32_t width = 1; width <= 8; width *= 2)
        if (raw_bits & width)
            unused += 32 * ((left * width + 31) / 32 * 32 - left * width);
    return unused;
}

/* loop: bases, of which the first ones have small slabs. Every raw bit is one of a weight, or refused where it is. */
START_TEST(unused_raw_bits) {
    if (test_quick() && _i > 2 && _i != 7)
        return;
    blob b = read_golden(kSlabs[_i]);
    const trf_tile_shape shape = trf_tile_shape_of(&b.view.header, 0, b.view.tiles[0].coding);
    const uint32_t s = shape.num_slabs - 1;
    const slab_place slab = find_slab(&b, 0, s);
    const uint32_t weights = 8 * slab.shape.row_blocks * slab.shape.steps;
    const uint64_t end = slab.raw + trf_raw_bytes(b.view.header.raw_bits, weights);
    uint32_t refused = 0;
    for (uint64_t bit = 8 * slab.raw; bit < 8 * end; bit++) {
        b.bytes[bit / 8] ^= (uint8_t)(1 << bit % 8);
        seal(&b, 0);
        if (validate(&b) != TRF_OK) {
            refused++;
            expect_at(&b, TRF_ERR_TILE, bit / 32 * 4);
        }
        b.bytes[bit / 8] ^= (uint8_t)(1 << bit % 8);
    }
    ck_assert_uint_eq(refused, unused_bits(b.view.header.raw_bits, weights));
    free(b.bytes);
}
END_TEST

/* Codes that are exceptions lie in -1024 to 1023; elements of 8 bits are below 256; others may be anything. */
START_TEST(elements_of_exceptions) {
    static const struct {
        const char *base;
        int32_t first, last;
    } cases[] = {{"int_pairs_r3_T5", -1024, 1023},
                 {"e4m3_pairs_exceptions_T11", 0, 255},
                 {"e5m2_few_symbols", 0, 255},
                 {"fp16_quads_exceptions_T9", -32768, 32767},
                 {"scaled_fp8_channel_quads_exceptions", -32768, 32767}};
    blob b = read_golden(cases[_i].base);
    const slab_place slab = find_slab(&b, 0, 0);
    uint32_t exception;
    memcpy(&exception, b.bytes + slab.exceptions, 4);
    for (int32_t element = -32768; element <= 32767; element += element % 128 == 126 || element % 128 == -2 ? 1 : 61) {
        const int good = cases[_i].first < 0 ? element >= cases[_i].first && element <= cases[_i].last
                                             : (element & 0xFFFF) <= cases[_i].last;
        try_tile(&b, 0, slab.exceptions, 4, (exception & ~0xFFFFu) | (element & 0xFFFF), good ? TRF_OK : TRF_ERR_TILE,
                 slab.exceptions);
    }
    for (int32_t bound = 0; bound < 4; bound++) {
        const int32_t element = (bound < 2 ? cases[_i].first : cases[_i].last) + (bound % 2 ? 1 : bound < 2 ? -1 : 0);
        const int32_t wrapped = (int16_t)element;
        const int good = cases[_i].first < 0 ? wrapped >= cases[_i].first && wrapped <= cases[_i].last
                                             : (wrapped & 0xFFFF) <= cases[_i].last;
        try_tile(&b, 0, slab.exceptions, 4, (exception & ~0xFFFFu) | (element & 0xFFFF), good ? TRF_OK : TRF_ERR_TILE,
                 slab.exceptions);
    }
    free(b.bytes);
}
END_TEST

/* A tile of another size, with metadata that fit: what is in it must fill it. */
START_TEST(sizes_of_tiles) {
    static const char *const names[] = {"bf16_pairs_one_step", "bf16_1x1", "int_i8_pairs"};
    blob b = read_golden(names[_i]);
    const trf_tile_meta meta = b.view.tiles[0];
    blob longer = b;
    longer.size = b.size + 128;
    ck_assert_int_eq(posix_memalign((void **)&longer.bytes, 16, longer.size), 0);
    for (uint32_t size = 128; size <= meta.data_size + 128; size += 128) {
        memset(longer.bytes, 0, longer.size);
        memcpy(longer.bytes, b.bytes, meta.data_offset + (size < meta.data_size ? size : meta.data_size));
        blob cut = longer;
        cut.size = meta.data_offset + size;
        ck_assert_int_eq(posix_memalign((void **)&cut.bytes, 16, cut.size), 0); /* of exactly this size */
        memcpy(cut.bytes, longer.bytes, cut.size);
        ((trf_header *)cut.bytes)->blob_bytes = cut.size;
        tile_meta(&cut, 0)->data_size = size;
        seal(&cut, 0);
        const trf_status status = validate(&cut);
        ck_assert_int_eq(status, size == meta.data_size ? TRF_OK : TRF_ERR_TILE);
        if (size > meta.data_size)
            ck_assert_uint_eq(cut.err.offset, meta.data_offset);
        free(cut.bytes);
    }
    free(longer.bytes);
    free(b.bytes);
}
END_TEST

/* One exception fewer in the metadata and in the sum than the slabs have. */
START_TEST(exceptions_of_slabs_add_up) {
    blob b = read_golden("e4m3_pairs_exceptions_T11");
    tile_meta(&b, 0)->exception_count--;
    ((trf_extension *)(b.bytes + TRF_EXTENSION_OFFSET))->exception_count--;
    seal_head(&b);
    expect_at(&b, TRF_ERR_TILE, b.view.tiles[0].data_offset);
    free(b.bytes);
}
END_TEST

int main(void) {
    Suite *suite = suite_create("blob_tiles");
    TCase *tiles = tcase_create("tiles");
    tcase_add_test(tiles, tile_metadata);
    tcase_add_test(tiles, sums_of_tile_metadata);
    tcase_add_test(tiles, tiles_too_small_to_be_coded);
    tcase_add_loop_test(tiles, a_tile_is_wrong_where_it_says, 0, SLAB_BASES);
    tcase_add_loop_test(tiles, unused_raw_bits, 0, SLAB_BASES);
    tcase_add_loop_test(tiles, elements_of_exceptions, 0, 5);
    tcase_add_loop_test(tiles, sizes_of_tiles, 0, 3);
    tcase_add_test(tiles, exceptions_of_slabs_add_up);
    suite_add_tcase(suite, tiles);
    return run_suite(suite);
}
