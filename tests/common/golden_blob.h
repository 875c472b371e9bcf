/* SPDX-License-Identifier: Apache-2.0 */
/* Golden blobs that get one fault at a time, and what validating them must then give: the status and the place. */
#ifndef GOLDEN_BLOB_H
#define GOLDEN_BLOB_H

#include "trf_validate.h"

#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define HEADER_FIELD(name) offsetof(trf_header, name), sizeof((trf_header *)0)->name
#define EXTENSION_FIELD(name) TRF_EXTENSION_OFFSET + offsetof(trf_extension, name), sizeof((trf_extension *)0)->name

/* Some of the golden files. */
#define ONE "bf16_1x1"
#define GROUP "int_r2_scale_group16_f16" /* 53x91 */
#define MODES "bf16_slabs128_modes_0123_and_stored"
#define SCALED "scaled_fp8_block128_pairs"

typedef struct blob {
    uint8_t *bytes; /* 16-byte aligned, and of exactly this size, for the address sanitizer */
    size_t size;
    trf_blob_view view; /* of the golden file; it reads from bytes */
    trf_error err;
} blob;

static inline blob read_path(const char *path) {
    blob golden = {0};
    FILE *file = fopen(path, "rb");
    ck_assert_msg(file != NULL, "%s", path);
    fseek(file, 0, SEEK_END);
    golden.size = (size_t)ftell(file);
    rewind(file);
    ck_assert_int_eq(posix_memalign((void **)&golden.bytes, 16, golden.size), 0);
    ck_assert_uint_eq(fread(golden.bytes, 1, golden.size, file), golden.size);
    fclose(file);
    ck_assert_msg(trf_blob_validate(golden.bytes, golden.size, &golden.view, &golden.err) == TRF_OK, "%s: %s", path,
                  golden.err.message);
    return golden;
}

static inline blob read_golden(const char *name) {
    char path[512];
    snprintf(path, sizeof path, "%s/golden/%s.trf", TRF_TEST_DATA_DIR, name);
    return read_path(path);
}

static inline void seal_head(blob *b) {
    const uint64_t checksum = trf_head_checksum(b->bytes, b->view.extension.data_offset);
    memcpy(b->bytes + offsetof(trf_header, head_checksum), &checksum, sizeof checksum);
}

static inline trf_tile_meta *tile_meta(blob *b, uint64_t tile) {
    return (trf_tile_meta *)(b->bytes + TRF_TILES_OFFSET) + tile;
}

static inline void seal(blob *b, uint64_t tile) {
    trf_tile_meta *meta = tile_meta(b, tile);
    meta->checksum = trf_tile_checksum(b->bytes + meta->data_offset, meta->data_size, tile);
    seal_head(b);
}

static inline trf_status validate(blob *b) {
    trf_blob_view view;
    return trf_blob_validate(b->bytes, b->size, &view, &b->err);
}

/* Expects a status, and the place that goes with it. */
static inline void expect_at(blob *b, trf_status status, uint64_t offset) {
    const trf_status is = validate(b);
    ck_assert_msg(is == status && (is == TRF_OK || (b->err.status == status && b->err.offset == offset)),
                  "%s at %llu, not %s at %llu: %s", trf_status_name(is), (unsigned long long)b->err.offset,
                  trf_status_name(status), (unsigned long long)offset, b->err.message);
}

/* Puts a number over bytes of the head, expects what comes of it, and puts back what was there. `sealed`: the head's
 * checksum is made again, or else what is found is found before it. */
static inline void try_head(blob *b, uint64_t at, size_t bytes, uint64_t value, int sealed, trf_status status,
                            uint64_t offset) {
    uint64_t before = 0;
    memcpy(&before, b->bytes + at, bytes);
    memcpy(b->bytes + at, &value, bytes);
    if (sealed)
        seal_head(b);
    expect_at(b, status, offset);
    memcpy(b->bytes + at, &before, bytes);
    seal_head(b);
}

/* The same with bytes of a tile, whose checksum and the head's fit then. */
static inline void try_tile(blob *b, uint64_t tile, uint64_t at, size_t bytes, uint64_t value, trf_status status,
                            uint64_t offset) {
    uint64_t before = 0;
    memcpy(&before, b->bytes + at, bytes);
    memcpy(b->bytes + at, &value, bytes);
    seal(b, tile);
    expect_at(b, status, offset);
    memcpy(b->bytes + at, &before, bytes);
    seal(b, tile);
}

#endif
