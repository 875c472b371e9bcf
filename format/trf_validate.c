/* SPDX-License-Identifier: Apache-2.0 */
/* The validator: FORMAT.md section 9, in the order that its last paragraph gives. Every sum and product of untrusted
 * numbers is done in 64 bits on operands that were bounded before. */
#include "trf_validate.h"

#include "trf_checksum.h"
#include "trf_layout_head.h"
#include "trf_number_formats.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <math.h>
#include <string.h>

#define TRY(call)                                                                                                      \
    do {                                                                                                               \
        trf_status try_ = (call);                                                                                      \
        if (try_ != TRF_OK)                                                                                            \
            return try_;                                                                                               \
    } while (0)

uint64_t trf_tile_checksum(const void *tile_bytes, uint64_t size, uint64_t tile) {
    return trf_checksum_best()(tile_bytes, size, tile);
}

uint64_t trf_head_checksum(const void *head, uint64_t head_bytes) {
    static const uint64_t kZero = 0;
    const size_t at = offsetof(trf_header, head_checksum);
    XXH3_state_t state;
    XXH3_64bits_reset(&state);
    XXH3_64bits_update(&state, head, at);
    XXH3_64bits_update(&state, &kZero, sizeof kZero);
    XXH3_64bits_update(&state, (const uint8_t *)head + sizeof(trf_header), head_bytes - sizeof(trf_header));
    return XXH3_64bits_digest(&state);
}

uint32_t trf_plane_widths(uint32_t raw_bits, uint32_t width[TRF_MAX_PLANES]) {
    uint32_t count = 0;
    for (uint32_t w = 8; w > 0 && count < TRF_MAX_PLANES; w >>= 1)
        if (raw_bits & w)
            width[count++] = w;
    return count;
}

trf_tile_shape trf_tile_shape_of(const trf_header *header, uint64_t tile, uint32_t coding) {
    return trf_tile_shape_at(header->rows, header->cols, header->slab_cols, (uint32_t)(tile / header->num_tile_cols),
                             (uint32_t)(tile % header->num_tile_cols), coding);
}

static uint32_t slab_raw_bytes(const trf_tile_shape *tile, uint32_t slab, uint32_t raw_bits) {
    return trf_raw_bytes(raw_bits, trf_lane_weights(trf_slab_shape_at(tile, slab)));
}

/* Bytes of raw bits of the slabs side by side in a band, of which `slab` is the first. All but the last have its
 * width. */
static uint32_t band_raw_bytes(const trf_tile_shape *tile, uint32_t slab, uint32_t raw_bits) {
    const uint32_t others = tile->slabs_across - 1;
    return others * slab_raw_bytes(tile, slab, raw_bits) + slab_raw_bytes(tile, slab + others, raw_bits);
}

trf_tile_sections trf_find_tile_sections(const trf_tile_shape *tile, uint32_t raw_bits) {
    trf_tile_sections sections = {0, 0, 0};
    if (tile->num_slabs == 0)
        return sections;
    /* The last band may have fewer rows than the others. */
    const uint32_t last = tile->num_slabs / tile->slabs_across - 1;
    sections.band_raw_bytes = band_raw_bytes(tile, 0, raw_bits);
    sections.slab_table = last * sections.band_raw_bytes + band_raw_bytes(tile, last * tile->slabs_across, raw_bits);
    sections.rans_streams = sections.slab_table + (uint32_t)trf_align(2ull * tile->num_slabs);
    return sections;
}

trf_slab_location trf_locate_slab(const trf_tile_shape *tile, const uint8_t *tile_bytes, uint32_t slab,
                                  uint32_t raw_bits) {
    const trf_tile_sections sections = trf_find_tile_sections(tile, raw_bits);
    const uint16_t *ends = (const uint16_t *)(tile_bytes + sections.slab_table);
    const uint32_t beside = slab % tile->slabs_across; /* slabs before it in its band, all of one width */
    return (trf_slab_location){
        .shape = trf_slab_shape_at(tile, slab),
        .raw = slab / tile->slabs_across * sections.band_raw_bytes +
               (beside ? beside * slab_raw_bytes(tile, slab - beside, raw_bits) : 0),
        .rans_streams = sections.rans_streams + (slab ? ends[slab - 1] * (uint32_t)TRF_ALIGNMENT : 0),
        .end = sections.rans_streams + ends[slab] * (uint32_t)TRF_ALIGNMENT,
    };
}

/* ---- the head ---- */

#define HEADER_FAIL(field, ...)                                                                                        \
    trf_fail(err, TRF_ERR_HEADER, offsetof(trf_header, field), "header field " #field " " __VA_ARGS__)
#define EXTENSION_FAIL(field, ...)                                                                                     \
    trf_fail(err, TRF_ERR_HEADER, TRF_EXTENSION_OFFSET + offsetof(trf_extension, field),                               \
             "extension field " #field " " __VA_ARGS__)

static int codec_takes(uint32_t dtype, uint32_t codec, uint32_t granularity) {
    switch (codec) {
    case TRF_CODEC_BF16:
        return dtype == TRF_DTYPE_BF16 || dtype == TRF_DTYPE_F32;
    case TRF_CODEC_FP16:
        return dtype == TRF_DTYPE_F16;
    case TRF_CODEC_E4M3: /* BF16: scaled FP8 */
        return granularity == TRF_GRANULARITY_NONE ? dtype == TRF_DTYPE_F8_E4M3 : dtype == TRF_DTYPE_BF16;
    case TRF_CODEC_E5M2:
        return dtype == TRF_DTYPE_F8_E5M2;
    case TRF_CODEC_INT:
        return granularity == TRF_GRANULARITY_NONE
                   ? dtype == TRF_DTYPE_I8
                   : dtype == TRF_DTYPE_F32 || dtype == TRF_DTYPE_F16 || dtype == TRF_DTYPE_BF16;
    default:
        return 0;
    }
}

static trf_status check_header(const trf_header *h, trf_error *err) {
    if (h->magic == TRF_LAYOUT_MAGIC)
        return trf_fail(err, TRF_ERR_MAGIC, 0, "not a layer blob, but a layer's buffer in another layout");
    if (h->magic != TRF_MAGIC)
        return trf_fail(err, TRF_ERR_MAGIC, 0, "magic is 0x%08X, not 0x%08X: not a layer blob", h->magic, TRF_MAGIC);
    const int scaled_fp8 = trf_is_scaled_fp8(h->codec, h->source_dtype);
    if (h->version != TRF_FORMAT_VERSION && !(h->version == TRF_SCALED_FP8_VERSION && scaled_fp8))
        return trf_fail(err, TRF_ERR_VERSION, offsetof(trf_header, version),
                        "format version %u, this build reads %d, and %d of scaled FP8", h->version, TRF_FORMAT_VERSION,
                        TRF_SCALED_FP8_VERSION);
    if (h->codec < TRF_CODEC_BF16 || h->codec > TRF_CODEC_INT)
        return HEADER_FAIL(codec, "is %u", h->codec);
    if (h->source_dtype < TRF_DTYPE_F32 || h->source_dtype > TRF_DTYPE_I8)
        return HEADER_FAIL(source_dtype, "is %u", h->source_dtype);
    if (h->class_bits != 4 && h->class_bits != 2)
        return HEADER_FAIL(class_bits, "is %u, not 2 or 4", h->class_bits);
    if (h->codec == TRF_CODEC_INT ? h->raw_bits > TRF_MAX_INT_RAW_BITS
                                  : h->raw_bits != trf_float_raw_bits(h->codec, h->class_bits))
        return HEADER_FAIL(raw_bits, "is %u, which codec %u does not have", h->raw_bits, h->codec);
    if (h->tile_size != TRF_TILE_SIZE)
        return HEADER_FAIL(tile_size, "is %u, not %d", h->tile_size, TRF_TILE_SIZE);
    if (h->rows < 1 || h->rows > INT32_MAX)
        return HEADER_FAIL(rows, "is %u", h->rows);
    if (h->cols < 1 || h->cols > INT32_MAX)
        return HEADER_FAIL(cols, "is %u", h->cols);
    if (h->num_tile_rows != (h->rows + TRF_TILE_SIZE - 1) / TRF_TILE_SIZE)
        return HEADER_FAIL(num_tile_rows, "is %u for %u rows", h->num_tile_rows, h->rows);
    if (h->num_tile_cols != (h->cols + TRF_TILE_SIZE - 1) / TRF_TILE_SIZE)
        return HEADER_FAIL(num_tile_cols, "is %u for %u columns", h->num_tile_cols, h->cols);
    if (h->probability_bits < TRF_MIN_PROBABILITY_BITS || h->probability_bits > TRF_MAX_PROBABILITY_BITS)
        return HEADER_FAIL(probability_bits, "is %u", h->probability_bits);
    if (h->state_bits < h->probability_bits || h->state_bits > TRF_MAX_STATE_BITS)
        return HEADER_FAIL(state_bits, "is %u", h->state_bits);
    if (h->slab_rows != TRF_SLAB_ROWS)
        return HEADER_FAIL(slab_rows, "is %u, not %d", h->slab_rows, TRF_SLAB_ROWS);
    if (h->rans_streams_per_lane != 1)
        return HEADER_FAIL(rans_streams_per_lane, "is %u, not 1", h->rans_streams_per_lane);
    if (h->slab_cols != TRF_MIN_SLAB_COLS && h->slab_cols != TRF_MAX_SLAB_COLS)
        return HEADER_FAIL(slab_cols, "is %u, not %d or %d", h->slab_cols, TRF_MIN_SLAB_COLS, TRF_MAX_SLAB_COLS);
    if (scaled_fp8 && h->version != TRF_SCALED_FP8_VERSION)
        return HEADER_FAIL(source_dtype, "is %u, which codec %u takes in version %d only", h->source_dtype, h->codec,
                           TRF_SCALED_FP8_VERSION);
    const int fp8 = (h->codec == TRF_CODEC_E4M3 && !scaled_fp8) || h->codec == TRF_CODEC_E5M2;
    if (h->stored_element_bytes != (fp8 ? 1 : 2) && !(h->codec == TRF_CODEC_INT && h->stored_element_bytes == 1))
        return HEADER_FAIL(stored_element_bytes, "is %u for codec %u", h->stored_element_bytes, h->codec);
    if (h->predictor_modes > (h->codec == TRF_CODEC_INT ? 0 : TRF_PREDICT_ROW | TRF_PREDICT_COL))
        return HEADER_FAIL(predictor_modes, "is %u for codec %u", h->predictor_modes, h->codec);
    if (h->extension_offset != TRF_EXTENSION_OFFSET)
        return HEADER_FAIL(extension_offset, "is %u, not %d", h->extension_offset, TRF_EXTENSION_OFFSET);
    if (h->extension_bytes != sizeof(trf_extension))
        return HEADER_FAIL(extension_bytes, "is %u, not %zu", h->extension_bytes, sizeof(trf_extension));
    if (h->flags != 0)
        return HEADER_FAIL(flags, "is 0x%X, which this build does not know", h->flags);
    return TRF_OK;
}

static trf_status check_classes(const trf_header *h, const trf_extension *x, trf_error *err) {
    int count = 1 << h->class_bits;
    trf_float_fields fields = trf_fields_of(h->codec);
    for (int k = 0; k < 16; k++) {
        int value = x->class_value[k];
        int good;
        if (k >= count)
            good = value == 0;
        else if (h->codec == TRF_CODEC_INT)
            good = value >= -1024 && value <= 1023 && value == x->class_value[0] + (k << h->raw_bits);
        else
            good = value >= 0 && value <= (int)fields.max_exponent && (h->class_bits == 4 || value % 4 == 0);
        for (int j = 0; good && h->codec != TRF_CODEC_INT && k < count && j < k; j++)
            good = x->class_value[j] != value;
        if (!good)
            return trf_fail(err, TRF_ERR_HEADER, TRF_EXTENSION_OFFSET + 2 * (uint64_t)k,
                            "extension field class_value[%d] is %d", k, value);
    }
    return TRF_OK;
}

static trf_status check_extension(const trf_header *h, const trf_extension *x, trf_error *err) {
    TRY(check_classes(h, x, err));
    if (x->exponent_offset < -254 || x->exponent_offset > 254 || (h->codec == TRF_CODEC_INT && x->exponent_offset))
        return EXTENSION_FAIL(exponent_offset, "is %d", x->exponent_offset);
    const int scaled_fp8 = trf_is_scaled_fp8(h->codec, h->source_dtype);
    const int may_have_scales = h->codec == TRF_CODEC_INT || scaled_fp8;
    if (x->granularity > TRF_GRANULARITY_SCALE_BLOCK || (!may_have_scales && x->granularity) ||
        (scaled_fp8 && x->granularity == TRF_GRANULARITY_SCALE_GROUP))
        return EXTENSION_FAIL(granularity, "is %u for codec %u", x->granularity, h->codec);
    if (!codec_takes(h->source_dtype, h->codec, x->granularity))
        return HEADER_FAIL(source_dtype, "is %u, which codec %u with granularity %u does not take", h->source_dtype,
                           h->codec, x->granularity);
    int grouped = x->granularity == TRF_GRANULARITY_SCALE_GROUP || x->granularity == TRF_GRANULARITY_SCALE_BLOCK;
    int scale_dtype = grouped && !scaled_fp8 ? TRF_SCALE_F16 : x->granularity ? TRF_SCALE_F32 : TRF_SCALE_NONE;
    if (x->scale_dtype != scale_dtype)
        return EXTENSION_FAIL(scale_dtype, "is %u for granularity %u", x->scale_dtype, x->granularity);
    if (x->reserved0)
        return EXTENSION_FAIL(reserved0, "is %u, not 0", x->reserved0);
    if (grouped ? x->scale_group_size < 16 || x->scale_group_size % 16 || x->scale_group_size > TRF_MAX_SCALE_GROUP_SIZE
                : x->scale_group_size != 0)
        return EXTENSION_FAIL(scale_group_size, "is %u for granularity %u", x->scale_group_size, x->granularity);
    if (x->scale_exponent < -126 || x->scale_exponent > 126 || (x->scale_dtype != TRF_SCALE_F16 && x->scale_exponent))
        return EXTENSION_FAIL(scale_exponent, "is %d", x->scale_exponent);
    for (size_t i = 0; i < sizeof x->reserved1; i++)
        if (x->reserved1[i])
            return trf_fail(err, TRF_ERR_HEADER, TRF_EXTENSION_OFFSET + offsetof(trf_extension, reserved1) + i,
                            "extension byte %zu is reserved and not 0", offsetof(trf_extension, reserved1) + i);
    return TRF_OK;
}

/* Checks an optional section: either it is there (bytes > 0) and begins at the running end, or both fields are 0. Moves
 * *end past it. */
static trf_status check_section(const char *name, uint64_t offset, uint64_t bytes, uint64_t expected, size_t field,
                                uint64_t *end, trf_error *err) {
    uint64_t at = expected ? trf_align(*end) : 0;
    if (offset != at || bytes != expected)
        return trf_fail(err, TRF_ERR_HEADER, TRF_EXTENSION_OFFSET + field,
                        "section %s is %llu bytes at %llu, not %llu at %llu", name, (unsigned long long)bytes,
                        (unsigned long long)offset, (unsigned long long)expected, (unsigned long long)at);
    if (expected)
        *end = at + expected;
    return TRF_OK;
}

/* Number of scales, and of those in a row of the table. rows, cols < 2^31 and scale_group_size >= 16, so it is below
 * 2^58. */
static uint64_t count_scales(const trf_header *h, const trf_extension *x, uint32_t *scale_cols) {
    uint64_t g = x->scale_group_size ? x->scale_group_size : 1, across = (h->cols + g - 1) / g;
    *scale_cols = 1;
    switch (x->granularity) {
    case TRF_GRANULARITY_TENSOR:
        return 1;
    case TRF_GRANULARITY_CHANNEL:
        return h->rows;
    case TRF_GRANULARITY_SCALE_GROUP:
        *scale_cols = (uint32_t)across;
        return h->rows * across;
    case TRF_GRANULARITY_SCALE_BLOCK:
        *scale_cols = (uint32_t)across;
        return (h->rows + g - 1) / g * across;
    default:
        return 0;
    }
}

static trf_status check_sections(const trf_header *h, const trf_extension *x, uint64_t blob_bytes, trf_error *err) {
    uint64_t tiles = (uint64_t)h->num_tile_rows * h->num_tile_cols; /* <= 2^46 */
    uint64_t end = TRF_TILES_OFFSET + tiles * sizeof(trf_tile_meta);
    if (x->frequency_offset != TRF_FREQUENCY_OFFSET)
        return EXTENSION_FAIL(frequency_offset, "is %llu, not %d", (unsigned long long)x->frequency_offset,
                              TRF_FREQUENCY_OFFSET);
    if (x->tiles_offset != TRF_TILES_OFFSET)
        return EXTENSION_FAIL(tiles_offset, "is %llu, not %d", (unsigned long long)x->tiles_offset, TRF_TILES_OFFSET);
    uint32_t scale_cols;
    uint64_t scales = count_scales(h, x, &scale_cols);
    TRY(check_section("scales", x->scales_offset, x->scales_bytes, scales * (x->scale_dtype == TRF_SCALE_F32 ? 4 : 2),
                      offsetof(trf_extension, scales_offset), &end, err));
    TRY(check_section("row_offsets", x->row_offsets_offset, x->row_offsets_bytes,
                      h->predictor_modes & TRF_PREDICT_ROW ? h->rows : 0, offsetof(trf_extension, row_offsets_offset),
                      &end, err));
    TRY(check_section("col_offsets", x->col_offsets_offset, x->col_offsets_bytes,
                      h->predictor_modes & TRF_PREDICT_COL ? h->cols : 0, offsetof(trf_extension, col_offsets_offset),
                      &end, err));
    if (x->data_offset != trf_tile_align(end))
        return EXTENSION_FAIL(data_offset, "is %llu, not %llu", (unsigned long long)x->data_offset,
                              (unsigned long long)trf_tile_align(end));
    if (h->blob_bytes % TRF_TILE_ALIGNMENT || h->blob_bytes <= x->data_offset)
        return HEADER_FAIL(blob_bytes, "is %llu with data at %llu", (unsigned long long)h->blob_bytes,
                           (unsigned long long)x->data_offset);
    if (h->blob_bytes > blob_bytes)
        return trf_fail(err, TRF_ERR_TRUNCATED, blob_bytes, "blob of %llu bytes ends after %llu",
                        (unsigned long long)h->blob_bytes, (unsigned long long)blob_bytes);
    if (h->blob_bytes < blob_bytes)
        return HEADER_FAIL(blob_bytes, "is %llu, but there are %llu bytes", (unsigned long long)h->blob_bytes,
                           (unsigned long long)blob_bytes);
    return TRF_OK;
}

/* Checks everything that the header and the extension show by themselves. */
static trf_status check_header_and_extension(const void *bytes, uint64_t available, uint64_t blob_bytes,
                                             trf_header *header, trf_extension *extension, trf_error *err) {
    if (available < sizeof *header)
        return trf_fail(err, TRF_ERR_TRUNCATED, available, "%llu bytes are too short for a header of %zu",
                        (unsigned long long)available, sizeof *header);
    memcpy(header, bytes, sizeof *header);
    TRY(check_header(header, err));
    if (available < TRF_FREQUENCY_OFFSET)
        return trf_fail(err, TRF_ERR_TRUNCATED, available, "%llu bytes are too short for header and extension of %d",
                        (unsigned long long)available, TRF_FREQUENCY_OFFSET);
    memcpy(extension, (const uint8_t *)bytes + TRF_EXTENSION_OFFSET, sizeof *extension);
    TRY(check_extension(header, extension, err));
    return check_sections(header, extension, blob_bytes, err);
}

trf_status trf_blob_head_bytes(const void *first_320_bytes, uint64_t available_bytes, uint64_t blob_bytes,
                               uint64_t *head_bytes, trf_error *err) {
    trf_header header;
    trf_extension extension;
    TRY(check_header_and_extension(first_320_bytes, available_bytes, blob_bytes, &header, &extension, err));
    *head_bytes = extension.data_offset;
    return TRF_OK;
}

static trf_status check_table(const trf_blob_view *view, trf_error *err) {
    uint32_t sum = 0, slots = 1u << view->header.probability_bits;
    for (uint32_t s = 0; s < TRF_ALPHABET; s++) {
        if (view->frequency[s] >= slots)
            return trf_fail(err, TRF_ERR_TABLE, TRF_FREQUENCY_OFFSET + 2ull * s, "frequency %u of symbol %u exceeds %u",
                            view->frequency[s], s, slots - 1);
        sum += view->frequency[s];
    }
    if (sum != slots)
        return trf_fail(err, TRF_ERR_TABLE, TRF_FREQUENCY_OFFSET, "frequencies sum to %u, not %u", sum, slots);
    return TRF_OK;
}

static trf_status check_scales(const trf_blob_view *view, trf_error *err) {
    const trf_extension *x = &view->extension;
    const int scaled_fp8 = trf_is_scaled_fp8(view->header.codec, view->header.source_dtype);
    for (uint64_t i = 0; i < view->num_scales; i++) {
        int good;
        if (x->scale_dtype == TRF_SCALE_F32) {
            float value = ((const float *)view->scales)[i];
            good = scaled_fp8 ? trf_is_fp8_scale(value) : value > 0 && isfinite(value);
        } else {
            uint16_t bits = ((const uint16_t *)view->scales)[i];
            /* It must be positive and finite; the scale must be finite, too, but may be 0. */
            good = bits > 0 && bits < 0x7C00 && isfinite(trf_f16_scale(bits, x->scale_exponent));
        }
        if (!good)
            return trf_fail(err, TRF_ERR_HEADER, x->scales_offset + i * (x->scale_dtype == TRF_SCALE_F32 ? 4 : 2),
                            scaled_fp8 ? "scale %llu is not in 2^-100 ... 2^100"
                                       : "scale %llu is not a finite positive number",
                            (unsigned long long)i);
    }
    return TRF_OK;
}

#define TILE_FAIL(at, ...) trf_fail(err, TRF_ERR_TILE, at, __VA_ARGS__)

static trf_status check_tile_meta(const trf_blob_view *view, trf_error *err) {
    const trf_header *h = &view->header;
    uint64_t next = view->extension.data_offset, exceptions = 0;
    uint32_t modes = 0;
    for (uint64_t t = 0; t < view->num_tiles; t++) {
        const trf_tile_meta *meta = &view->tiles[t];
        uint64_t at = TRF_TILES_OFFSET + t * sizeof *meta;
        trf_tile_shape shape = trf_tile_shape_of(h, t, TRF_TILE_CODED);
        int coded = meta->coding == TRF_TILE_CODED;
        if (meta->coding > TRF_TILE_STORED || (coded && (!shape.coded_rows || !shape.coded_cols)))
            return TILE_FAIL(at, "tile %llu: coding %u for %ux%u weights", (unsigned long long)t, meta->coding,
                             shape.rows, shape.cols);
        if (meta->predictor_mode & ~(uint32_t)h->predictor_modes || (!coded && meta->predictor_mode))
            return TILE_FAIL(at, "tile %llu: predictor_mode %u", (unsigned long long)t, meta->predictor_mode);
        if (meta->reserved0 || meta->reserved1)
            return TILE_FAIL(at, "tile %llu: reserved fields are not 0", (unsigned long long)t);
        if (meta->exception_count > (coded ? shape.coded_rows * shape.coded_cols : 0))
            return TILE_FAIL(at, "tile %llu: %u exceptions", (unsigned long long)t, meta->exception_count);
        if (meta->data_offset != next || meta->data_size % TRF_TILE_ALIGNMENT || meta->data_size == 0 ||
            meta->data_size > h->blob_bytes - next)
            return TILE_FAIL(at, "tile %llu: %u bytes at %llu, where %llu was due and the blob ends at %llu",
                             (unsigned long long)t, meta->data_size, (unsigned long long)meta->data_offset,
                             (unsigned long long)next, (unsigned long long)h->blob_bytes);
        next += meta->data_size;
        exceptions += meta->exception_count;
        modes |= meta->predictor_mode;
    }
    if (next != h->blob_bytes)
        return TILE_FAIL(TRF_TILES_OFFSET, "tiles end at %llu, the blob at %llu", (unsigned long long)next,
                         (unsigned long long)h->blob_bytes);
    if (exceptions != view->extension.exception_count)
        return TILE_FAIL(TRF_TILES_OFFSET, "tiles list %llu exceptions, the extension %llu",
                         (unsigned long long)exceptions, (unsigned long long)view->extension.exception_count);
    if (modes != h->predictor_modes)
        return TILE_FAIL(TRF_TILES_OFFSET, "tiles use predictor modes %u, the header lists %u", modes,
                         h->predictor_modes);
    return TRF_OK;
}

/* Checks the bytes between the sections and in front of the tiles, which no field describes. */
static trf_status check_gaps(const trf_blob_view *view, trf_error *err) {
    const trf_extension *x = &view->extension;
    const uint64_t sections[][2] = {{x->scales_offset, x->scales_bytes},
                                    {x->row_offsets_offset, x->row_offsets_bytes},
                                    {x->col_offsets_offset, x->col_offsets_bytes},
                                    {x->data_offset, 1}};
    uint64_t end = TRF_TILES_OFFSET + view->num_tiles * sizeof(trf_tile_meta);
    for (size_t s = 0; s < sizeof sections / sizeof sections[0]; s++) {
        if (sections[s][1] == 0)
            continue;
        for (uint64_t i = end; i < sections[s][0]; i++)
            if (view->head[i])
                return trf_fail(err, TRF_ERR_HEADER, i, "padding behind a section is not 0");
        end = sections[s][0] + sections[s][1];
    }
    return TRF_OK;
}

trf_status trf_blob_open(const void *head, uint64_t head_bytes, uint64_t blob_bytes, trf_blob_view *view,
                         trf_error *err) {
    if ((uintptr_t)head % TRF_ALIGNMENT)
        return trf_fail(err, TRF_ERR_ARGUMENT, TRF_NO_OFFSET, "blob head is not 16-byte aligned in memory");
    trf_header *h = &view->header;
    trf_extension *x = &view->extension;
    memset(view, 0, sizeof *view);
    TRY(check_header_and_extension(head, head_bytes, blob_bytes, h, x, err));
    if (head_bytes < x->data_offset)
        return trf_fail(err, TRF_ERR_TRUNCATED, head_bytes, "head of %llu bytes ends after %llu",
                        (unsigned long long)x->data_offset, (unsigned long long)head_bytes);
    uint64_t checksum = trf_head_checksum(head, x->data_offset);
    if (checksum != h->head_checksum)
        return trf_fail(err, TRF_ERR_CHECKSUM, offsetof(trf_header, head_checksum),
                        "head checksum is 0x%016llX, computed 0x%016llX", (unsigned long long)h->head_checksum,
                        (unsigned long long)checksum);
    view->head = head;
    view->num_tiles = (uint64_t)h->num_tile_rows * h->num_tile_cols;
    view->frequency = (const uint16_t *)(view->head + TRF_FREQUENCY_OFFSET);
    view->tiles = (const trf_tile_meta *)(view->head + TRF_TILES_OFFSET);
    view->num_scales = count_scales(h, x, &view->scale_cols);
    view->scales = view->num_scales ? view->head + x->scales_offset : NULL;
    view->row_offsets = x->row_offsets_bytes ? (const int8_t *)view->head + x->row_offsets_offset : NULL;
    view->col_offsets = x->col_offsets_bytes ? (const int8_t *)view->head + x->col_offsets_offset : NULL;
    view->num_planes = trf_plane_widths(h->raw_bits, view->plane_width);
    view->fields = trf_fields_of(h->codec);
    TRY(check_table(view, err));
    TRY(check_gaps(view, err));
    TRY(check_scales(view, err));
    return check_tile_meta(view, err);
}

/* ---- tiles ---- */

/* Checks the unused bits of the last chunk: in planes that a lane's weights do not fill, the bits above them in each
 * lane's last word. raw: the slab's raw bits, at byte `at` of the blob. */
static trf_status check_unused_bits(const trf_blob_view *view, trf_slab_shape shape, const uint8_t *raw, uint64_t at,
                                    trf_error *err) {
    uint32_t all = trf_lane_weights(shape), weights = all % TRF_CHUNK_WEIGHTS;
    uint32_t plane = trf_chunk_offset(view->header.raw_bits, all / TRF_CHUNK_WEIGHTS);
    for (uint32_t p = 0; p < view->num_planes; p++) {
        uint32_t width = view->plane_width[p], words = trf_plane_lane_words(weights, width);
        uint32_t quads = weights / 4 % (8 / width), used = ((1u << (width * quads)) - 1) * 0x01010101u;
        for (uint32_t lane = 0; quads && lane < TRF_LANES; lane++) {
            uint32_t word, offset = plane + trf_plane_word_offset(words, lane, words - 1);
            memcpy(&word, raw + offset, sizeof word);
            if (word & ~used)
                return TILE_FAIL(at + offset, "a plane's unused bits are not 0 (lane %u)", lane);
        }
        plane += trf_plane_bytes(weights, width);
    }
    return TRF_OK;
}

/* Whether an exception's element is one of the codec's (its upper bits are checked as part of its entry). */
static int is_element(const trf_blob_view *view, uint32_t element) {
    if (!trf_codec_is_float(view->header.codec))
        return (int16_t)element >= -1024 && (int16_t)element <= 1023;
    return element >> trf_fields_of(trf_element_codec(view->header.codec, view->header.source_dtype)).sign_bit <= 1;
}

/* Checks `count` exceptions of a slab with `weights` weights a lane. offset: where the exceptions lie in the blob. */
static trf_status check_exceptions(const trf_blob_view *view, const uint32_t *exceptions, uint32_t count,
                                   uint32_t weights, uint64_t offset, trf_error *err) {
    int64_t last = -1;
    for (uint32_t e = 0; e < count; e++) {
        uint32_t position = trf_exception_position(exceptions[e]), element = trf_exception_element(exceptions[e]);
        if (position <= last || position / TRF_LANES >= weights || !is_element(view, element) ||
            exceptions[e] != trf_make_exception(position, element))
            return TILE_FAIL(offset + 4 * e, "exception %u is 0x%08X", e, exceptions[e]);
        last = position;
    }
    return TRF_OK;
}

/* Checks that a slab's rANS streams, at byte `at` of the blob, are exactly as long as what is in them. */
static trf_status check_rans_size(const uint8_t *rans_streams, uint32_t bytes, uint64_t tile, uint32_t slab,
                                  uint64_t at, trf_error *err) {
    if (bytes < TRF_RANS_FIXED_BYTES)
        return TILE_FAIL(at, "tile %llu slab %u: %u bytes cannot hold the head of its rANS streams",
                         (unsigned long long)tile, slab, bytes);
    if (rans_streams[TRF_RANS_EXCEPTION_COUNT_OFFSET + 2] | rans_streams[TRF_RANS_EXCEPTION_COUNT_OFFSET + 3])
        return TILE_FAIL(at + TRF_RANS_EXCEPTION_COUNT_OFFSET + 2, "tile %llu slab %u: reserved field is not 0",
                         (unsigned long long)tile, slab);
    uint32_t words = 0, exceptions = trf_rans_exception_count(rans_streams);
    for (uint32_t lane_pair = 0; lane_pair < TRF_LANE_PAIRS; lane_pair++)
        words += rans_streams[TRF_STATES_BYTES + lane_pair];
    uint32_t used = TRF_RANS_FIXED_BYTES + 4 * exceptions + 2 * words;
    if (bytes != trf_align(used))
        return TILE_FAIL(at, "tile %llu slab %u: %u bytes for %u words and %u exceptions", (unsigned long long)tile,
                         slab, bytes, words, exceptions);
    for (uint32_t i = used; i < bytes; i++)
        if (rans_streams[i])
            return TILE_FAIL(at + i, "tile %llu slab %u: padding is not 0", (unsigned long long)tile, slab);
    return TRF_OK;
}

/* Checks a slab's rANS streams, whose end the slab table gives, and its raw bits. */
static trf_status check_slab(const trf_blob_view *view, uint64_t tile, uint32_t slab, const trf_slab_location *location,
                             const uint8_t *tile_bytes, trf_error *err) {
    const trf_tile_meta *meta = &view->tiles[tile];
    const uint8_t *rans_streams = tile_bytes + location->rans_streams;
    const uint64_t at = meta->data_offset + location->rans_streams;
    if (location->end <= location->rans_streams || location->end > meta->data_size)
        return TILE_FAIL(at, "tile %llu slab %u: rANS streams end at %u, begin at %u, tile of %u bytes",
                         (unsigned long long)tile, slab, location->end, location->rans_streams, meta->data_size);
    TRY(check_rans_size(rans_streams, location->end - location->rans_streams, tile, slab, at, err));
    TRY(check_unused_bits(view, location->shape, tile_bytes + location->raw, meta->data_offset + location->raw, err));
    TRY(check_exceptions(view, (const uint32_t *)(rans_streams + TRF_RANS_FIXED_BYTES),
                         trf_rans_exception_count(rans_streams), trf_lane_weights(location->shape),
                         at + TRF_RANS_FIXED_BYTES, err));
    for (uint32_t lane = 0; lane < TRF_LANES; lane++)
        if (!(rans_streams[2 * lane] | rans_streams[2 * lane + 1]))
            return trf_fail(err, TRF_ERR_RANS, at + 2 * lane, "tile %llu slab %u lane %u: start state is 0",
                            (unsigned long long)tile, slab, lane);
    return TRF_OK;
}

trf_status trf_blob_check_tile(const trf_blob_view *view, uint64_t tile, const uint8_t *tile_bytes, trf_error *err) {
    const trf_tile_meta *meta = &view->tiles[tile];
    uint64_t checksum = trf_tile_checksum(tile_bytes, meta->data_size, tile), at = meta->data_offset;
    if (checksum != meta->checksum)
        return trf_fail(err, TRF_ERR_CHECKSUM, at, "tile %llu: checksum is 0x%016llX, computed 0x%016llX",
                        (unsigned long long)tile, (unsigned long long)meta->checksum, (unsigned long long)checksum);
    trf_tile_shape shape = trf_tile_shape_of(&view->header, tile, meta->coding);
    trf_tile_sections sections = trf_find_tile_sections(&shape, view->header.raw_bits);
    uint32_t end = sections.rans_streams, exceptions = 0;
    if (end > meta->data_size)
        return TILE_FAIL(at, "tile %llu: %u bytes cannot hold its raw bits and its slab table",
                         (unsigned long long)tile, meta->data_size);
    for (uint32_t i = sections.slab_table + 2 * shape.num_slabs; i < sections.rans_streams; i++)
        if (tile_bytes[i])
            return TILE_FAIL(at + i, "tile %llu: padding of the slab table is not 0", (unsigned long long)tile);
    for (uint32_t slab = 0; slab < shape.num_slabs; slab++) {
        const trf_slab_location location = trf_locate_slab(&shape, tile_bytes, slab, view->header.raw_bits);
        TRY(check_slab(view, tile, slab, &location, tile_bytes, err));
        exceptions += trf_rans_exception_count(tile_bytes + location.rans_streams);
        end = location.end;
    }
    if (exceptions != meta->exception_count)
        return TILE_FAIL(at, "tile %llu: slabs list %u exceptions, its metadata %u", (unsigned long long)tile,
                         exceptions, meta->exception_count);
    uint64_t slivers = (uint64_t)shape.rows * shape.cols - (uint64_t)shape.coded_rows * shape.coded_cols;
    uint64_t used = end + slivers * view->header.stored_element_bytes;
    if (meta->data_size != trf_tile_align(used))
        return TILE_FAIL(at, "tile %llu: %u bytes, its contents take %llu", (unsigned long long)tile, meta->data_size,
                         (unsigned long long)trf_tile_align(used));
    for (uint64_t i = used; i < meta->data_size; i++)
        if (tile_bytes[i])
            return TILE_FAIL(at + i, "tile %llu: padding at its end is not 0", (unsigned long long)tile);
    return TRF_OK;
}

trf_status trf_blob_validate(const void *blob, uint64_t blob_bytes, trf_blob_view *view, trf_error *err) {
    TRY(trf_blob_open(blob, blob_bytes, blob_bytes, view, err));
    for (uint64_t t = 0; t < view->num_tiles; t++)
        TRY(trf_blob_check_tile(view, t, (const uint8_t *)blob + view->tiles[t].data_offset, err));
    return TRF_OK;
}
