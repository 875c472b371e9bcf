/* SPDX-License-Identifier: Apache-2.0 */
/* Packed experts and mixtures of them, compared with F64: all kinds of counts, ids and maps, biases, both activations,
 * experts with many zeros beside others; mixtures of coded experts, which on a GPU give the bits of packed ones; the
 * same bits on every run; and what is refused. These tests run on the CPU;
 * tests/gpu/ builds this file for a GPU, too, with its ordinal as TRF_TEST_DEVICE. */
#include "common/any_device.h"
#include "common/checkpoint_fixture.h"
#include "common/device_layers.h"
#include "common/expect.h"
#include "common/run_suite.h"
#include "common/test_weights.h"
#include "transfuse/experts.h"
#include "trf_number_formats.h"

#include <check.h>
#include <math.h>
#include <string.h>

enum {
    MOST_EXPERTS = 40
};

static trf_error err;
static trf_context *device;

static void begin(void) { fixture_check_status(trf_context_create(TRF_TEST_DEVICE, &device, &err), TRF_OK, &err); }
static void end(void) { trf_context_destroy(device); }

/* ---- dense experts, in host and in device memory ---- */

typedef struct dense_experts {
    uint16_t *host; /* [count][rows][cols] */
    void *memory;
    trf_device_matrix matrices[MOST_EXPERTS];
    uint32_t count, rows, cols;
} dense_experts;

/* Each third expert has so many zeros that it is packed as a zeroing layer, if zeros is set. */
static dense_experts make_dense(test_rng *rng, uint32_t count, uint32_t rows, uint32_t cols, int zeros) {
    const uint64_t each = (uint64_t)rows * cols;
    dense_experts dense = {.host = calloc(count * each, 2), .count = count, .rows = rows, .cols = cols};
    for (uint32_t e = 0; e < count; e++) {
        test_fill_normal(rng, dense.host + e * each, TRF_DTYPE_BF16, each, e % 5 == 4 ? 0.5 : 0.02);
        for (uint64_t i = 0; zeros && e % 3 == 2 && i < each; i += 1 + test_below(rng, 500))
            dense.host[e * each + i] = i % 2 ? 0x8000 : 0;
    }
    dense.memory = device_upload(device, dense.host, 2 * count * each);
    for (uint32_t e = 0; e < count; e++) {
        trf_device_matrix_init(&dense.matrices[e]);
        dense.matrices[e].weights = (uint8_t *)dense.memory + 2 * e * each;
        dense.matrices[e].rows = rows;
        dense.matrices[e].cols = cols;
    }
    return dense;
}

static void free_dense(dense_experts *dense) {
    trf_device_free(device, dense->memory);
    free(dense->host);
}

static trf_experts *pack(const dense_experts *dense, trf_gate_up_order order) {
    trf_expert_pack_options options;
    trf_experts *experts = NULL;
    trf_expert_pack_options_init(&options);
    options.gate_up_order = order;
    fixture_check_status(trf_experts_pack(device, dense->matrices, dense->count, &options, &experts, &err), TRF_OK,
                         &err);
    return experts;
}

static double weight_at(const dense_experts *dense, uint32_t expert, uint32_t row, uint32_t col) {
    return trf_bf16_to_f32(dense->host[((uint64_t)expert * dense->rows + row) * dense->cols + col]);
}

/* ---- a mixture ---- */

typedef struct moe_case {
    uint32_t experts, hidden, inner, top_k, tokens;
    int zeros, biases, maps;
    uint32_t id_bytes;
    trf_activation activation;
} moe_case;

/* On a GPU these have few tokens an expert and many, and routes that blocks sort themselves and that they do not; no
 * size is a multiple of a tile. */
static const moe_case kCases[] = {
    {8, 64, 24, 2, 1, 0, 0, 0, 4, TRF_ACTIVATION_SILU},     {13, 328, 104, 4, 5, 1, 1, 0, 8, TRF_ACTIVATION_GELU_TANH},
    {20, 264, 200, 3, 70, 0, 0, 1, 4, TRF_ACTIVATION_SILU}, {40, 136, 72, 8, 130, 1, 0, 0, 8, TRF_ACTIVATION_SILU},
    {5, 136, 72, 2, 300, 0, 1, 1, 4, TRF_ACTIVATION_SILU},  {3, 72, 40, 2, 500, 1, 0, 0, 4, TRF_ACTIVATION_GELU_TANH},
    {6, 40, 16, 3, 1500, 0, 1, 0, 8, TRF_ACTIVATION_SILU},  {1, 16, 8, 1, 40, 0, 0, 0, 4, TRF_ACTIVATION_SILU},
};

typedef struct moe_run {
    const moe_case *of;
    uint32_t num_ids;
    dense_experts gate_up, down;
    uint16_t *x, *gate_up_bias, *down_bias;
    int64_t *ids; /* [tokens][top_k] */
    int32_t *map; /* [num_ids] or NULL */
    float *weights;
} moe_run;

static uint16_t *random_bf16(test_rng *rng, uint64_t count, double sigma) {
    uint16_t *values = malloc(2 * count);
    test_fill_normal(rng, values, TRF_DTYPE_BF16, count, sigma);
    return values;
}

static moe_run make_run(const moe_case *of) {
    test_rng rng = {of->tokens + 1000ull * of->hidden};
    const uint32_t routes = of->tokens * of->top_k;
    moe_run run = {.of = of,
                   .num_ids = of->maps ? 2 * of->experts : of->experts,
                   .gate_up = make_dense(&rng, of->experts, 2 * of->inner, of->hidden, of->zeros),
                   .down = make_dense(&rng, of->experts, of->hidden, of->inner, of->zeros),
                   .x = random_bf16(&rng, (uint64_t)of->tokens * of->hidden, 1.0),
                   .ids = malloc(routes * sizeof *run.ids),
                   .weights = malloc(routes * sizeof *run.weights)};
    for (uint32_t i = 0; i < routes; i++) {
        const uint32_t kind = test_below(&rng, 16);
        /* one expert has far more tokens than the others; some ids are none */
        run.ids[i] = kind < 4    ? 0
                     : kind == 4 ? -1
                     : kind == 5 ? (int64_t)run.num_ids
                                 : (int64_t)test_below(&rng, run.num_ids);
        run.weights[i] = (float)test_uniform(&rng);
    }
    if (of->biases) {
        run.gate_up_bias = random_bf16(&rng, 2ull * of->experts * of->inner, 0.5);
        run.down_bias = random_bf16(&rng, (uint64_t)of->experts * of->hidden, 0.5);
    }
    if (of->maps) {
        run.map = malloc(run.num_ids * sizeof *run.map);
        for (uint32_t i = 0; i < run.num_ids; i++)
            run.map[i] = i % 2 ? (int32_t)(of->experts - 1 - i / 2) : -1;
    }
    return run;
}

static void free_run(moe_run *run) {
    free_dense(&run->gate_up);
    free_dense(&run->down);
    free(run->x);
    free(run->gate_up_bias);
    free(run->down_bias);
    free(run->ids);
    free(run->map);
    free(run->weights);
}

/* The expert of a route, or -1. */
static int32_t expert_of(const moe_run *run, uint64_t route) {
    const int64_t id = run->ids[route];
    if (id < 0 || id >= run->num_ids)
        return -1;
    return run->map ? run->map[id] : (int32_t)id;
}

static double bias_at(const uint16_t *bias, uint64_t at) { return bias ? trf_bf16_to_f32(bias[at]) : 0; }

/* Row i of gate lies at i / 8 * 16 + i % 8 among interleaved rows, and that of up 8 rows later. */
static void compute_hidden(const moe_run *run, uint64_t route, uint32_t expert, double *hidden) {
    const moe_case *of = run->of;
    const uint16_t *x = run->x + route / of->top_k * of->hidden;
    for (uint32_t i = 0; i < of->inner; i++) {
        double gate = 0, up = 0;
        for (uint32_t c = 0; c < of->hidden; c++) {
            gate += weight_at(&run->gate_up, expert, i, c) * trf_bf16_to_f32(x[c]);
            up += weight_at(&run->gate_up, expert, of->inner + i, c) * trf_bf16_to_f32(x[c]);
        }
        const uint64_t at = 2ull * expert * of->inner + i / 8 * 16 + i % 8;
        gate += bias_at(run->gate_up_bias, at);
        up += bias_at(run->gate_up_bias, at + 8);
        const double active =
            of->activation == TRF_ACTIVATION_SILU
                ? gate / (1 + exp(-gate))
                : gate / 2 * (1 + tanh(sqrt(2 / acos(-1.0)) * (gate + 0.044715 * gate * gate * gate)));
        hidden[i] = trf_bf16_to_f32(trf_f32_to_bf16((float)(active * up)));
    }
}

/* Compares a token's y. What rounds to BF16 on its way has an error of 2^-9 of its value at most, and errors of a sum
 * are independent. Adds the squares of errors and of values. */
static void check_token(const moe_run *run, const uint16_t *y, uint32_t token, double *errors, double *values) {
    const moe_case *of = run->of;
    double *hidden = malloc(of->top_k * of->inner * sizeof *hidden);
    for (uint32_t k = 0; k < of->top_k; k++) {
        const int32_t expert = expert_of(run, (uint64_t)token * of->top_k + k);
        if (expert >= 0)
            compute_hidden(run, (uint64_t)token * of->top_k + k, (uint32_t)expert, hidden + k * of->inner);
    }
    for (uint32_t row = 0; row < of->hidden; row++) {
        double sum = 0, squares = 0;
        for (uint32_t k = 0; k < of->top_k; k++) {
            const uint64_t route = (uint64_t)token * of->top_k + k;
            const int32_t expert = expert_of(run, route);
            if (expert < 0)
                continue;
            double slot = bias_at(run->down_bias, (uint64_t)expert * of->hidden + row);
            for (uint32_t i = 0; i < of->inner; i++) {
                const double term = weight_at(&run->down, (uint32_t)expert, row, i) * hidden[k * of->inner + i];
                slot += term;
                squares += pow(run->weights[route] * term, 2);
            }
            sum += run->weights[route] * slot;
            squares += pow(run->weights[route] * slot, 2);
        }
        const double got = trf_bf16_to_f32(y[(uint64_t)token * of->hidden + row]), error = fabs(got - sum);
        if (!(error <= 0x1p-8 * fabs(sum) + 8 * 0x1p-9 * sqrt(squares)))
            ck_abort_msg("token %u, row %u: %g in place of %g", token, row, got, sum);
        *errors += error * error;
        *values += sum * sum;
    }
    free(hidden);
}

/* All that a run has on the device. */
typedef struct moe_memory {
    void *x, *ids, *map, *weights, *gate_up_bias, *down_bias, *y, *workspace;
    uint64_t workspace_bytes;
} moe_memory;

static void *upload_or_null(const void *host, uint64_t bytes) {
    return host ? device_upload(device, host, bytes) : NULL;
}

static moe_memory upload_run(const moe_run *run, const trf_moe *moe) {
    const moe_case *of = run->of;
    const uint64_t routes = (uint64_t)of->tokens * of->top_k, y_bytes = 2ull * of->tokens * of->hidden;
    moe_memory memory = {.x = device_upload(device, run->x, y_bytes),
                         .map = upload_or_null(run->map, run->num_ids * sizeof *run->map),
                         .weights = device_upload(device, run->weights, routes * sizeof *run->weights),
                         .gate_up_bias = upload_or_null(run->gate_up_bias, 4ull * of->experts * of->inner),
                         .down_bias = upload_or_null(run->down_bias, 2ull * of->experts * of->hidden)};
    int32_t *narrow = malloc(routes * sizeof *narrow);
    for (uint64_t i = 0; i < routes; i++)
        narrow[i] = (int32_t)run->ids[i];
    memory.ids =
        of->id_bytes == 8 ? device_upload(device, run->ids, routes * 8) : device_upload(device, narrow, routes * 4);
    free(narrow);
    fixture_check_status(trf_moe_get_workspace(moe, of->tokens, &memory.workspace_bytes, &err), TRF_OK, &err);
    fixture_check_status(trf_device_allocate(device, memory.workspace_bytes, &memory.workspace, &err), TRF_OK, &err);
    fixture_check_status(trf_device_allocate(device, y_bytes, &memory.y, &err), TRF_OK, &err);
    return memory;
}

static void free_memory(const moe_memory *memory) {
    void *const all[] = {memory->x,         memory->ids, memory->map,      memory->weights, memory->gate_up_bias,
                         memory->down_bias, memory->y,   memory->workspace};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        trf_device_free(device, all[i]);
}

/* Runs a mixture over memory that is all ones before. @return y; malloc'd. */
static uint16_t *forward(const moe_run *run, const trf_moe *moe, const moe_memory *memory) {
    const uint64_t y_bytes = 2ull * run->of->tokens * run->of->hidden;
    const uint64_t most = y_bytes > memory->workspace_bytes ? y_bytes : memory->workspace_bytes;
    uint16_t *y = malloc(most);
    memset(y, 0xFF, most);
    fixture_check_status(trf_device_upload(device, memory->y, y, y_bytes, &err), TRF_OK, &err);
    fixture_check_status(trf_device_upload(device, memory->workspace, y, memory->workspace_bytes, &err), TRF_OK, &err);
    trf_moe_operands operands;
    trf_moe_operands_init(&operands);
    operands.tokens = run->of->tokens;
    operands.x = memory->x;
    operands.ids = memory->ids;
    operands.id_bytes = run->of->id_bytes;
    operands.weights = memory->weights;
    operands.expert_map = memory->map;
    operands.gate_up_bias = memory->gate_up_bias;
    operands.down_bias = memory->down_bias;
    operands.y = memory->y;
    fixture_check_status(trf_moe_forward(moe, &operands, memory->workspace, NULL, &err), TRF_OK, &err);
    fixture_check_status(trf_device_download(device, y, memory->y, y_bytes, &err), TRF_OK, &err);
    return y;
}

static trf_moe_options options_of(const moe_run *run) {
    trf_moe_options options;
    trf_moe_options_init(&options);
    options.max_tokens = run->of->tokens;
    options.top_k = run->of->top_k;
    options.num_ids = run->num_ids;
    options.gate_up_order = TRF_GATE_UP_INTERLEAVED_8;
    options.activation = run->of->activation;
    return options;
}

START_TEST(mixtures_near_f64) {
    moe_run run = make_run(&kCases[_i]);
    trf_experts *gate_up = pack(&run.gate_up, TRF_GATE_UP_INTERLEAVED_8), *down = pack(&run.down, TRF_GATE_UP_HALVES);
    const trf_moe_options options = options_of(&run);
    trf_moe *moe = NULL;
    fixture_check_status(trf_moe_create(gate_up, down, &options, &moe, &err), TRF_OK, &err);
    const moe_memory memory = upload_run(&run, moe);
    uint16_t *y = forward(&run, moe, &memory);
    double errors = 0, values = 0;
    for (uint32_t token = 0; token < run.of->tokens; token += 1 + token / 20)
        check_token(&run, y, token, &errors, &values);
    if (!(sqrt(errors) <= 4e-3 * sqrt(values)))
        ck_abort_msg("an error of %g of the result", sqrt(errors / values));
    for (int i = 0; i < test_rounds(8); i++) {
        uint16_t *again = forward(&run, moe, &memory);
        EXPECT(memcmp(again, y, 2ull * run.of->tokens * run.of->hidden) == 0);
        free(again);
    }
    free(y);
    free_memory(&memory);
    trf_moe_destroy(moe);
    trf_experts_destroy(gate_up);
    trf_experts_destroy(down);
    free_run(&run);
}
END_TEST

/* ---- products of packed experts ---- */

START_TEST(packed_products_near_f64) {
    static const uint32_t shapes[][3] = {{7, 300, 515}, {16, 72, 64}, {3, 33, 131}};
    static const uint32_t most[] = {5, 200, 900};
    static const trf_dtype y_dtypes[] = {TRF_DTYPE_F32, TRF_DTYPE_BF16, TRF_DTYPE_F16};
    test_rng rng = {(uint64_t)_i + 1};
    const uint32_t count = shapes[_i % 3][0], rows = shapes[_i % 3][1], cols = shapes[_i % 3][2], tokens = most[_i / 3];
    const trf_dtype y_dtype = y_dtypes[(_i + _i / 3) % 3];
    dense_experts dense = make_dense(&rng, count, rows, cols, _i % 2);
    trf_experts *experts = pack(&dense, TRF_GATE_UP_HALVES);
    trf_experts_plan *plan = NULL;
    fixture_check_status(trf_experts_plan_create(experts, tokens, TRF_DTYPE_BF16, y_dtype, &plan, &err), TRF_OK, &err);
    uint32_t offsets[MOST_EXPERTS + 1] = {0};
    for (uint32_t e = 0; e < count; e++)
        offsets[e + 1] = e % 4 == 1 ? offsets[e] : offsets[e] + test_below(&rng, 1 + 2 * (tokens - offsets[e]) / count);
    const uint32_t used = offsets[count];
    uint16_t *x = random_bf16(&rng, (uint64_t)tokens * cols, 1.0);
    const uint64_t y_bytes = (uint64_t)tokens * rows * trf_dtype_bytes(y_dtype),
                   workspace_bytes = trf_experts_plan_workspace_bytes(plan);
    uint8_t *y = malloc(y_bytes), *untouched = malloc(y_bytes);
    memset(y, 0xA5, y_bytes);
    memset(untouched, 0xA5, y_bytes);
    void *x_dev = device_upload(device, x, 2ull * tokens * cols), *y_dev = device_upload(device, y, y_bytes),
         *offsets_dev = device_upload(device, offsets, sizeof offsets), *workspace;
    fixture_check_status(trf_device_allocate(device, workspace_bytes, &workspace, &err), TRF_OK, &err);
    fixture_check_status(trf_experts_linear(plan, x_dev, offsets_dev, y_dev, workspace, NULL, &err), TRF_OK, &err);
    fixture_check_status(trf_device_download(device, y, y_dev, y_bytes, &err), TRF_OK, &err);
    for (uint32_t e = 0; e < count; e++)
        for (uint32_t token = offsets[e]; token < offsets[e + 1]; token++)
            for (uint32_t row = 0; row < rows; row += 1 + token % 7) {
                double sum = 0, size = 0;
                for (uint32_t c = 0; c < cols; c++) {
                    const double term = weight_at(&dense, e, row, c) * trf_bf16_to_f32(x[(uint64_t)token * cols + c]);
                    sum += term;
                    size += fabs(term);
                }
                const uint64_t at = (uint64_t)token * rows + row;
                const double got = y_dtype == TRF_DTYPE_F32    ? ((float *)y)[at]
                                   : y_dtype == TRF_DTYPE_BF16 ? trf_bf16_to_f32(((uint16_t *)y)[at])
                                                               : trf_f16_to_f32(((uint16_t *)y)[at]);
                const double rounding = y_dtype == TRF_DTYPE_F32 ? 0 : y_dtype == TRF_DTYPE_BF16 ? 0x1p-8 : 0x1p-11;
                if (!(fabs(got - sum) <= rounding * fabs(sum) + cols * 0x1p-24 * size + 0x1p-24))
                    ck_abort_msg("expert %u, token %u of %u to %u, row %u: %g in place of %g", e, token, offsets[e],
                                 offsets[e + 1], row, got, sum);
            }
    const uint64_t end_bytes = (uint64_t)used * rows * trf_dtype_bytes(y_dtype);
    EXPECT(memcmp(y + end_bytes, untouched + end_bytes, y_bytes - end_bytes) == 0);
    trf_device_free(device, x_dev);
    trf_device_free(device, y_dev);
    trf_device_free(device, offsets_dev);
    trf_device_free(device, workspace);
    free(x);
    free(y);
    free(untouched);
    trf_experts_plan_destroy(plan);
    trf_experts_destroy(experts);
    free_dense(&dense);
}
END_TEST

START_TEST(packed_weights_are_the_dense_ones) {
    test_rng rng = {7};
    dense_experts dense = make_dense(&rng, 3, 48, 72, 1);
    trf_experts *halves = pack(&dense, TRF_GATE_UP_HALVES), *turns = pack(&dense, TRF_GATE_UP_INTERLEAVED_8);
    for (uint32_t e = 0; e < dense.count; e++) {
        const uint16_t *const host = dense.host + (uint64_t)e * dense.rows * dense.cols;
        uint8_t *as_they_are = device_decode(trf_experts_layer(halves, e), TRF_DECODE_SOURCE),
                *in_turns = device_decode(trf_experts_layer(turns, e), TRF_DECODE_SOURCE);
        EXPECT(memcmp(as_they_are, host, 2ull * dense.rows * dense.cols) == 0);
        for (uint32_t row = 0; row < dense.rows; row++) {
            const uint32_t in_half = row % (dense.rows / 2),
                           at = in_half / 8 * 16 + in_half % 8 + (row < dense.rows / 2 ? 0 : 8);
            EXPECT(memcmp(in_turns + 2ull * at * dense.cols, host + (uint64_t)row * dense.cols, 2 * dense.cols) == 0);
        }
        free(as_they_are);
        free(in_turns);
    }
    trf_experts_destroy(halves);
    trf_experts_destroy(turns);
    free_dense(&dense);
}
END_TEST

/* Coded experts of packed ones, whose layers are kept in `layers`, [experts]. */
static trf_experts *encode(const trf_experts *packed, trf_device_layer **layers) {
    trf_experts *coded = NULL;
    const uint32_t count = trf_experts_count(packed);
    for (uint32_t e = 0; e < count; e++) {
        void *blob = NULL;
        uint64_t bytes = 0;
        fixture_check_status(trf_device_layer_encode(trf_experts_layer(packed, e), 1, &blob, &bytes, &err), TRF_OK,
                             &err);
        fixture_check_status(trf_device_layer_create(device, blob, bytes, NULL, &layers[e], &err), TRF_OK, &err);
        trf_free(blob);
    }
    fixture_check_status(trf_experts_create(layers, count, &coded, &err), TRF_OK, &err);
    return coded;
}

static void expect_same_experts(const trf_experts *experts, const trf_experts *as) {
    ck_assert_uint_eq(trf_experts_count(experts), trf_experts_count(as));
    for (uint32_t e = 0; e < trf_experts_count(as); e++) {
        trf_device_layer_info info;
        trf_device_layer_get_info(trf_experts_layer(as, e), &info);
        uint8_t *one = device_decode(trf_experts_layer(experts, e), TRF_DECODE_SOURCE),
                *other = device_decode(trf_experts_layer(as, e), TRF_DECODE_SOURCE);
        EXPECT(memcmp(one, other, 2ull * info.layer.rows * info.layer.cols) == 0);
        free(one);
        free(other);
    }
}

/* Gates and up projections that are experts of their own, coded and packed, become what packing both together gives. */
START_TEST(converted_experts_are_the_packed_ones) {
    enum {
        COUNT = 3
    };
    test_rng rng = {9};
    dense_experts both = make_dense(&rng, COUNT, 48, 72, 1), gate = both, up = both;
    gate.rows = up.rows = both.rows / 2;
    for (uint32_t e = 0; e < COUNT; e++) {
        gate.matrices[e].rows = up.matrices[e].rows = both.rows / 2;
        up.matrices[e].weights = (const uint8_t *)up.matrices[e].weights + (uint64_t)both.rows * both.cols;
    }
    trf_experts *gates = pack(&gate, TRF_GATE_UP_HALVES), *ups = pack(&up, TRF_GATE_UP_HALVES),
                *turns = pack(&both, TRF_GATE_UP_INTERLEAVED_8), *halves = pack(&both, TRF_GATE_UP_HALVES);
    trf_device_layer *layers[COUNT];
    trf_experts *coded_gates = encode(gates, layers), *converted = NULL;
    trf_expert_pack_options options;
    trf_expert_pack_options_init(&options);
    options.gate_up_order = TRF_GATE_UP_INTERLEAVED_8;
    fixture_check_status(trf_experts_convert(coded_gates, ups, &options, &converted, &err), TRF_OK, &err);
    expect_same_experts(converted, turns);
    trf_experts_destroy(converted);
    fixture_check_status(trf_experts_convert(halves, NULL, &options, &converted, &err), TRF_OK, &err);
    expect_same_experts(converted, turns);
    trf_experts_destroy(converted);
    fixture_check_status(trf_experts_convert(coded_gates, ups, NULL, &converted, &err), TRF_OK, &err);
    expect_same_experts(converted, halves);
    trf_experts_destroy(converted);
    converted = NULL;
    fixture_check_status(trf_experts_convert(turns, NULL, NULL, &converted, &err), TRF_ERR_ARGUMENT, &err);
    fixture_check_status(trf_experts_convert(gates, halves, NULL, &converted, &err), TRF_ERR_ARGUMENT, &err);
    ck_assert_ptr_eq(converted, NULL);
    trf_experts_destroy(coded_gates);
    for (uint32_t e = 0; e < COUNT; e++)
        trf_device_layer_destroy(layers[e]);
    trf_experts_destroy(gates);
    trf_experts_destroy(ups);
    trf_experts_destroy(turns);
    trf_experts_destroy(halves);
    free_dense(&both);
}
END_TEST

/* ---- mixtures of coded experts ---- */

/* Experts of a size that the encoder takes its default probability bits for. The last case is for a GPU alone: it has
 * more slabs than the GPU's blocks have warps, so that blocks that pack go from expert to expert. */
static const moe_case kCodedCases[] = {
    {5, 512, 192, 2, 40, 1, 1, 0, 4, TRF_ACTIVATION_SILU},
    {4, 576, 256, 3, 300, 0, 0, 1, 8, TRF_ACTIVATION_GELU_TANH},
    {3, 576, 192, 2, 900, 1, 0, 0, 4, TRF_ACTIVATION_SILU},
    {MOST_EXPERTS, 256, 832, 4, 600, 1, 0, 0, 4, TRF_ACTIVATION_SILU},
};
enum {
    CODED_CASES = sizeof kCodedCases / sizeof kCodedCases[0] - (TRF_TEST_DEVICE == TRF_DEVICE_CPU ? 1 : 0),
    CODED_WAYS = 3 /* gate and up are two tensors; one in halves; one in turns */
};

/* Some rows of all experts, from row `first` of each on; the weights stay those of `of`. */
static dense_experts rows_of(const dense_experts *of, uint32_t first, uint32_t rows) {
    dense_experts part = *of;
    part.rows = rows;
    for (uint32_t e = 0; e < of->count; e++) {
        part.matrices[e].rows = rows;
        part.matrices[e].weights = (const uint8_t *)of->matrices[e].weights + 2ull * first * of->cols;
    }
    return part;
}

/* Coded experts, with their layers. */
typedef struct coded_experts {
    trf_experts *experts;
    trf_device_layer *layers[MOST_EXPERTS];
    uint32_t count;
} coded_experts;

static coded_experts code(const dense_experts *dense, trf_gate_up_order order) {
    trf_experts *packed = pack(dense, order);
    coded_experts coded = {.count = dense->count};
    coded.experts = encode(packed, coded.layers);
    trf_experts_destroy(packed);
    return coded;
}

static void free_coded(coded_experts *coded) {
    trf_experts_destroy(coded->experts);
    for (uint32_t e = 0; coded->experts && e < coded->count; e++)
        trf_device_layer_destroy(coded->layers[e]);
}

/* @return y of the mixture; malloc'd. */
static uint16_t *forward_once(const moe_run *run, const trf_experts *gate_up, const trf_experts *down,
                              const trf_moe_options *options) {
    trf_moe *moe = NULL;
    fixture_check_status(trf_moe_create(gate_up, down, options, &moe, &err), TRF_OK, &err);
    const moe_memory memory = upload_run(run, moe);
    uint16_t *y = forward(run, moe, &memory), *again = forward(run, moe, &memory);
    EXPECT(memcmp(y, again, 2ull * run->of->tokens * run->of->hidden) == 0);
    free(again);
    free_memory(&memory);
    trf_moe_destroy(moe);
    return y;
}

/* loop: case and way. */
START_TEST(coded_mixtures_are_the_packed_ones) {
    moe_run run = make_run(&kCodedCases[_i / CODED_WAYS]);
    const int way = _i % CODED_WAYS;
    const dense_experts gate = rows_of(&run.gate_up, 0, run.of->inner),
                        up = rows_of(&run.gate_up, run.of->inner, run.of->inner);
    trf_moe_options options = options_of(&run);
    trf_experts *turns = pack(&run.gate_up, TRF_GATE_UP_INTERLEAVED_8), *down = pack(&run.down, TRF_GATE_UP_HALVES);
    coded_experts coded_up = {0}, coded_down = code(&run.down, TRF_GATE_UP_HALVES),
                  coded = way == 0 ? code(&gate, TRF_GATE_UP_HALVES)
                                   : code(&run.gate_up, way == 1 ? TRF_GATE_UP_HALVES : TRF_GATE_UP_INTERLEAVED_8);
    uint16_t *due = forward_once(&run, turns, down, &options);
    if (way == 0) {
        coded_up = code(&up, TRF_GATE_UP_HALVES);
        options.up = coded_up.experts;
    }
    options.gate_up_order = way == 2 ? TRF_GATE_UP_INTERLEAVED_8 : TRF_GATE_UP_HALVES;
    uint16_t *y = forward_once(&run, coded.experts, coded_down.experts, &options);
    if (TRF_TEST_DEVICE != TRF_DEVICE_CPU)
        EXPECT(memcmp(y, due, 2ull * run.of->tokens * run.of->hidden) == 0);
    double errors = 0, values = 0;
    for (uint32_t token = 0; token < run.of->tokens; token += 1 + token)
        check_token(&run, y, token, &errors, &values);
    if (!(sqrt(errors) <= 4e-3 * sqrt(values)))
        ck_abort_msg("an error of %g of the result", sqrt(errors / values));
    free(y);
    free(due);
    free_coded(&coded);
    free_coded(&coded_up);
    free_coded(&coded_down);
    trf_experts_destroy(turns);
    trf_experts_destroy(down);
    free_run(&run);
}
END_TEST

/* ---- refusals ---- */

static void expect_refused(const trf_experts *gate_up, const trf_experts *down, const trf_moe_options *options,
                           trf_status status, const char *text) {
    trf_moe *moe = NULL;
    fixture_check_status(trf_moe_create(gate_up, down, options, &moe, &err), status, &err);
    ck_assert_ptr_eq(moe, NULL);
    if (!strstr(err.message, text))
        ck_abort_msg("\"%s\" does not say \"%s\"", err.message, text);
}

START_TEST(refused_coded_mixtures) {
    const moe_case of = {2, 48, 32, 1, 3, 0, 0, 0, 4, TRF_ACTIVATION_SILU};
    moe_run run = make_run(&of);
    const dense_experts gate = rows_of(&run.gate_up, 0, of.inner), few = rows_of(&run.gate_up, 0, of.inner / 2);
    trf_experts *packed = pack(&run.gate_up, TRF_GATE_UP_INTERLEAVED_8), *down = pack(&run.down, TRF_GATE_UP_HALVES);
    coded_experts coded = code(&gate, TRF_GATE_UP_HALVES), other = code(&few, TRF_GATE_UP_HALVES),
                  coded_down = code(&run.down, TRF_GATE_UP_HALVES);
    trf_moe_options options = options_of(&run);
    options.up = coded.experts;
    expect_refused(coded.experts, coded_down.experts, &options, TRF_ERR_ARGUMENT, "do not take turns");
    expect_refused(packed, down, &options, TRF_ERR_ARGUMENT, "are coded experts");
    options.up = NULL;
    expect_refused(packed, coded_down.experts, &options, TRF_ERR_ARGUMENT, "packed or coded both");
    options.up = coded.experts;
    options.gate_up_order = TRF_GATE_UP_HALVES;
    expect_refused(other.experts, coded_down.experts, &options, TRF_ERR_ARGUMENT, "gates are 2 experts of 16x48");
    options.gate_up_order = (trf_gate_up_order)2;
    options.up = NULL;
    expect_refused(other.experts, coded_down.experts, &options, TRF_ERR_ARGUMENT, "do not fit");
    expect_refused(coded.experts, coded.experts, &options, TRF_ERR_ARGUMENT, "do not fit");
    options.up = coded.experts;
    options.gate_up_order = TRF_GATE_UP_HALVES;
    if (TRF_TEST_DEVICE != TRF_DEVICE_CPU) /* 48 columns */
        expect_refused(coded.experts, coded_down.experts, &options, TRF_ERR_UNSUPPORTED,
                       "expert 0 cannot be packed for a product: it has stored tiles, or columns beside whole slabs");
    free_coded(&coded);
    free_coded(&other);
    free_coded(&coded_down);
    trf_experts_destroy(packed);
    trf_experts_destroy(down);
    free_run(&run);
}
END_TEST

START_TEST(refused_mixtures) {
    const moe_case of = {2, 32, 16, 1, 3, 0, 0, 0, 4, TRF_ACTIVATION_SILU};
    moe_run run = make_run(&of);
    test_rng rng = {3};
    dense_experts ragged = make_dense(&rng, 2, 24, 30, 0), narrow = make_dense(&rng, 2, 30, 12, 0);
    trf_experts *gate_up = pack(&run.gate_up, TRF_GATE_UP_INTERLEAVED_8),
                *halves = pack(&run.gate_up, TRF_GATE_UP_HALVES), *down = pack(&run.down, TRF_GATE_UP_HALVES),
                *ragged_up = pack(&ragged, TRF_GATE_UP_HALVES), *ragged_down = pack(&narrow, TRF_GATE_UP_HALVES);
    const trf_moe_options right = options_of(&run);
    trf_moe_options wrong = right;
    wrong.gate_up_order = TRF_GATE_UP_HALVES;
    expect_refused(gate_up, down, &wrong, TRF_ERR_ARGUMENT, "gate_up_order");
    expect_refused(halves, down, &right, TRF_ERR_ARGUMENT, "another order");
    expect_refused(down, gate_up, &right, TRF_ERR_ARGUMENT, "do not fit");
    expect_refused(ragged_up, ragged_down, &right, TRF_ERR_UNSUPPORTED, "multiples of 16 and of 8");
    wrong = right;
    wrong.top_k = 33;
    expect_refused(gate_up, down, &wrong, TRF_ERR_ARGUMENT, "33 experts a token");
    wrong = right;
    wrong.num_ids = 1;
    expect_refused(gate_up, down, &wrong, TRF_ERR_ARGUMENT, "1 experts on all devices");
    wrong = right;
    wrong.max_tokens = 0;
    expect_refused(gate_up, down, &wrong, TRF_ERR_ARGUMENT, "0 tokens");
    wrong = right;
    wrong.activation = TRF_ACTIVATION_GELU;
    expect_refused(gate_up, down, &wrong, TRF_ERR_UNSUPPORTED, "no activation");

    trf_expert_pack_options odd;
    trf_experts *none = NULL;
    trf_expert_pack_options_init(&odd);
    odd.gate_up_order = TRF_GATE_UP_INTERLEAVED_8;
    fixture_check_status(trf_experts_pack(device, ragged.matrices, 2, &odd, &none, &err), TRF_ERR_UNSUPPORTED, &err);
    ragged.matrices[1].cols--;
    ragged.matrices[1].ld = ragged.cols;
    fixture_check_status(trf_experts_pack(device, ragged.matrices, 2, NULL, &none, &err), TRF_ERR_ARGUMENT, &err);
    ck_assert_ptr_eq(none, NULL);

    trf_moe *moe = NULL;
    uint64_t bytes;
    fixture_check_status(trf_moe_create(gate_up, down, &right, &moe, &err), TRF_OK, &err);
    fixture_check_status(trf_moe_get_workspace(moe, 4, &bytes, &err), TRF_ERR_ARGUMENT, &err);
    const moe_memory memory = upload_run(&run, moe);
    trf_moe_operands operands;
    trf_moe_operands_init(&operands);
    operands.tokens = 3;
    operands.x = (uint8_t *)memory.x + 2;
    operands.ids = memory.ids;
    operands.weights = memory.weights;
    operands.y = memory.y;
    fixture_check_status(trf_moe_forward(moe, &operands, memory.workspace, NULL, &err), TRF_ERR_ARGUMENT, &err);
    operands.x = memory.x;
    operands.id_bytes = 2;
    fixture_check_status(trf_moe_forward(moe, &operands, memory.workspace, NULL, &err), TRF_ERR_ARGUMENT, &err);
    operands.id_bytes = 4;
    fixture_check_status(trf_moe_forward(moe, &operands, NULL, NULL, &err), TRF_ERR_ARGUMENT, &err);
    free_memory(&memory);
    trf_moe_destroy(moe);
    trf_experts_destroy(gate_up);
    trf_experts_destroy(halves);
    trf_experts_destroy(down);
    trf_experts_destroy(ragged_up);
    trf_experts_destroy(ragged_down);
    free_dense(&ragged);
    free_dense(&narrow);
    free_run(&run);
}
END_TEST

int main(void) {
    if (test_device_missing("gpu.moe"))
        return 77;
    Suite *suite = suite_create("device_moe");
    TCase *tests = tcase_create("device_moe");
    tcase_add_checked_fixture(tests, begin, end);
    tcase_set_timeout(tests, 240);
    tcase_add_loop_test(tests, mixtures_near_f64, 0, sizeof kCases / sizeof kCases[0]);
    tcase_add_loop_test(tests, packed_products_near_f64, 0, 9);
    tcase_add_test(tests, packed_weights_are_the_dense_ones);
    tcase_add_test(tests, converted_experts_are_the_packed_ones);
    tcase_add_loop_test(tests, coded_mixtures_are_the_packed_ones, 0, CODED_CASES * CODED_WAYS);
    tcase_add_test(tests, refused_coded_mixtures);
    tcase_add_test(tests, refused_mixtures);
    suite_add_tcase(suite, tests);
    return run_suite(suite);
}
