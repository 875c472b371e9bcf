/* SPDX-License-Identifier: Apache-2.0 */
/* Mutants of the heads of plain and packed buffers, which an engine may hand over again (buffer_is_on_device): every
 * byte is set to every other value. The head is refused, or it is the data's checksum that has changed, which verifying
 * the layer finds. With the head's own checksum forged (of every fifth value) it is refused, or the layer decodes to
 * some weights. Buffers are exactly as large as they are, for sanitizers. */
#include "common/expect.h"
#include "common/fp8_matrices.h"
#include "common/run_suite.h"
#include "common/test_calls.h"
#include "trf_device_layer.h"
#include "trf_layout_head.h"

#include <check.h>
#include <stdlib.h>
#include <string.h>

enum {
    ROWS = 64,
    COLS = 160,
    FORGE_ONE_IN = 5 /* values */
};

static const trf_layout kLayouts[] = {TRF_LAYOUT_PLAIN, TRF_LAYOUT_PACKED, TRF_LAYOUT_PACKED8};

static trf_context *context;

/* A buffer of a layout, and a copy of it that changes. */
typedef struct buffer {
    trf_layout layout;
    uint64_t bytes;
    uint8_t *intact, *mutant;
} buffer;

static void *allocate(uint64_t bytes) {
    void *memory;
    EXPECT(posix_memalign(&memory, TRF_DEVICE_ALIGNMENT, bytes) == 0);
    return memory;
}

static trf_device_layer *make_coded(test_rng *rng) {
    fp8_matrix weights = fp8_dequantized(rng, ROWS, COLS, 128, 128);
    const trf_matrix matrix = test_matrix(weights.weights, TRF_DTYPE_BF16, ROWS, COLS);
    void *blob;
    uint64_t bytes;
    trf_device_layer *layer;
    EXPECT(trf_encode_layer(&matrix, NULL, &blob, &bytes, NULL, NULL) == TRF_OK);
    EXPECT(trf_device_layer_create(context, blob, bytes, NULL, &layer, NULL) == TRF_OK);
    trf_free(blob);
    free(weights.weights);
    return layer;
}

/* Makes the buffer of packed FP8 of dense weights, and others of a coded layer. */
static trf_device_layer *make_layer(test_rng *rng, trf_layout layout) {
    trf_device_layer *made;
    if (layout == TRF_LAYOUT_PACKED8) {
        fp8_matrix weights = fp8_dequantized(rng, ROWS, COLS, 128, 128);
        trf_device_matrix matrix;
        trf_device_matrix_init(&matrix);
        matrix.weights = weights.weights;
        matrix.rows = ROWS;
        matrix.cols = COLS;
        EXPECT(trf_device_layer_pack(context, &matrix, NULL, &made, NULL) == TRF_OK);
        free(weights.weights);
    } else {
        trf_device_layer *coded = make_coded(rng);
        trf_error err = {0};
        ck_assert_msg(trf_device_layer_convert(coded, layout, NULL, &made, &err) == TRF_OK, "%s", err.message);
        trf_device_layer_destroy(coded);
    }
    return made;
}

static buffer make_buffer(trf_layout layout) {
    test_rng rng = {44};
    trf_device_layer *made = make_layer(&rng, layout);
    const trf_device_layer_info info = test_device_layer_info(made);
    buffer b = {info.layout, info.memory_bytes, allocate(info.memory_bytes), allocate(info.memory_bytes)};
    memcpy(b.intact, made->view.buffer, b.bytes);
    trf_device_layer_destroy(made);
    return b;
}

static void free_buffer(buffer *b) {
    free(b->intact);
    free(b->mutant);
}

/* Adopts the mutant. @return NULL if it is refused. */
static trf_device_layer *adopt(const buffer *b, uint64_t bytes) {
    trf_device_layer *layer = NULL;
    trf_load_options options;
    trf_load_options_init(&options);
    options.layout = b->layout;
    options.buffer_is_on_device = 1;
    return trf_device_layer_create(context, b->mutant, bytes, &options, &layer, NULL) == TRF_OK ? layer : NULL;
}

/* Decodes a layer that was adopted, of as many rows and columns as it says that it has. */
static void use(const trf_device_layer *layer) {
    const trf_layer_info info = test_layer_info(layer);
    const uint64_t bytes = 2 * (uint64_t)info.rows * info.cols;
    void *weights = allocate(bytes);
    trf_error err = {0};
    ck_assert_msg(trf_device_layer_decode(layer, TRF_DECODE_ELEMENTS, weights, bytes, NULL, &err) == TRF_OK, "%s",
                  err.message);
    free(weights);
}

/* loop: layouts. */
START_TEST(heads) {
    buffer b = make_buffer(kLayouts[_i]);
    uint64_t adopted = 0;
    for (uint32_t at = 0; at < TRF_LAYOUT_HEAD_BYTES; at++)
        for (uint32_t other = 1; other < 256; other += test_quick() ? 5 : 1) {
            memcpy(b.mutant, b.intact, b.bytes);
            b.mutant[at] = (uint8_t)(b.mutant[at] + other);
            trf_device_layer *layer = adopt(&b, b.bytes);
            ck_assert_msg(!layer == (at < TRF_DATA_CHECKSUM_OFFSET), "byte %u of a %s head", at,
                          trf_layout_name(b.layout));
            if (layer)
                ck_assert_int_eq(trf_device_layer_verify(layer, NULL), TRF_ERR_CHECKSUM);
            trf_device_layer_destroy(layer);
            if (other % FORGE_ONE_IN != 1)
                continue;
            trf_layout_head_common *const head = (trf_layout_head_common *)(void *)b.mutant;
            head->checksum = trf_layout_head_checksum(head);
            layer = adopt(&b, b.bytes);
            if (layer)
                use(layer);
            adopted += layer != NULL;
            trf_device_layer_destroy(layer);
        }
    ck_assert_uint_ne(adopted, 0);
    free_buffer(&b);
}
END_TEST

/* loop: layouts. Each length below the buffer's. */
START_TEST(lengths) {
    buffer b = make_buffer(kLayouts[_i]);
    memcpy(b.mutant, b.intact, b.bytes);
    for (uint64_t bytes = 0; bytes < b.bytes; bytes += test_quick() ? 7 : 1)
        ck_assert_ptr_null(adopt(&b, bytes));
    trf_device_layer *layer = adopt(&b, b.bytes);
    ck_assert_ptr_nonnull(layer);
    ck_assert_int_eq(trf_device_layer_verify(layer, NULL), TRF_OK);
    trf_device_layer_destroy(layer);
    free_buffer(&b);
}
END_TEST

static void make_context(void) { ck_assert_int_eq(trf_context_create(TRF_DEVICE_CPU, &context, NULL), TRF_OK); }

static void destroy_context(void) { trf_context_destroy(context); }

int main(void) {
    Suite *suite = suite_create("head_mutants");
    TCase *tcase = tcase_create("head_mutants");
    tcase_add_checked_fixture(tcase, make_context, destroy_context);
    tcase_add_loop_test(tcase, heads, 0, 3);
    tcase_add_loop_test(tcase, lengths, 0, 3);
    suite_add_tcase(suite, tcase);
    return run_suite(suite);
}
