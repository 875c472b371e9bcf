/* SPDX-License-Identifier: Apache-2.0 */
/* Packed FP8 experts: gate and up in turns, each with its own scales, and down; their weights; products whose sums are
 * exact, and mixtures, which have the bits of packed BF16 ones; experts that do not fit, which all become packed BF16;
 * and what is refused. These tests run on the CPU; tests/gpu/ builds this file for a GPU, too, with its ordinal as
 * TRF_TEST_DEVICE. */
#include "common/any_device.h"
#include "common/checkpoint_fixture.h"
#include "common/device_layers.h"
#include "common/expect.h"
#include "common/packed8_layer.h"
#include "common/run_suite.h"
#include "common/test_calls.h"
#include "common/test_weights.h"
#include "transfuse/experts.h"
#include "trf_number_formats.h"

#include <check.h>

enum {
    ON_CPU = TRF_TEST_DEVICE == TRF_DEVICE_CPU,
    MOST_EXPERTS = 6,
    EXCEPTION = 0x3E80 /* a weight that is no code times a scale: 64 * 2^-8 */
};

static trf_error err;
static trf_context *device;

static void begin(void) { fixture_check_status(trf_context_create(TRF_TEST_DEVICE, &device, &err), TRF_OK, &err); }
static void end(void) { trf_context_destroy(device); }

/* ---- coded experts ---- */

typedef struct fp8_experts {
    uint32_t count, rows, cols;
    packed8_layer from[MOST_EXPERTS]; /* their weights; blocks are of 128x128 */
    trf_device_layer *layers[MOST_EXPERTS];
    trf_experts *coded;
} fp8_experts;

/* Weights are zeros, or between 1 and 7.5 times 2^-8 with 8 bits of mantissa, so that sums are exact. */
static packed8_layer make_weights(test_rng *rng, uint32_t rows, uint32_t cols, uint32_t exceptions) {
    packed8_layer made = packed8_layer_make(rng, rows, cols, 128, 128, SCALES_F32);
    for (size_t i = 0; i < made.num_scales; i++)
        made.scales[i] = trf_f32_from_bits((trf_f32_bits(made.scales[i]) & 0x7FFFFF) | 119u << 23);
    for (size_t i = 0; i < (size_t)rows * cols; i++)
        made.codes[i] = (uint8_t)((test_below(rng, 8) ? 7 << 3 | test_below(rng, 16) : 0) | test_below(rng, 2) << 7);
    packed8_layer_define_weights(&made);
    for (uint32_t i = 0; i < exceptions; i++) /* apart from each other, all in the first line */
        made.weights[(size_t)(i % 16) * cols + 5 * i] = EXCEPTION;
    return made;
}

static trf_device_layer *code(const packed8_layer *from, trf_codec codec) {
    const trf_matrix matrix = test_matrix(from->weights, TRF_DTYPE_BF16, from->rows, from->cols);
    trf_encode_options options;
    trf_device_layer *layer;
    void *blob;
    uint64_t bytes;
    trf_encode_options_init(&options);
    options.codec = codec;
    fixture_check_status(trf_encode_layer(&matrix, &options, &blob, &bytes, NULL, &err), TRF_OK, &err);
    fixture_check_status(trf_device_layer_create(device, blob, bytes, NULL, &layer, &err), TRF_OK, &err);
    trf_free(blob);
    return layer;
}

/* exceptions: of expert 1; the others have 3. */
static fp8_experts make_experts(test_rng *rng, uint32_t count, uint32_t rows, uint32_t cols, uint32_t exceptions) {
    fp8_experts made = {.count = count, .rows = rows, .cols = cols};
    for (uint32_t e = 0; e < count; e++) {
        made.from[e] = make_weights(rng, rows, cols, e == 1 ? exceptions : 3);
        made.layers[e] = code(&made.from[e], TRF_CODEC_E4M3);
    }
    fixture_check_status(trf_experts_create(made.layers, count, &made.coded, &err), TRF_OK, &err);
    return made;
}

static void free_experts(fp8_experts *experts) {
    trf_experts_destroy(experts->coded);
    for (uint32_t e = 0; e < experts->count; e++) {
        trf_device_layer_destroy(experts->layers[e]);
        packed8_layer_free(&experts->from[e]);
    }
}

/* up: or NULL. */
static trf_experts *convert(const fp8_experts *experts, const fp8_experts *up, trf_gate_up_order order) {
    trf_expert_pack_options options;
    trf_experts *packed = NULL;
    trf_expert_pack_options_init(&options);
    options.gate_up_order = order;
    fixture_check_status(trf_experts_convert(experts->coded, up ? up->coded : NULL, &options, &packed, &err), TRF_OK,
                         &err);
    return packed;
}

/* ---- dense weights ---- */

/* The row of a packed expert, wherever it comes from. up: or NULL; turns: rows of gate and up take turns. */
static const uint16_t *row_of(const fp8_experts *experts, const fp8_experts *up, int turns, uint32_t expert,
                              uint32_t row) {
    const uint32_t inner = up ? experts->rows : experts->rows / 2, in_part = row / 16 * 8 + row % 8;
    if (!turns)
        return experts->from[expert].weights + (size_t)row * experts->cols;
    if (row / 8 % 2 == 0)
        return experts->from[expert].weights + (size_t)in_part * experts->cols;
    return up ? up->from[expert].weights + (size_t)in_part * experts->cols
              : experts->from[expert].weights + (size_t)(inner + in_part) * experts->cols;
}

/* Packed experts of the same dense weights, in turns if there is up. */
static trf_experts *pack(const fp8_experts *experts, const fp8_experts *up, int packed_bf16) {
    const uint32_t rows = experts->rows * (up ? 2 : 1), cols = experts->cols;
    trf_device_matrix matrices[MOST_EXPERTS];
    void *memory[MOST_EXPERTS];
    uint16_t *dense = malloc(2ull * rows * cols);
    trf_expert_pack_options options;
    trf_experts *packed = NULL;
    trf_expert_pack_options_init(&options);
    options.gate_up_order = up ? TRF_GATE_UP_INTERLEAVED_8 : TRF_GATE_UP_HALVES;
    options.packed_bf16 = packed_bf16;
    for (uint32_t e = 0; e < experts->count; e++) {
        const size_t half = (size_t)experts->rows * cols;
        memcpy(dense, experts->from[e].weights, 2 * half);
        if (up)
            memcpy(dense + half, up->from[e].weights, 2 * half);
        memory[e] = device_upload(device, dense, 2ull * rows * cols);
        trf_device_matrix_init(&matrices[e]);
        matrices[e].weights = memory[e];
        matrices[e].rows = rows;
        matrices[e].cols = cols;
    }
    fixture_check_status(trf_experts_pack(device, matrices, experts->count, &options, &packed, &err), TRF_OK, &err);
    for (uint32_t e = 0; e < experts->count; e++)
        trf_device_free(device, memory[e]);
    free(dense);
    return packed;
}

static trf_experts *pack_bf16(const fp8_experts *experts, const fp8_experts *up) { return pack(experts, up, 1); }

static trf_layout layout_of(const trf_experts *experts, uint32_t expert) {
    return test_device_layer_info(trf_experts_layer(experts, expert)).layout;
}

static void check_weights(const trf_experts *packed, const fp8_experts *experts, const fp8_experts *up, int turns) {
    const uint32_t rows = experts->rows * (up ? 2 : 1);
    for (uint32_t e = 0; e < experts->count; e++) {
        uint8_t *weights = device_decode(trf_experts_layer(packed, e), TRF_DECODE_SOURCE);
        for (uint32_t row = 0; row < rows; row++)
            if (memcmp(weights + 2ull * row * experts->cols, row_of(experts, up, turns, e, row), 2ull * experts->cols))
                ck_abort_msg("expert %u: row %u differs", e, row);
        free(weights);
    }
    fixture_check_status(trf_experts_check(packed, &err), TRF_OK, &err);
}

/* ---- products ---- */

/* Ragged counts, with experts that have no tokens. */
static void check_products(const trf_experts *packed, const fp8_experts *experts, const fp8_experts *up, int turns,
                           uint32_t tokens) {
    const uint32_t rows = experts->rows * (up ? 2 : 1), cols = experts->cols, count = experts->count;
    test_rng rng = {tokens};
    uint32_t offsets[MOST_EXPERTS + 1] = {0};
    for (uint32_t e = 0; e < count; e++)
        offsets[e + 1] = e % 3 == 1       ? offsets[e]
                         : e == count - 1 ? tokens
                                          : offsets[e] + test_below(&rng, tokens - offsets[e] + 1);
    uint16_t *x = malloc(2ull * tokens * cols);
    float *y = calloc((size_t)tokens * rows, sizeof *y);
    for (size_t i = 0; i < (size_t)tokens * cols; i++)
        x[i] = trf_f32_to_bf16((float)test_below(&rng, 9) - 4);
    trf_experts_plan *plan = NULL;
    fixture_check_status(trf_experts_plan_create(packed, tokens, TRF_DTYPE_BF16, TRF_DTYPE_F32, &plan, &err), TRF_OK,
                         &err);
    void *x_dev = device_upload(device, x, 2ull * tokens * cols),
         *y_dev = device_upload(device, y, 4ull * tokens * rows),
         *offsets_dev = device_upload(device, offsets, sizeof offsets), *workspace;
    fixture_check_status(trf_device_allocate(device, trf_experts_plan_workspace_bytes(plan), &workspace, &err), TRF_OK,
                         &err);
    fixture_check_status(trf_experts_linear(plan, x_dev, offsets_dev, y_dev, workspace, NULL, &err), TRF_OK, &err);
    fixture_check_status(trf_device_download(device, y, y_dev, 4ull * tokens * rows, &err), TRF_OK, &err);
    for (uint32_t e = 0; e < count; e++)
        for (uint32_t token = offsets[e]; token < offsets[e + 1]; token++)
            for (uint32_t row = token % 5; row<rows; row += tokens> 50 ? 5 : 1) {
                const uint16_t *w = row_of(experts, up, turns, e, row);
                double sum = 0;
                for (uint32_t col = 0; col < cols; col++)
                    sum += (double)trf_bf16_to_f32(w[col]) * (double)trf_bf16_to_f32(x[(size_t)token * cols + col]);
                EXPECT((double)(float)sum == sum);
                if ((double)y[(size_t)token * rows + row] != sum)
                    ck_abort_msg("%u tokens, expert %u, token %u, row %u: %g, not %g", tokens, e, token, row,
                                 (double)y[(size_t)token * rows + row], sum);
            }
    void *const all[] = {x_dev, y_dev, offsets_dev, workspace};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        trf_device_free(device, all[i]);
    trf_experts_plan_destroy(plan);
    free(x);
    free(y);
}

/* _i % 3: gate and up are two tensors, one in halves whose up begins within a block, or there are no turns. */
START_TEST(experts_are_exact) {
    static const uint32_t tokens[] = {1, 9, 64, 300, 1500};
    static const uint32_t shapes[][2] = {{96, 1160}, {136, 264}};
    const int way = _i % 3;
    const uint32_t inner = way == 1 ? 96 : shapes[_i / 3][0], cols = shapes[_i / 3][1];
    test_rng rng = {200 + (uint64_t)_i};
    fp8_experts first = make_experts(&rng, 5, way == 1 ? 2 * inner : inner, cols, 15), second = {0}, *up = NULL;
    if (way == 0) {
        second = make_experts(&rng, 5, inner, cols, 0);
        up = &second;
    }
    trf_experts *packed = convert(&first, up, way < 2 ? TRF_GATE_UP_INTERLEAVED_8 : TRF_GATE_UP_HALVES);
    for (uint32_t e = 0; e < first.count; e++) {
        ck_assert_int_eq(layout_of(packed, e), TRF_LAYOUT_PACKED8);
        ck_assert_str_eq(trf_device_layer_get_layout_reason(trf_experts_layer(packed, e)), "");
    }
    check_weights(packed, &first, up, way < 2);
    for (size_t i = 0; i < sizeof tokens / sizeof *tokens; i++)
        if (!ON_CPU || (tokens[i] <= 300 && (!test_quick() || tokens[i] <= 64)))
            check_products(packed, &first, up, way < 2, tokens[i]);
    trf_experts_destroy(packed);
    free_experts(&first);
    free_experts(&second);
}
END_TEST

/* ---- mixtures ---- */

typedef struct moe_memory {
    void *x, *ids, *weights, *y, *workspace;
} moe_memory;

static moe_memory upload_operands(uint32_t tokens, uint32_t top_k, uint32_t experts, uint32_t hidden) {
    test_rng rng = {tokens};
    uint16_t *x = malloc(2ull * tokens * hidden);
    int32_t *ids = malloc(sizeof *ids * tokens * top_k);
    float *weights = malloc(sizeof *weights * tokens * top_k);
    test_fill_normal(&rng, x, TRF_DTYPE_BF16, (uint64_t)tokens * hidden, 1.0);
    for (uint32_t i = 0; i < tokens * top_k; i++) {
        ids[i] = test_below(&rng, 3) ? 0 : (int32_t)test_below(&rng, experts + 1) - 1; /* some are none */
        weights[i] = (float)test_uniform(&rng);
    }
    const moe_memory made = {.x = device_upload(device, x, 2ull * tokens * hidden),
                             .ids = device_upload(device, ids, sizeof *ids * tokens * top_k),
                             .weights = device_upload(device, weights, sizeof *weights * tokens * top_k),
                             .y = device_upload(device, x, 2ull * tokens * hidden)};
    free(x);
    free(ids);
    free(weights);
    return made;
}

/* @return y, [tokens][hidden]; malloc'd. */
static uint16_t *forward(const trf_experts *gate_up, const trf_experts *down, uint32_t tokens) {
    const uint32_t hidden = test_device_layer_info(trf_experts_layer(down, 0)).layer.rows, top_k = 2;
    trf_moe_options options;
    trf_moe_operands operands;
    trf_moe *moe = NULL;
    uint64_t bytes;
    trf_moe_options_init(&options);
    options.max_tokens = tokens;
    options.top_k = top_k;
    options.gate_up_order = TRF_GATE_UP_INTERLEAVED_8;
    fixture_check_status(trf_moe_create(gate_up, down, &options, &moe, &err), TRF_OK, &err);
    fixture_check_status(trf_moe_get_workspace(moe, tokens, &bytes, &err), TRF_OK, &err);
    moe_memory memory = upload_operands(tokens, top_k, trf_experts_count(down), hidden);
    fixture_check_status(trf_device_allocate(device, bytes, &memory.workspace, &err), TRF_OK, &err);
    trf_moe_operands_init(&operands);
    operands.tokens = tokens;
    operands.x = memory.x;
    operands.ids = memory.ids;
    operands.weights = memory.weights;
    operands.y = memory.y;
    fixture_check_status(trf_moe_forward(moe, &operands, memory.workspace, NULL, &err), TRF_OK, &err);
    uint16_t *y = malloc(2ull * tokens * hidden);
    fixture_check_status(trf_device_download(device, y, memory.y, 2ull * tokens * hidden, &err), TRF_OK, &err);
    void *const all[] = {memory.x, memory.ids, memory.weights, memory.y, memory.workspace};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        trf_device_free(device, all[i]);
    trf_moe_destroy(moe);
    return y;
}

static void expect_same_mixture(const trf_experts *const packed8[2], const trf_experts *const bf16[2],
                                uint32_t tokens) {
    const uint32_t hidden = test_device_layer_info(trf_experts_layer(bf16[1], 0)).layer.rows;
    uint16_t *due = forward(bf16[0], bf16[1], tokens), *y = forward(packed8[0], packed8[1], tokens);
    for (size_t i = 0; i < (size_t)tokens * hidden; i++)
        if (y[i] != due[i])
            ck_abort_msg("%u tokens: y[%zu][%zu] is %g, not %g", tokens, i / hidden, i % hidden,
                         (double)trf_bf16_to_f32(y[i]), (double)trf_bf16_to_f32(due[i]));
    free(y);
    free(due);
}

/* Every kernel, and gate and up packed otherwise than down. exceptions: of expert 1, in gate. */
static void check_mixtures(uint32_t exceptions, int falls_back) {
    static const uint32_t tokens[] = {1, 9, 40, 300, 1500};
    test_rng rng = {300 + exceptions};
    fp8_experts gate = make_experts(&rng, 4, 160, 264, exceptions), up = make_experts(&rng, 4, 160, 264, 2),
                down = make_experts(&rng, 4, 264, 160, 15);
    trf_experts *packed8[] = {convert(&gate, &up, TRF_GATE_UP_INTERLEAVED_8), convert(&down, NULL, TRF_GATE_UP_HALVES)},
                *bf16[] = {pack_bf16(&gate, &up), pack_bf16(&down, NULL)};
    ck_assert_int_eq(layout_of(packed8[1], 3), TRF_LAYOUT_PACKED8);
    ck_assert_int_eq(layout_of(bf16[1], 3), TRF_LAYOUT_PACKED);
    check_weights(packed8[0], &gate, &up, 1);
    for (uint32_t e = 0; e < gate.count; e++) {
        const char *reason = trf_device_layer_get_layout_reason(trf_experts_layer(packed8[0], e));
        ck_assert_int_eq(layout_of(packed8[0], e), falls_back ? TRF_LAYOUT_PACKED : TRF_LAYOUT_PACKED8);
        if (falls_back) {
            ck_assert_ptr_nonnull(strstr(reason, "expert 1: the layer cannot be packed as FP8"));
            ck_assert_ptr_nonnull(strstr(reason, "at most 15 may be"));
        } else {
            ck_assert_str_eq(reason, "");
        }
    }
    for (size_t i = 0; i < sizeof tokens / sizeof *tokens; i++)
        if (!ON_CPU || tokens[i] <= (test_quick() ? 40u : 300u))
            expect_same_mixture((const trf_experts *const *)packed8, (const trf_experts *const *)bf16, tokens[i]);
    for (int i = 0; i < 2; i++) {
        trf_experts_destroy(packed8[i]);
        trf_experts_destroy(bf16[i]);
    }
    free_experts(&gate);
    free_experts(&up);
    free_experts(&down);
}

START_TEST(mixtures_are_those_of_bf16) { check_mixtures(12, 0); }
END_TEST
START_TEST(experts_that_do_not_fit_are_bf16) { check_mixtures(17, 1); }
END_TEST

/* ---- one expert, and refusals ---- */

static void expect_refused(const trf_device_layer *gate, const trf_device_layer *up, trf_status status,
                           const char *text) {
    trf_device_layer *made = NULL;
    trf_layer_size size;
    fixture_check_status(trf_gate_up_convert(gate, up, NULL, &made, &err), status, &err);
    ck_assert_ptr_null(made);
    if (!strstr(err.message, text))
        ck_abort_msg("\"%s\" does not say \"%s\"", err.message, text);
    fixture_check_status(trf_gate_up_get_converted_size(gate, up, &size, &err), status, &err);
}

/* What has rows in turns is joined to nothing, and nothing is packed like it: the bytes would mean other weights. */
static void expect_rows_in_turns_refused(const trf_device_layer *turns) {
    const trf_device_layer_info info = test_device_layer_info(turns);
    const uint64_t bytes = 2ull * info.layer.rows * info.layer.cols;
    trf_device_layer *made = NULL;
    trf_pack_options options;
    trf_device_matrix matrix;
    fixture_check_status(trf_device_layer_join(&turns, 1, NULL, &made, &err), TRF_ERR_UNSUPPORTED, &err);
    trf_pack_options_init(&options);
    trf_device_matrix_init(&matrix);
    options.like = turns;
    void *weights;
    fixture_check_status(trf_device_allocate(device, bytes, &weights, &err), TRF_OK, &err);
    matrix.weights = weights;
    matrix.rows = info.layer.rows;
    matrix.cols = matrix.ld = info.layer.cols;
    fixture_check_status(trf_device_layer_decode(turns, TRF_DECODE_SOURCE, weights, bytes, NULL, &err), TRF_OK, &err);
    fixture_check_status(trf_device_layer_pack(device, &matrix, &options, &made, &err), TRF_ERR_ARGUMENT, &err);
    ck_assert_ptr_null(made);
    trf_device_free(device, weights);
}

START_TEST(one_expert_and_refusals) {
    test_rng rng = {400};
    fp8_experts gate = make_experts(&rng, 2, 64, 136, 0), other = make_experts(&rng, 1, 72, 136, 0),
                odd = make_experts(&rng, 1, 12, 136, 0), halves = make_experts(&rng, 1, 272, 136, 0);
    trf_device_layer *bf16 = code(&gate.from[0], TRF_CODEC_BF16), *made = NULL;
    trf_layer_size size;
    trf_layer_memory memory = {0};
    fixture_check_status(trf_gate_up_get_converted_size(gate.layers[0], gate.layers[1], &size, &err), TRF_OK, &err);
    ck_assert_uint_eq(size.directory_bytes, 0);
    fixture_check_status(trf_device_allocate(device, size.buffer_bytes, &memory.buffer, &err), TRF_OK, &err);
    memory.buffer_bytes = size.buffer_bytes - 1;
    fixture_check_status(trf_gate_up_convert(gate.layers[0], gate.layers[1], &memory, &made, &err), TRF_ERR_ARGUMENT,
                         &err);
    memory.buffer_bytes = size.buffer_bytes;
    fixture_check_status(trf_gate_up_convert(gate.layers[0], gate.layers[1], &memory, &made, &err), TRF_OK, &err);
    const trf_device_layer_info info = test_device_layer_info(made);
    ck_assert_uint_eq(info.layer.rows, 128);
    ck_assert_int_eq(info.layer.codec, TRF_CODEC_BF16);
    ck_assert_int_eq(info.layout, TRF_LAYOUT_PACKED8);
    /* Its buffer says all of it, turns included. */
    trf_device_layer *adopted = NULL;
    trf_load_options options;
    trf_load_options_init(&options);
    options.layout = TRF_LAYOUT_PACKED8;
    options.buffer_is_on_device = 1;
    options.memory = memory;
    fixture_check_status(trf_device_layer_create(device, memory.buffer, memory.buffer_bytes, &options, &adopted, &err),
                         TRF_OK, &err);
    device_check_weights(made, adopted, TRF_DECODE_SOURCE);
    trf_device_layer_destroy(adopted);
    expect_rows_in_turns_refused(made);
    trf_device_layer_destroy(made);
    trf_device_free(device, memory.buffer);

    expect_refused(bf16, gate.layers[0], TRF_ERR_UNSUPPORTED, "the codec bf16");
    expect_refused(gate.layers[0], other.layers[0], TRF_ERR_ARGUMENT, "gate is 64x136 and up 72x136");
    expect_refused(odd.layers[0], odd.layers[0], TRF_ERR_UNSUPPORTED, "24 rows in all cannot take turns");
    expect_refused(NULL, NULL, TRF_ERR_ARGUMENT, "need layers");
    /* up begins 8 rows into 32 of a block */
    expect_refused(halves.layers[0], NULL, TRF_ERR_UNSUPPORTED, "begins at row 8 and column 0: 32x128 weights");
    trf_device_layer_destroy(bf16);
    free_experts(&gate);
    free_experts(&other);
    free_experts(&odd);
    free_experts(&halves);
}
END_TEST

/* ---- loading ---- */

/* Compresses experts to a checkpoint with the tensor "experts", and opens that. */
static trf_checkpoint *open_experts(const fp8_experts *experts) {
    const size_t each = 2ull * experts->rows * experts->cols, bytes = experts->count * each;
    char header[256];
    const int length = snprintf(header + 8, sizeof header - 8,
                                "{\"experts\":{\"dtype\":\"BF16\",\"shape\":[%u,%u,%u],\"data_offsets\":[0,%zu]}}",
                                experts->count, experts->rows, experts->cols, bytes);
    uint8_t *file = malloc(8 + (size_t)length + bytes);
    const uint64_t header_bytes = (uint64_t)length;
    memcpy(header, &header_bytes, 8);
    memcpy(file, header, 8 + (size_t)length);
    for (uint32_t e = 0; e < experts->count; e++)
        memcpy(file + 8 + length + e * each, experts->from[e].weights, each);
    const char *source = fixture_path("in.safetensors"), *compressed = fixture_path("compressed.safetensors");
    fixture_write(source, file, 8 + (size_t)length + bytes);
    free(file);
    trf_checkpoint_options options;
    trf_checkpoint *checkpoint;
    trf_checkpoint_options_init(&options);
    fixture_check_status(trf_compress_checkpoint(source, compressed, &options, NULL, &err), TRF_OK, &err);
    fixture_check_status(trf_checkpoint_open(compressed, &checkpoint, &err), TRF_OK, &err);
    return checkpoint;
}

/* The tensor becomes packed FP8, or, if expert 1 does not fit, packed BF16, all of it. _i: whether that is so. */
START_TEST(loaded_experts) {
    test_rng rng = {500 + (uint64_t)_i};
    fp8_experts made = make_experts(&rng, 3, 192, 264, _i ? 30 : 4);
    fixture_begin();
    trf_checkpoint *checkpoint = open_experts(&made);
    trf_load_options options;
    trf_experts *experts = NULL;
    trf_load_options_init(&options);
    options.layout = TRF_LAYOUT_PACKED;
    fixture_check_status(trf_experts_load(device, checkpoint, "experts", &options, &experts, &err), TRF_OK, &err);
    check_weights(experts, &made, NULL, 0);
    for (uint32_t e = 0; e < made.count; e++) {
        ck_assert_int_eq(layout_of(experts, e), _i ? TRF_LAYOUT_PACKED : TRF_LAYOUT_PACKED8);
        const char *reason = trf_device_layer_get_layout_reason(trf_experts_layer(experts, e));
        if (_i)
            ck_assert_ptr_nonnull(strstr(reason, "expert 1: the layer cannot be packed as FP8"));
        else
            ck_assert_str_eq(reason, "");
    }
    check_products(experts, &made, NULL, 0, 20);
    trf_experts_destroy(experts);
    experts = NULL;
    options.layout = TRF_LAYOUT_PACKED8;
    fixture_check_status(trf_experts_load(device, checkpoint, "experts", &options, &experts, &err),
                         _i ? TRF_ERR_UNSUPPORTED : TRF_OK, &err);
    trf_experts_destroy(experts);
    options.layout = TRF_LAYOUT_PACKED;
    options.packed_bf16 = 1;
    fixture_check_status(trf_experts_load(device, checkpoint, "experts", &options, &experts, &err), TRF_OK, &err);
    ck_assert_int_eq(layout_of(experts, 0), TRF_LAYOUT_PACKED);
    trf_experts_destroy(experts);
    trf_checkpoint_close(checkpoint);
    fixture_end();
    free_experts(&made);
}
END_TEST

/* ---- dense experts that were FP8 ---- */

/* FP8 is found in dense experts, in turns or not, and packed as coded ones are. _i: whether in turns.
 */
START_TEST(dense_experts_were_fp8) {
    test_rng rng = {600 + (uint64_t)_i};
    fp8_experts first = make_experts(&rng, 3, 160, 264, 5), second = make_experts(&rng, 3, 160, 264, 5),
                *up = _i ? &second : NULL;
    trf_experts *packed = pack(&first, up, 0),
                *due = convert(&first, up, _i ? TRF_GATE_UP_INTERLEAVED_8 : TRF_GATE_UP_HALVES);
    for (uint32_t e = 0; e < first.count; e++) {
        const trf_device_layer *layer = trf_experts_layer(packed, e);
        ck_assert_int_eq(layout_of(packed, e), TRF_LAYOUT_PACKED8);
        ck_assert_str_eq(trf_device_layer_get_layout_reason(layer), "");
        ck_assert_uint_eq(test_device_layer_info(layer).memory_bytes,
                          test_device_layer_info(trf_experts_layer(due, e)).memory_bytes);
    }
    check_weights(packed, &first, up, _i);
    check_products(packed, &first, up, _i, 40);
    trf_experts_destroy(packed);
    trf_experts_destroy(due);
    free_experts(&first);
    free_experts(&second);
}
END_TEST

/* Makes an expert one that never was FP8. */
static void make_bf16(fp8_experts *experts, test_rng *rng, uint32_t expert) {
    const uint64_t count = (uint64_t)experts->rows * experts->cols;
    test_fill_normal(rng, experts->from[expert].weights, TRF_DTYPE_BF16, count, 0.02);
}

/* Expects packed BF16 experts whose reasons are this, or begin with it. */
static void check_all_bf16(const fp8_experts *first, const fp8_experts *up, const char *reason) {
    trf_experts *packed = pack(first, up, 0);
    for (uint32_t e = 0; e < first->count; e++) {
        const char *found = trf_device_layer_get_layout_reason(trf_experts_layer(packed, e));
        ck_assert_int_eq(layout_of(packed, e), TRF_LAYOUT_PACKED);
        if (reason[0] ? strncmp(found, reason, strlen(reason)) != 0 : found[0] != 0)
            ck_abort_msg("expert %u: '%s', not '%s'", e, found, reason);
    }
    check_weights(packed, first, up, up != NULL);
    trf_experts_destroy(packed);
}

/* One expert that is no FP8, or has too many exceptions, makes all packed BF16; what never was FP8 has no reason. */
START_TEST(dense_experts_that_are_bf16) {
    test_rng rng = {700 + (uint64_t)_i};
    fp8_experts first = make_experts(&rng, 3, 160, 264, 30), second = make_experts(&rng, 3, 160, 264, 3),
                *up = _i ? &second : NULL;
    const char *const no_codes = _i ? "the weights of gate are no codes" : "the weights are no codes";
    char reason[80];
    check_all_bf16(&first, up, "expert 1: the layer cannot be packed as FP8: ");
    make_bf16(&first, &rng, 1);
    snprintf(reason, sizeof reason, "expert 1: %s", no_codes);
    check_all_bf16(&first, up, reason);
    make_bf16(&first, &rng, 0);
    snprintf(reason, sizeof reason, "expert 0: %s", no_codes);
    check_all_bf16(&first, up, reason);
    make_bf16(&first, &rng, 2);
    check_all_bf16(&first, up, "");
    free_experts(&first);
    free_experts(&second);
}
END_TEST

START_TEST(dense_gate_and_up_refusals) {
    test_rng rng = {800};
    trf_device_layer *layer = NULL;
    trf_device_matrix matrix;
    packed8_layer made = make_weights(&rng, 320, 264, 0);
    trf_device_matrix_init(&matrix);
    void *memory = device_upload(device, made.weights, 2ull * 320 * 264);
    matrix.weights = memory;
    matrix.cols = 264;
    matrix.rows = 312;
    fixture_check_status(trf_gate_up_pack(device, &matrix, NULL, NULL, &layer, &err), TRF_ERR_UNSUPPORTED, &err);
    EXPECT(strstr(err.message, "cannot take turns by 8 rows") != NULL);
    matrix.rows = 0;
    fixture_check_status(trf_gate_up_pack(device, &matrix, NULL, NULL, &layer, &err), TRF_ERR_ARGUMENT, &err);
    matrix.rows = 288; /* up begins at row 144, within scale blocks, whose scales differ */
    fixture_check_status(trf_gate_up_pack(device, &matrix, NULL, NULL, &layer, &err), TRF_ERR_MISMATCH, &err);
    EXPECT(strstr(err.message, "the weights of up are no codes") != NULL);
    matrix.weights = NULL;
    fixture_check_status(trf_gate_up_pack(device, &matrix, NULL, NULL, &layer, &err), TRF_ERR_ARGUMENT, &err);
    fixture_check_status(trf_gate_up_pack(device, NULL, NULL, NULL, &layer, &err), TRF_ERR_ARGUMENT, &err);
    fixture_check_status(trf_gate_up_pack(NULL, &matrix, NULL, NULL, &layer, &err), TRF_ERR_ARGUMENT, &err);
    ck_assert_ptr_null(layer);
    trf_device_free(device, memory);
    packed8_layer_free(&made);
}
END_TEST

int main(void) {
    if (test_device_missing("gpu.moe8"))
        return 77;
    Suite *suite = suite_create("device_moe8");
    TCase *tests = tcase_create("device_moe8");
    tcase_add_checked_fixture(tests, begin, end);
    tcase_set_timeout(tests, 240);
    tcase_add_loop_test(tests, experts_are_exact, 0, 6);
    tcase_add_test(tests, mixtures_are_those_of_bf16);
    tcase_add_test(tests, experts_that_do_not_fit_are_bf16);
    tcase_add_test(tests, one_expert_and_refusals);
    tcase_add_loop_test(tests, loaded_experts, 0, 2);
    tcase_add_loop_test(tests, dense_experts_were_fp8, 0, 2);
    tcase_add_loop_test(tests, dense_experts_that_are_bf16, 0, 2);
    tcase_add_test(tests, dense_gate_and_up_refusals);
    suite_add_tcase(suite, tests);
    return run_suite(suite);
}
