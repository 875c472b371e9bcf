/* SPDX-License-Identifier: Apache-2.0 */
/* The slow encoder, in the order of FORMAT.md: requests, elements and their split, a slab, the tile. */
#include "test_tile.h"

#include "expect.h"
#include "trf_number_formats.h"

#include <check.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* The bytes of a tile, to which more are appended. */
typedef struct byte_buffer {
    uint8_t *bytes;
    size_t size;
} byte_buffer;

enum {
    MAX_TILE_BYTES = 1 << 20
};

static void put(byte_buffer *to, const void *bytes, size_t size) {
    if (to->size + size > MAX_TILE_BYTES)
        ck_abort_msg("a tile is larger than the tests expect");
    memcpy(to->bytes + to->size, bytes, size);
    to->size += size;
}

static void put_padding(byte_buffer *to, size_t alignment) {
    while (to->size % alignment)
        to->bytes[to->size++] = 0;
}

/* ---- requests ---- */

static uint32_t random_extent(test_rng *rng) {
    switch (test_below(rng, 4)) {
    case 0:
        return 256;
    case 1:
        return 16 * (1 + test_below(rng, 16));
    default:
        return 1 + test_below(rng, 256);
    }
}

test_tile_request test_tile_random_request(test_rng *rng, uint32_t codec, uint32_t class_bits) {
    static const double kRates[] = {0, 0.002, 0.05, 1};
    test_tile_request request = {.codec = codec, .class_bits = class_bits};
    request.rows = random_extent(rng);
    request.cols = random_extent(rng);
    request.slab_cols = test_below(rng, 2) ? 256 : 128;
    request.raw_bits = test_below(rng, TRF_MAX_INT_RAW_BITS + 1);
    request.probability_bits = 9 + test_below(rng, 4);
    request.state_bits = request.probability_bits + test_below(rng, 17 - request.probability_bits);
    request.symbols = test_below(rng, 2) ? 256 : 2 + test_below(rng, 254);
    request.exception_rate = kRates[test_below(rng, 4)];
    if (codec != TRF_CODEC_INT && test_below(rng, 2)) {
        request.predictor_mode = test_below(rng, 4);
        if (test_below(rng, 2))
            request.exponent_offset = (int32_t)test_below(rng, 509) - 254;
    }
    request.stored = request.rows < 16 || request.cols < 16 || test_below(rng, 20) == 0;
    if (request.stored)
        request.predictor_mode = 0;
    return request;
}

/* Makes skewed frequencies that sum to 2^p, at least one for each of `symbols` random symbols. */
static void make_frequencies(test_rng *rng, const test_tile_request *request, uint16_t frequency[TRF_ALPHABET]) {
    uint32_t order[TRF_ALPHABET], slots = 1u << request->probability_bits, left = slots - request->symbols;
    for (uint32_t s = 0; s < TRF_ALPHABET; s++)
        order[s] = s;
    for (uint32_t i = 0; i < request->symbols; i++) {
        uint32_t j = i + test_below(rng, TRF_ALPHABET - i), s = order[j];
        order[j] = order[i];
        order[i] = s;
        frequency[s] = 1;
    }
    while (left) {
        uint16_t *f = &frequency[order[test_below(rng, 1 + test_below(rng, request->symbols))]];
        uint32_t more = 1 + test_below(rng, left < 64 ? left : 64);
        if (*f + more >= slots)
            continue;
        *f = (uint16_t)(*f + more);
        left -= more;
    }
}

static void make_class_values(test_rng *rng, const test_tile_request *request, trf_blob_view *view) {
    const uint32_t classes = 1u << request->class_bits, emax = view->fields.max_exponent;
    int16_t *value = view->extension.class_value;
    if (request->codec == TRF_CODEC_INT) {
        uint32_t code_range = (classes - 1) << request->raw_bits;
        int32_t lowest_code = (int32_t)test_below(rng, 2048 - (code_range < 2048 ? code_range : 2047)) - 1024;
        for (uint32_t k = 0; k < classes; k++)
            value[k] = (int16_t)(lowest_code + (int32_t)(k << request->raw_bits));
        return;
    }
    const uint32_t unit = request->class_bits == 2 ? 4 : 1;
    for (uint32_t k = 0; k < classes; k++) {
        int taken;
        do {
            value[k] = (int16_t)(test_below(rng, (emax + 1) / unit) * unit);
            taken = 0;
            for (uint32_t j = 0; j < k; j++)
                taken |= value[j] == value[k];
        } while (taken);
    }
}

/* ---- elements ---- */

static int32_t offset_at(const test_tile *tile, uint32_t row, uint32_t col) {
    int32_t offset = tile->view.extension.exponent_offset;
    offset += tile->meta.predictor_mode & TRF_PREDICT_ROW ? tile->row_offsets[row] : 0;
    return offset + (tile->meta.predictor_mode & TRF_PREDICT_COL ? tile->col_offsets[col] : 0);
}

static float scale_at(const test_tile *tile, uint32_t row, uint32_t col) {
    const trf_extension *extension = &tile->view.extension;
    return tile->scales[trf_scale_table_index(extension->granularity, extension->scale_group_size,
                                              tile->view.scale_cols, row, col)];
}

/* @return the code that gives a BF16 element with a scale, or -1. Elements grow with the code. */
static int32_t code_of(uint32_t element, float scale) {
    uint32_t low = 0, end = 0x80;
    while (low < end) {
        const uint32_t middle = (low + end) / 2;
        if (trf_scale_fp8(middle, scale) < (element & 0x7FFF))
            low = middle + 1;
        else
            end = middle;
    }
    return low < 0x80 && trf_scale_fp8(low, scale) == (element & 0x7FFF) ? (int32_t)(low | (element >> 8 & 0x80)) : -1;
}

/* Draws an element; it has a class unless it should be an exception. */
static uint16_t random_element(test_rng *rng, const test_tile *tile, const test_tile_request *request, uint32_t row,
                               uint32_t col) {
    const trf_blob_view *view = &tile->view;
    const int any = test_uniform(rng) < request->exception_rate;
    int32_t value = view->extension.class_value[test_below(rng, 1u << request->class_bits)];
    if (request->codec == TRF_CODEC_INT) {
        int32_t limit = view->header.stored_element_bytes == 1 ? 127 : TRF_MAX_CODE;
        int32_t code = value + (int32_t)test_below(rng, 1u << request->raw_bits);
        if (any || code < -limit || code > limit)
            code = (int32_t)test_below(rng, 2 * (uint32_t)limit + 1) - limit;
        return (uint16_t)code;
    }
    if (request->is_scaled_fp8 && any)
        return (uint16_t)test_below(rng, 1 << 16);
    const trf_float_fields fields = view->fields;
    uint32_t exponent = (uint32_t)value + (request->class_bits == 2 ? test_below(rng, 4) : 0);
    exponent = any ? test_below(rng, fields.max_exponent + 1)
                   : (exponent + (uint32_t)offset_at(tile, row, col)) & fields.max_exponent;
    const uint32_t drawn = test_below(rng, 2) << fields.sign_bit | exponent << fields.mantissa_bits |
                           test_below(rng, 1u << fields.mantissa_bits);
    return (uint16_t)(request->is_scaled_fp8 ? trf_scale_fp8(drawn, scale_at(tile, row, col)) : drawn);
}

/* Splits an element. @return its class, or -1. *raw: its raw bits, which an exception has, too. */
static int32_t split(test_rng *rng, const test_tile *tile, uint32_t element, uint32_t row, uint32_t col,
                     uint32_t *raw) {
    const trf_blob_view *view = &tile->view;
    const uint32_t codec = view->header.codec, class_bits = view->header.class_bits;
    const int16_t *value = view->extension.class_value;
    if (codec == TRF_CODEC_INT) {
        int32_t above = (int16_t)element - value[0];
        *raw = (uint32_t)above & ((1u << view->header.raw_bits) - 1);
        return above >= 0 && above >> view->header.raw_bits < 1 << class_bits ? above >> view->header.raw_bits : -1;
    }
    if (trf_is_scaled_fp8(codec, view->header.source_dtype)) {
        const int32_t code = code_of(element, scale_at(tile, row, col));
        *raw = test_below(rng, 1u << view->header.raw_bits);
        if (code < 0)
            return -1;
        element = (uint32_t)code;
    }
    const uint32_t emax = view->fields.max_exponent, top = view->fields.max_ordinary_exponent,
                   exponent = trf_element_exponent(view->fields, element);
    const int32_t coded = (int32_t)exponent - offset_at(tile, row, col);
    const int offsets = view->extension.exponent_offset != 0 || tile->meta.predictor_mode != 0;
    int legal = coded >= 0 && coded <= (int32_t)emax;
    if (offsets)
        legal = exponent > 0 && exponent <= top && coded > 0 && coded <= (int32_t)top;
    if (codec == TRF_CODEC_E4M3 && (element & 0x7F) == 0x7F)
        legal = 0;
    uint32_t low2 = class_bits == 4 ? 0 : legal ? (uint32_t)coded & 3 : test_below(rng, 4);
    *raw = trf_float_raw(codec, class_bits, element, low2);
    for (int32_t k = 0; legal && k < 1 << class_bits; k++)
        if (value[k] == coded - (int32_t)low2)
            return k;
    return -1;
}

/* ---- a slab ---- */

typedef struct slab_content {
    trf_slab_shape shape;
    uint8_t symbols[TRF_LANES][TRF_MAX_LANE_WEIGHTS];
    uint32_t raw[TRF_LANES][TRF_MAX_LANE_WEIGHTS];
    int32_t exception[TRF_MAX_LANE_WEIGHTS * TRF_LANES]; /* by position: its element, or -1 */
} slab_content;

/* first_row, first_col: where the slab begins in the tile. */
static void fill_slab(test_rng *rng, const test_tile *tile, uint32_t first_row, uint32_t first_col,
                      slab_content *content) {
    const trf_blob_view *view = &tile->view;
    const uint32_t c = view->header.class_bits, n = trf_lane_weights(content->shape);
    for (uint32_t lane = 0; lane < TRF_LANES; lane++)
        for (uint32_t j = 0; j < n * c / 8; j++) {
            int32_t class_[4], due[4];
            uint32_t symbol = 0;
            for (uint32_t q = 0; q < 8 / c; q++) {
                uint32_t i = 8 / c * j + q;
                uint32_t row = first_row + trf_lane_row(content->shape, lane, i);
                uint32_t col = first_col + trf_lane_col(content->shape, lane, i);
                uint32_t element = tile->elements[row * view->header.cols + col];
                class_[q] = split(rng, tile, element, row, col, &content->raw[lane][i]);
                due[q] = (int32_t)element;
                symbol |= (class_[q] < 0 ? test_below(rng, 1u << c) : (uint32_t)class_[q]) << (c * q);
            }
            while (tile->frequency[symbol] == 0)
                symbol = test_below(rng, TRF_ALPHABET);
            content->symbols[lane][j] = (uint8_t)symbol;
            for (uint32_t q = 0; q < 8 / c; q++)
                content->exception[trf_weight_position(8 / c * j + q, lane)] =
                    class_[q] == (int32_t)(symbol >> (c * q) & ((1u << c) - 1)) ? -1 : due[q];
        }
}

/* What lies in the place of weight i: its raw bits, but another weight's sign. */
static uint32_t stored_raw(const test_tile *tile, const slab_content *content, uint32_t lane, uint32_t i) {
    static const uint32_t kSignOf[4] = {3, 2, 0, 1}; /* whose sign lies in the place of weight i % 4 */
    const uint32_t codec = tile->view.header.codec, raw = content->raw[lane][i];
    if (codec == TRF_CODEC_INT)
        return raw;
    const uint32_t quads_of_e4m3 = codec == TRF_CODEC_E4M3 && tile->view.header.class_bits == 2;
    const uint32_t sign = codec == TRF_CODEC_BF16 || codec == TRF_CODEC_FP16 ? 0x80 : quads_of_e4m3 ? 0x10 : 1;
    return (raw & ~sign) | (content->raw[lane][i / 4 * 4 + kSignOf[i % 4]] & sign);
}

/* Writes one plane of the m weights from `first` on. */
static void put_plane(const test_tile *tile, const slab_content *content, uint32_t first, uint32_t m, uint32_t width,
                      uint32_t shift, byte_buffer *to) {
    const uint32_t lane_words = (m * width + 31) / 32;
    uint8_t bytes[4 * TRF_LANES * TRF_CHUNK_WEIGHTS / 4];
    for (uint32_t lane = 0; lane < TRF_LANES; lane++)
        for (uint32_t z = 0; z < lane_words; z++) {
            uint32_t word = 0;
            for (uint32_t i = 32 / width * z; i < 32 / width * (z + 1) && i < m; i++) {
                uint32_t field = stored_raw(tile, content, lane, first + i) >> shift & ((1u << width) - 1);
                word |= field << (width * (i / 4 % (8 / width)) + 8 * (i / 2 % 2) + 16 * (i % 2));
            }
            size_t at = z / 4 < lane_words / 4 ? 512 * (z / 4) + 16 * lane + 4 * (z % 4)
                                               : 512 * (z / 4) + 4 * (lane_words % 4) * lane + 4 * (z % 4);
            memcpy(bytes + at, &word, sizeof word);
        }
    put(to, bytes, 128 * lane_words);
}

static void put_chunks(const test_tile *tile, const slab_content *content, byte_buffer *to) {
    const trf_blob_view *view = &tile->view;
    const uint32_t n = trf_lane_weights(content->shape);
    for (uint32_t first = 0; first < n; first += 64)
        for (uint32_t plane = 0, shift = 0; plane < view->num_planes; shift += view->plane_width[plane++])
            put_plane(tile, content, first, n - first < 64 ? n - first : 64, view->plane_width[plane], shift, to);
}

/* Encodes a lane's symbols backwards. words: in the order of decoding. @return their number. */
static uint32_t encode_lane(const test_tile *tile, const uint8_t *symbols, uint32_t count, uint16_t *start_state,
                            uint16_t words[TRF_MAX_LANE_WEIGHTS]) {
    const uint32_t p = tile->view.header.probability_bits, L = tile->view.header.state_bits;
    uint32_t start[TRF_ALPHABET + 1] = {0}, emitted = 0;
    uint16_t backwards[TRF_MAX_LANE_WEIGHTS];
    uint64_t x = 1u << L;
    for (uint32_t s = 0; s < TRF_ALPHABET; s++)
        start[s + 1] = start[s] + tile->frequency[s];
    for (uint32_t j = count; j-- > 0;) {
        uint64_t f = tile->frequency[symbols[j]];
        while (x >= f << (L + 16 - p)) {
            backwards[emitted++] = (uint16_t)x;
            x >>= 16;
        }
        x = (x / f << p) + start[symbols[j]] + x % f;
    }
    if (x >> 16) {
        backwards[emitted++] = (uint16_t)x;
        x >>= 16;
    }
    *start_state = (uint16_t)x;
    for (uint32_t i = 0; i < emitted; i++)
        words[i] = backwards[emitted - 1 - i];
    return emitted;
}

/* Writes the number of exceptions, two bytes of zero, and the exceptions. @return their number. */
static uint32_t put_exceptions(const slab_content *content, byte_buffer *to) {
    const uint32_t positions = TRF_LANES * trf_lane_weights(content->shape);
    uint32_t count = 0;
    for (uint32_t at = 0; at < positions; at++)
        count += content->exception[at] >= 0;
    put(to, &count, sizeof count);
    for (uint32_t at = 0; at < positions; at++)
        if (content->exception[at] >= 0) {
            uint32_t entry = at << 19 | (uint32_t)content->exception[at];
            put(to, &entry, sizeof entry);
        }
    return count;
}

/* Writes states, counts, exceptions, words and padding. @return the number of exceptions. */
static uint32_t put_rans_streams(const test_tile *tile, const slab_content *content, uint32_t unused_words,
                                 byte_buffer *to) {
    const uint32_t count = trf_lane_weights(content->shape) * tile->view.header.class_bits / 8;
    uint16_t start_state[TRF_LANES], words[TRF_LANES][TRF_MAX_LANE_WEIGHTS], last_words[TRF_MAX_LANE_WEIGHTS];
    uint32_t taken[TRF_LANES];
    for (uint32_t lane = 0; lane < TRF_LANES; lane++)
        taken[lane] = encode_lane(tile, content->symbols[lane], count, &start_state[lane], words[lane]);
    for (uint32_t i = 0; i < unused_words; i++)
        words[0][taken[0]++] = 0xBAD;
    put(to, start_state, sizeof start_state);
    for (uint32_t lane_pair = 0; lane_pair < TRF_LANE_PAIRS; lane_pair++) {
        uint32_t both = taken[lane_pair] + taken[lane_pair + TRF_LANE_PAIRS];
        if (both > 255)
            ck_abort_msg("a lane pair of %u words", both);
        put(to, &both, 1);
    }
    uint32_t exceptions = put_exceptions(content, to);
    for (uint32_t lane_pair = 0; lane_pair < TRF_LANE_PAIRS; lane_pair++) {
        uint32_t down = taken[lane_pair + TRF_LANE_PAIRS];
        for (uint32_t i = 0; i < down; i++)
            last_words[i] = words[lane_pair + TRF_LANE_PAIRS][down - 1 - i];
        put(to, words[lane_pair], 2 * taken[lane_pair]);
        put(to, last_words, 2 * down);
    }
    put_padding(to, 16);
    return exceptions;
}

/* ---- the tile ---- */

static void put_slabs(test_rng *rng, test_tile *tile, const trf_tile_shape *shape, uint32_t unused_words,
                      byte_buffer *to) {
    slab_content *content = malloc(sizeof *content);
    byte_buffer rans_streams = {malloc(MAX_TILE_BYTES), 0};
    const uint32_t slab_cols = tile->view.header.slab_cols;
    uint16_t ends[TRF_MAX_SLABS_PER_TILE];
    uint32_t num_slabs = 0;
    ck_assert(content && rans_streams.bytes);
    for (uint32_t row = 0; row < shape->coded_rows; row += 32)
        for (uint32_t col = 0; col < shape->coded_cols; col += slab_cols) {
            const uint32_t left = shape->coded_cols - col;
            content->shape.row_blocks = shape->coded_rows - row >= 32 ? 2 : 1;
            content->shape.steps = (left < slab_cols ? left : slab_cols) / 16;
            fill_slab(rng, tile, row, col, content);
            put_chunks(tile, content, to);
            tile->meta.exception_count += put_rans_streams(tile, content, unused_words, &rans_streams);
            ends[num_slabs++] = (uint16_t)(rans_streams.size / 16);
        }
    ck_assert_uint_eq(num_slabs, shape->num_slabs);
    put(to, ends, num_slabs * sizeof *ends);
    put_padding(to, 16);
    put(to, rans_streams.bytes, rans_streams.size);
    free(rans_streams.bytes);
    free(content);
}

static void put_slivers(const test_tile *tile, const trf_tile_shape *shape, byte_buffer *to) {
    for (uint32_t row = 0; row < shape->rows; row++)
        for (uint32_t col = row < shape->coded_rows ? shape->coded_cols : 0; col < shape->cols; col++)
            put(to, &tile->elements[row * shape->cols + col], tile->view.header.stored_element_bytes);
    put_padding(to, 128);
}

static void make_scales(test_rng *rng, const test_tile_request *request, test_tile *tile) {
    static const uint8_t kGranularities[] = {TRF_GRANULARITY_TENSOR, TRF_GRANULARITY_CHANNEL,
                                             TRF_GRANULARITY_SCALE_BLOCK};
    trf_extension *extension = &tile->view.extension;
    tile->view.header.source_dtype = TRF_DTYPE_BF16;
    tile->view.header.stored_element_bytes = 2;
    extension->granularity = kGranularities[test_below(rng, 3)];
    extension->scale_dtype = TRF_SCALE_F32;
    tile->view.scale_cols = 1;
    if (extension->granularity == TRF_GRANULARITY_SCALE_BLOCK) {
        const uint32_t size = 16 * (1 + test_below(rng, 20));
        extension->scale_group_size = size;
        tile->view.scale_cols = (request->cols + size - 1) / size;
    }
    for (uint32_t i = 0; i < TRF_TILE_SIZE; i++)
        tile->scales[i] = ldexpf(1.0f + (float)test_below(rng, 1 << 23) * 0x1p-23f, (int)test_below(rng, 200) - 100);
    tile->view.scales = tile->scales;
    tile->view.num_scales = TRF_TILE_SIZE;
}

static void begin_view(test_rng *rng, const test_tile_request *request, test_tile *tile) {
    trf_header *header = &tile->view.header;
    header->codec = (uint8_t)request->codec;
    header->class_bits = (uint8_t)request->class_bits;
    header->raw_bits =
        (uint8_t)(request->codec == TRF_CODEC_INT ? request->raw_bits
                                                  : trf_float_raw_bits(request->codec, request->class_bits));
    header->rows = request->rows;
    header->cols = request->cols;
    header->num_tile_rows = header->num_tile_cols = 1;
    header->slab_cols = (uint16_t)request->slab_cols;
    header->probability_bits = (uint8_t)request->probability_bits;
    header->state_bits = (uint8_t)request->state_bits;
    header->stored_element_bytes = request->codec == TRF_CODEC_INT    ? (uint8_t)(1 + test_below(rng, 2))
                                   : request->codec <= TRF_CODEC_FP16 ? 2
                                                                      : 1;
    if (request->is_scaled_fp8)
        make_scales(rng, request, tile);
    tile->view.extension.exponent_offset = request->exponent_offset;
    tile->view.num_tiles = 1;
    tile->view.frequency = tile->frequency;
    tile->view.tiles = &tile->meta;
    tile->view.row_offsets = tile->row_offsets;
    tile->view.col_offsets = tile->col_offsets;
    tile->view.fields = trf_fields_of(request->codec);
    tile->view.num_planes = trf_plane_widths(header->raw_bits, tile->view.plane_width);
    make_class_values(rng, request, &tile->view);
    make_frequencies(rng, request, tile->frequency);
    for (uint32_t i = 0; i < TRF_TILE_SIZE; i++) {
        tile->row_offsets[i] = (int8_t)test_below(rng, 256);
        tile->col_offsets[i] = (int8_t)test_below(rng, 256);
    }
    tile->meta.coding = request->stored ? TRF_TILE_STORED : TRF_TILE_CODED;
    tile->meta.predictor_mode = (uint8_t)request->predictor_mode;
}

static const uint32_t kClassBits[2] = {2, 4};

test_tile_request test_tile_random_request_of(test_rng *rng, uint32_t codec_index) {
    const int is_scaled_fp8 = codec_index >= TEST_TILE_SCALED_FP8;
    test_tile_request request = test_tile_random_request(
        rng, is_scaled_fp8 ? (uint32_t)TRF_CODEC_E4M3 : codec_index / 2 + 1, kClassBits[codec_index % 2]);
    request.is_scaled_fp8 = is_scaled_fp8;
    return request;
}

void test_tiles_at_random(uint32_t codec_index, int rounds, test_tile_check *check) {
    test_rng rng = {1000 + codec_index};
    for (int round = 0; round < test_rounds(rounds); round++) {
        test_tile_request request = test_tile_random_request_of(&rng, codec_index);
        check(&rng, &request);
    }
}

void test_tiles_of_every_shape(uint32_t codec_index, test_tile_check *check) {
    test_rng rng = {2000 + codec_index};
    for (uint32_t rows = 16; rows <= 64; rows += 16)
        for (uint32_t cols = 16; cols <= 256; cols += 16) {
            test_tile_request request = test_tile_random_request_of(&rng, codec_index);
            request.rows = rows + test_below(&rng, 2) * test_below(&rng, 16);
            request.cols = cols - test_below(&rng, 2) * (cols > 16 ? test_below(&rng, 15) : 0);
            request.stored = 0;
            check(&rng, &request);
        }
}

void test_tiles_of_int(uint32_t raw_bits, test_tile_check *check) {
    test_rng rng = {3000 + raw_bits};
    for (int round = 0; round < 8; round++) {
        test_tile_request request = test_tile_random_request(&rng, TRF_CODEC_INT, kClassBits[round % 2]);
        request.raw_bits = raw_bits;
        request.rows += 16 * (request.rows < 16);
        request.cols += 16 * (request.cols < 16);
        request.stored = 0;
        check(&rng, &request);
    }
}

test_tile *test_tile_make(test_rng *rng, const test_tile_request *request) {
    test_tile *tile = calloc(1, sizeof *tile);
    byte_buffer buffer = {malloc(MAX_TILE_BYTES), 0};
    ck_assert(tile && buffer.bytes);
    begin_view(rng, request, tile);
    for (uint32_t row = 0; row < request->rows; row++)
        for (uint32_t col = 0; col < request->cols; col++)
            tile->elements[row * request->cols + col] = random_element(rng, tile, request, row, col);
    trf_tile_shape shape = trf_tile_shape_of(&tile->view.header, 0, tile->meta.coding);
    if (!request->stored)
        put_slabs(rng, tile, &shape, request->unused_words, &buffer);
    put_slivers(tile, &shape, &buffer);
    tile->meta.data_size = (uint32_t)buffer.size;
    ck_assert_int_eq(posix_memalign((void **)&tile->bytes, 16, buffer.size), 0);
    memcpy(tile->bytes, buffer.bytes, buffer.size);
    free(buffer.bytes);
    test_tile_seal(tile);
    return tile;
}

void test_tile_seal(test_tile *tile) { tile->meta.checksum = trf_tile_checksum(tile->bytes, tile->meta.data_size, 0); }

void test_tile_free(test_tile *tile) {
    free(tile->bytes);
    free(tile);
}
