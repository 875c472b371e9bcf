/* SPDX-License-Identifier: Apache-2.0 */
#include "device_acts.h"

#include "act_objects.h"
#include "checkpoint_fixture.h"
#include "fp8_matrices.h"
#include "test_calls.h"
#include "test_weights.h"
#include "transfuse/cpu.h"
#include "transfuse/experts.h"
#include "transfuse/layouts.h"
#include "transfuse/stacks.h"
#include "transfuse/tuning.h"

#include <stdlib.h>
#include <string.h>

/* Returns the status of a call that fails. */
#define TRY(call)                                                                                                      \
    do {                                                                                                               \
        const trf_status tried = (call);                                                                               \
        if (tried != TRF_OK)                                                                                           \
            return tried;                                                                                              \
    } while (0)

enum {
    ROWS = 192,
    COLS = 320, /* of "a.weight": two tiles, one of which is an edge */
    HIDDEN = 128,
    INNER = 128, /* of the mixtures */
    EXPERTS = 2,
    TOP_K = 2,
    MOST_M = 66, /* more than TRF_FUSED_MAX_M */
    MOST_BYTES = 1 << 20
};

trf_error device_act_error;
static trf_error *const err = &device_act_error;

/* ---- what all acts use ---- */

static int device;
static trf_context *context;
static trf_checkpoint *checkpoint;
static const char *source, *compressed, *trf_file, *tuning_file;
static void *blob;
static uint64_t blob_bytes;
static uint16_t dense[ROWS * COLS], x_host[MOST_M * COLS];
static uint8_t taken[MOST_BYTES];
/* In device memory. fp8_dense: for each expert [2 * INNER][HIDDEN], gate above up. */
static void *blob_dev, *dense_dev, *fp8_dense, *x, *row_ids, *ids, *route_weights, *offsets;
static trf_device_layer *coded, *gates[EXPERTS], *ups[EXPERTS], *downs[EXPERTS], *packed8[2];
static trf_experts *coded_experts, *coded_gates, *coded_ups, *coded_downs, *bf16_gate_up, *bf16_down;

static void ok(trf_status status) { fixture_check_status(status, TRF_OK, err); }

static void *to_device(const void *from, uint64_t bytes) {
    void *to = NULL;
    ok(trf_device_allocate(context, bytes, &to, err));
    ok(trf_device_upload(context, to, from, bytes, err));
    return to;
}

static trf_device_layer *make_coded_fp8(const fp8_matrix *of) {
    const trf_matrix matrix = test_matrix(of->weights, TRF_DTYPE_BF16, of->rows, of->cols);
    trf_encode_options options;
    trf_device_layer *layer = NULL;
    void *made;
    uint64_t bytes;
    trf_encode_options_init(&options);
    options.codec = TRF_CODEC_E4M3;
    ok(trf_encode_layer(&matrix, &options, &made, &bytes, NULL, err));
    ok(trf_device_layer_create(context, made, bytes, NULL, &layer, err));
    trf_free(made);
    return layer;
}

static void make_files(void) {
    static const fixture_tensor tensors[] = {
        {"a.weight", "BF16", {ROWS, COLS}, 2, 0},
        {"model.layers.0.mlp.experts.gate_up_proj", "BF16", {EXPERTS, 2 * INNER, HIDDEN}, 3, 0},
        {"model.layers.0.mlp.experts.down_proj", "BF16", {EXPERTS, HIDDEN, INNER}, 3, 0}};
    static const char config[] = "{\"model_type\": \"llama\", \"num_experts_per_tok\": 2}";
    source = fixture_path("in");
    fixture_make_folder(source);
    fixture_write(fixture_path("in/config.json"), config, sizeof config - 1);
    fixture_write_safetensors(fixture_path("in/model.safetensors"), NULL, tensors, 3, 8, 3);
    compressed = fixture_path("out.safetensors");
    trf_file = fixture_path("a.trf");
    tuning_file = fixture_path("tuning.json");
    ok(trf_compress_checkpoint(fixture_path("in/model.safetensors"), compressed, NULL, NULL, err));
    ok(trf_extract_layer(compressed, "a.weight", trf_file, 0, err));
    ok(trf_checkpoint_open(compressed, &checkpoint, err));
}

static void make_fp8(test_rng *rng) {
    const size_t half = (size_t)INNER * HIDDEN;
    uint16_t *both = malloc(EXPERTS * 2 * half * sizeof *both);
    for (int e = 0; e < EXPERTS; e++) {
        fp8_matrix gate = fp8_dequantized(rng, INNER, HIDDEN, 128, 128),
                   up = fp8_dequantized(rng, INNER, HIDDEN, 128, 128),
                   down = fp8_dequantized(rng, HIDDEN, INNER, 128, 128);
        gates[e] = make_coded_fp8(&gate);
        ups[e] = make_coded_fp8(&up);
        downs[e] = make_coded_fp8(&down);
        memcpy(both + 2 * e * half, gate.weights, half * sizeof *both);
        memcpy(both + (2 * e + 1) * half, up.weights, half * sizeof *both);
        free(gate.weights);
        free(up.weights);
        free(down.weights);
    }
    fp8_dense = to_device(both, EXPERTS * 2 * half * sizeof *both);
    free(both);
    for (int i = 0; i < 2; i++)
        ok(trf_device_layer_convert(i ? ups[0] : gates[0], TRF_LAYOUT_PACKED8, NULL, &packed8[i], err));
    ok(trf_experts_create(gates, EXPERTS, &coded_gates, err));
    ok(trf_experts_create(ups, EXPERTS, &coded_ups, err));
    ok(trf_experts_create(downs, EXPERTS, &coded_downs, err));
}

static void make_operands(test_rng *rng) {
    static const int32_t rows[] = {7, 0, ROWS - 1, ROWS}, id[] = {0, 1, 1, 0, 1, -1};
    static const float weights[] = {0.5f, 0.25f, 1, 0.75f, 0.5f, 0.5f};
    static const uint32_t first[EXPERTS + 1] = {0, 1, 3};
    test_fill_normal(rng, x_host, TRF_DTYPE_BF16, sizeof x_host / sizeof *x_host, 1.0);
    x = to_device(x_host, sizeof x_host);
    row_ids = to_device(rows, sizeof rows);
    ids = to_device(id, sizeof id);
    route_weights = to_device(weights, sizeof weights);
    offsets = to_device(first, sizeof first);
}

void device_acts_begin(int on) {
    test_rng rng = {4};
    device = on;
    fixture_begin();
    make_files();
    ok(trf_context_create(device, &context, err));
    test_fill_normal(&rng, dense, TRF_DTYPE_BF16, ROWS * COLS, 0.02);
    const trf_matrix matrix = test_matrix(dense, TRF_DTYPE_BF16, ROWS, COLS);
    ok(trf_encode_layer(&matrix, NULL, &blob, &blob_bytes, NULL, err));
    ok(trf_device_layer_create(context, blob, blob_bytes, NULL, &coded, err));
    blob_dev = to_device(blob, blob_bytes);
    dense_dev = to_device(dense, sizeof dense);
    make_operands(&rng);
    make_fp8(&rng);
    trf_expert_pack_options turns;
    trf_expert_pack_options_init(&turns);
    turns.gate_up_order = TRF_GATE_UP_INTERLEAVED_8;
    ok(trf_experts_load(context, checkpoint, "model.layers.0.mlp.experts.gate_up_proj", NULL, &coded_experts, err));
    ok(trf_experts_convert(coded_experts, NULL, &turns, &bf16_gate_up, err));
    trf_experts *down = NULL;
    ok(trf_experts_load(context, checkpoint, "model.layers.0.mlp.experts.down_proj", NULL, &down, err));
    ok(trf_experts_convert(down, NULL, NULL, &bf16_down, err));
    trf_experts_destroy(down);
}

void device_acts_end(void) {
    trf_experts *const experts[] = {coded_experts, coded_gates, coded_ups, coded_downs, bf16_gate_up, bf16_down};
    trf_device_layer *const layers[] = {coded,    gates[0], gates[1],   ups[0],    ups[1],
                                        downs[0], downs[1], packed8[0], packed8[1]};
    void *const memory[] = {blob_dev, dense_dev, fp8_dense, x, row_ids, ids, route_weights, offsets};
    for (size_t i = 0; i < sizeof experts / sizeof *experts; i++)
        trf_experts_destroy(experts[i]);
    for (size_t i = 0; i < sizeof layers / sizeof *layers; i++)
        trf_device_layer_destroy(layers[i]);
    for (size_t i = 0; i < sizeof memory / sizeof *memory; i++)
        trf_device_free(context, memory[i]);
    trf_checkpoint_close(checkpoint);
    trf_context_destroy(context);
    trf_free(blob);
    fixture_end();
}

/* ---- steps of acts ---- */

static uint64_t digest;

static void note(const void *bytes, uint64_t count) {
    for (uint64_t i = 0; i < count; i++)
        digest = (digest ^ ((const uint8_t *)bytes)[i]) * 0x100000001B3u;
}

/* Reads device memory. */
static trf_status take(const void *from, uint64_t bytes) {
    TRY(trf_device_download(context, taken, from, bytes, err));
    note(taken, bytes);
    return TRF_OK;
}

static trf_status allocate(uint64_t bytes, void **memory) {
    act_object *object = act_object_make(ACT_MEMORY);
    object->context = context;
    TRY(trf_device_allocate(context, bytes, &object->memory, err));
    *memory = object->memory;
    return TRF_OK;
}

static trf_status decode(const trf_device_layer *layer) {
    const trf_layer_info info = test_layer_info(layer);
    const uint64_t bytes = 2ull * info.rows * info.cols;
    void *weights;
    TRY(allocate(bytes, &weights));
    TRY(trf_device_layer_decode(layer, TRF_DECODE_BF16, weights, bytes, NULL, err));
    return take(weights, bytes);
}

/* Multiplies, with an epilogue if y is F32. */
static trf_status multiply(trf_device_layer *layer, uint32_t m, trf_dtype y_dtype, trf_path path) {
    trf_plan **plan = &act_object_make(ACT_PLAN)->plan;
    trf_plan_options options = test_plan_options(m, TRF_DTYPE_BF16, y_dtype, path);
    const uint64_t bytes = (uint64_t)m * test_layer_info(layer).rows * trf_dtype_bytes(y_dtype);
    trf_operands operands = test_operands(x, NULL);
    void *workspace;
    if (y_dtype == TRF_DTYPE_F32) {
        options.activation = TRF_ACTIVATION_SILU;
        options.has_bias = 1;
        operands.bias = x;
    }
    TRY(trf_plan_create(layer, &options, plan, err));
    TRY(allocate(test_plan_info(*plan).workspace_bytes, &workspace));
    TRY(allocate(bytes, &operands.y));
    TRY(trf_linear(*plan, &operands, workspace, NULL, err));
    return take(operands.y, bytes);
}

/* Asks a layer all that one can ask it. */
static trf_status use(trf_device_layer *layer) {
    TRY(trf_device_layer_check(layer, err));
    TRY(trf_device_layer_verify(layer, err));
    TRY(decode(layer));
    return multiply(layer, 1, TRF_DTYPE_BF16, TRF_PATH_AUTO);
}

static trf_device_matrix dense_matrix(const void *weights, uint32_t rows, uint32_t cols) {
    trf_device_matrix matrix;
    trf_device_matrix_init(&matrix);
    matrix.weights = weights;
    matrix.rows = rows;
    matrix.cols = cols;
    return matrix;
}

/* ---- acts: a device, layers ---- */

static trf_status use_context(void) {
    act_object *made = act_object_make(ACT_CONTEXT), *memory = act_object_make(ACT_MEMORY);
    TRY(trf_context_create(device, &made->context, err));
    memory->context = made->context;
    TRY(trf_device_allocate(made->context, sizeof dense, &memory->memory, err));
    TRY(trf_device_upload(made->context, memory->memory, dense, sizeof dense, err));
    TRY(trf_device_download(made->context, taken, memory->memory, sizeof dense, err));
    note(taken, sizeof dense);
    return TRF_OK;
}

static trf_status create_layout(trf_layout layout, int is_on_device) {
    trf_device_layer **layer = &act_object_make(ACT_LAYER)->layer;
    trf_layer_size size;
    trf_load_options options;
    trf_load_options_init(&options);
    options.layout = layout;
    options.buffer_is_on_device = is_on_device;
    const void *buffer = is_on_device ? blob_dev : blob;
    TRY(trf_device_layer_get_size(context, buffer, blob_bytes, &options, &size, err));
    TRY(trf_device_layer_create(context, buffer, blob_bytes, &options, layer, err));
    return use(*layer);
}

static trf_status create_coded(void) { return create_layout(TRF_LAYOUT_CODED, 0); }
static trf_status create_plain(void) { return create_layout(TRF_LAYOUT_PLAIN, 0); }
static trf_status create_packed(void) { return create_layout(TRF_LAYOUT_PACKED, 0); }
static trf_status use_device_blob(void) { return create_layout(TRF_LAYOUT_CODED, 1); }
static trf_status pack_device_blob(void) { return create_layout(TRF_LAYOUT_PACKED, 1); }

static trf_status load_with(trf_load_options options) {
    act_object *opened = act_object_make(ACT_CHECKPOINT), *made = act_object_make(ACT_LAYER);
    trf_layer_size size;
    options.threads = 2;
    TRY(trf_checkpoint_open(compressed, &opened->checkpoint, err));
    TRY(trf_device_layer_get_load_size(context, opened->checkpoint, "a.weight", &options, &size, err));
    TRY(trf_device_layer_load(context, opened->checkpoint, "a.weight", &options, &made->layer, err));
    TRY(trf_device_layer_check(made->layer, err));
    return multiply(made->layer, 1, TRF_DTYPE_BF16, TRF_PATH_AUTO);
}

static trf_status load(void) {
    for (int layout = TRF_LAYOUT_CODED; layout <= TRF_LAYOUT_PACKED; layout++) {
        trf_load_options options = test_shard((const uint32_t[]){0, 0, 0, 0});
        options.layout = (trf_layout)layout;
        TRY(load_with(options));
    }
    return TRF_OK;
}

static trf_status load_shard(void) { return load_with(test_shard((const uint32_t[]){16, 160, 48, 256})); }

static trf_status look_up(void) {
    enum {
        COUNT = 4,
        BYTES = COUNT * COLS * 2
    };
    void *rows;
    TRY(allocate(BYTES, &rows));
    const trf_row_request request = test_row_request(row_ids, 4, COUNT, TRF_DECODE_SOURCE, rows, BYTES);
    TRY(trf_decode_rows(coded, &request, NULL, err));
    return take(rows, BYTES);
}

static trf_status encode(void) {
    static const trf_layout layouts[] = {TRF_LAYOUT_CODED, TRF_LAYOUT_PLAIN, TRF_LAYOUT_PACKED};
    for (int i = 0; i < 3; i++) {
        trf_device_layer *from = coded;
        void **made = &act_object_make(ACT_BLOB)->memory;
        uint64_t bytes;
        if (layouts[i] != TRF_LAYOUT_CODED) {
            trf_device_layer **converted = &act_object_make(ACT_LAYER)->layer;
            TRY(trf_device_layer_convert(coded, layouts[i], NULL, converted, err));
            from = *converted;
        }
        TRY(trf_device_layer_encode(from, 2, made, &bytes, err));
        note(*made, bytes);
    }
    return TRF_OK;
}

static trf_status convert_to(const trf_device_layer *from, trf_layout layout, trf_device_layer **made) {
    act_object *object = act_object_make(ACT_LAYER);
    trf_layer_size size;
    TRY(trf_device_layer_get_converted_size(from, layout, &size, err));
    TRY(trf_device_layer_convert(from, layout, NULL, &object->layer, err));
    *made = object->layer;
    return use(*made);
}

static trf_status convert(void) {
    trf_device_layer *packed, *plain, *fp8;
    TRY(convert_to(coded, TRF_LAYOUT_PACKED, &packed));
    TRY(convert_to(packed, TRF_LAYOUT_PLAIN, &plain));
    TRY(convert_to(plain, TRF_LAYOUT_PACKED, &packed));
    return convert_to(gates[0], TRF_LAYOUT_PACKED8, &fp8);
}

static trf_status pack_matrix(const trf_device_matrix *matrix) {
    trf_device_layer **layer = &act_object_make(ACT_LAYER)->layer, **like = &act_object_make(ACT_LAYER)->layer;
    trf_layer_size size;
    trf_pack_options options;
    trf_pack_options_init(&options);
    TRY(trf_device_layer_get_packed_size(context, matrix, &size, err));
    TRY(trf_device_layer_pack(context, matrix, NULL, layer, err));
    options.like = *layer;
    TRY(trf_device_layer_pack(context, matrix, &options, like, err));
    return use(*like);
}

static trf_status pack(void) {
    const trf_device_matrix bf16 = dense_matrix(dense_dev, ROWS, COLS), fp8 = dense_matrix(fp8_dense, INNER, HIDDEN);
    TRY(pack_matrix(&bf16));
    return pack_matrix(&fp8);
}

static trf_status join(void) {
    trf_device_layer **joined = &act_object_make(ACT_LAYER)->layer;
    const trf_device_layer *const parts[] = {packed8[0], packed8[1]};
    trf_layer_size size;
    TRY(trf_device_layer_get_joined_size(parts, 2, &size, err));
    TRY(trf_device_layer_join(parts, 2, NULL, joined, err));
    return use(*joined);
}

/* ---- acts: products ---- */

static trf_status multiply_coded(void) {
    TRY(multiply(coded, 2, TRF_DTYPE_F32, TRF_PATH_FUSED));
    TRY(multiply(gates[0], 2, TRF_DTYPE_BF16, TRF_PATH_AUTO));
    return multiply(coded, MOST_M, TRF_DTYPE_F32, TRF_PATH_AUTO);
}

static trf_status multiply_packed(void) {
    trf_device_layer **packed = &act_object_make(ACT_LAYER)->layer, **plain = &act_object_make(ACT_LAYER)->layer;
    TRY(trf_device_layer_convert(coded, TRF_LAYOUT_PACKED, NULL, packed, err));
    TRY(trf_device_layer_convert(coded, TRF_LAYOUT_PLAIN, NULL, plain, err));
    TRY(multiply(*packed, MOST_M, TRF_DTYPE_F32, TRF_PATH_AUTO));
    TRY(multiply(packed8[0], 2, TRF_DTYPE_F32, TRF_PATH_AUTO));
    TRY(multiply(packed8[0], MOST_M, TRF_DTYPE_BF16, TRF_PATH_AUTO));
    return multiply(*plain, MOST_M, TRF_DTYPE_F32, TRF_PATH_AUTO);
}

static trf_status multiply_group(void) {
    enum {
        Y_BYTES = 2 * ROWS * 4
    };
    trf_layer_group **group = &act_object_make(ACT_GROUP)->group;
    const trf_group_member members[] = {test_group_member(coded, 2, TRF_DTYPE_BF16, TRF_DTYPE_F32),
                                        test_group_member(gates[0], 1, TRF_DTYPE_BF16, TRF_DTYPE_F32),
                                        test_group_member(packed8[0], 1, TRF_DTYPE_BF16, TRF_DTYPE_F32),
                                        test_group_member(packed8[1], 1, TRF_DTYPE_BF16, TRF_DTYPE_F32)};
    const void *const each_x[] = {x, x, x, x};
    void *each_y[4], *workspace;
    TRY(trf_layer_group_create(members, 4, group, err));
    TRY(allocate(test_group_info(*group).workspace_bytes, &workspace));
    for (int i = 0; i < 4; i++)
        TRY(allocate(Y_BYTES, &each_y[i]));
    TRY(trf_linear_group(*group, each_x, each_y, workspace, NULL, err));
    TRY(take(each_y[0], Y_BYTES));
    for (int i = 1; i < 4; i++)
        TRY(take(each_y[i], INNER * 4));
    return TRF_OK;
}

/* ---- acts: experts ---- */

static trf_status multiply_experts(const trf_experts *experts, uint32_t rows) {
    enum {
        TOKENS = 3
    };
    trf_experts_plan **plan = &act_object_make(ACT_EXPERTS_PLAN)->experts_plan;
    void *workspace, *y;
    TRY(trf_experts_check(experts, err));
    TRY(trf_experts_plan_create(experts, TOKENS, TRF_DTYPE_BF16, TRF_DTYPE_F32, plan, err));
    TRY(allocate(trf_experts_plan_workspace_bytes(*plan), &workspace));
    TRY(allocate(4ull * TOKENS * rows, &y));
    TRY(trf_experts_linear(*plan, x, offsets, y, workspace, NULL, err));
    return take(y, 4ull * TOKENS * rows);
}

static trf_status load_experts(void) {
    enum {
        EXPERT_BYTES = 2 * 2 * INNER * HIDDEN
    };
    trf_experts **loaded = &act_object_make(ACT_EXPERTS)->experts, **made = &act_object_make(ACT_EXPERTS)->experts;
    trf_device_layer *const twice[] = {coded, coded};
    void *weights;
    TRY(trf_experts_load(context, checkpoint, "model.layers.0.mlp.experts.gate_up_proj", NULL, loaded, err));
    TRY(allocate(EXPERTS * EXPERT_BYTES, &weights));
    TRY(trf_experts_decode(*loaded, TRF_DECODE_SOURCE, weights, EXPERT_BYTES, EXPERTS * EXPERT_BYTES, NULL, err));
    TRY(take(weights, EXPERTS * EXPERT_BYTES));
    TRY(multiply_experts(*loaded, 2 * INNER));
    TRY(trf_experts_create(twice, 2, made, err));
    return multiply_experts(*made, ROWS);
}

static trf_status pack_experts(void) {
    for (int is_fp8 = 0; is_fp8 < 2; is_fp8++) {
        trf_experts **packed = &act_object_make(ACT_EXPERTS)->experts;
        trf_device_matrix matrices[EXPERTS];
        trf_expert_pack_options options;
        trf_expert_pack_options_init(&options);
        options.gate_up_order = TRF_GATE_UP_INTERLEAVED_8;
        options.packed_bf16 = !is_fp8;
        for (int e = 0; e < EXPERTS; e++)
            matrices[e] = dense_matrix((const uint16_t *)fp8_dense + 2 * e * INNER * HIDDEN, 2 * INNER, HIDDEN);
        TRY(trf_experts_pack(context, matrices, EXPERTS, &options, packed, err));
        TRY(multiply_experts(*packed, 2 * INNER));
    }
    return TRF_OK;
}

static trf_status convert_experts(void) {
    trf_experts **bf16 = &act_object_make(ACT_EXPERTS)->experts, **fp8 = &act_object_make(ACT_EXPERTS)->experts;
    trf_expert_pack_options options;
    trf_expert_pack_options_init(&options);
    options.gate_up_order = TRF_GATE_UP_INTERLEAVED_8;
    TRY(trf_experts_convert(coded_experts, NULL, &options, bf16, err));
    TRY(multiply_experts(*bf16, 2 * INNER));
    TRY(trf_experts_convert(coded_gates, coded_ups, &options, fp8, err));
    return multiply_experts(*fp8, 2 * INNER);
}

static trf_status convert_gate_up(void) {
    trf_device_layer **made = &act_object_make(ACT_LAYER)->layer;
    trf_layer_size size;
    TRY(trf_gate_up_get_converted_size(gates[0], ups[0], &size, err));
    TRY(trf_gate_up_convert(gates[0], ups[0], NULL, made, err));
    return use(*made);
}

static trf_status pack_gate_up(void) {
    trf_device_layer **made = &act_object_make(ACT_LAYER)->layer;
    const trf_device_matrix matrix = dense_matrix(fp8_dense, 2 * INNER, HIDDEN);
    TRY(trf_gate_up_pack(context, &matrix, NULL, NULL, made, err));
    return use(*made);
}

static trf_status mix(const trf_experts *gate_up, const trf_experts *down, trf_gate_up_order order) {
    enum {
        TOKENS = 3,
        Y_BYTES = TOKENS * HIDDEN * 2
    };
    trf_moe **moe = &act_object_make(ACT_MOE)->moe;
    trf_moe_options options;
    trf_moe_operands operands;
    uint64_t bytes;
    void *workspace;
    trf_moe_options_init(&options);
    options.max_tokens = TOKENS;
    options.top_k = TOP_K;
    options.gate_up_order = order;
    TRY(trf_moe_create(gate_up, down, &options, moe, err));
    TRY(trf_moe_get_workspace(*moe, TOKENS, &bytes, err));
    TRY(allocate(bytes, &workspace));
    trf_moe_operands_init(&operands);
    operands.tokens = TOKENS;
    operands.x = x;
    operands.ids = ids;
    operands.id_bytes = 4;
    operands.weights = route_weights;
    TRY(allocate(Y_BYTES, &operands.y));
    TRY(trf_moe_forward(*moe, &operands, workspace, NULL, err));
    return take(operands.y, Y_BYTES);
}

static trf_status mix_packed(void) { return mix(bf16_gate_up, bf16_down, TRF_GATE_UP_INTERLEAVED_8); }

static trf_status mix_coded(void) {
    trf_experts **down = &act_object_make(ACT_EXPERTS)->experts;
    TRY(trf_experts_load(context, checkpoint, "model.layers.0.mlp.experts.down_proj", NULL, down, err));
    return mix(coded_experts, *down, TRF_GATE_UP_HALVES);
}

static trf_status mix_fp8(void) {
    trf_experts **gate_up = &act_object_make(ACT_EXPERTS)->experts, **down = &act_object_make(ACT_EXPERTS)->experts;
    trf_expert_pack_options options;
    trf_expert_pack_options_init(&options);
    TRY(trf_experts_convert(coded_downs, NULL, &options, down, err));
    options.gate_up_order = TRF_GATE_UP_INTERLEAVED_8;
    TRY(trf_experts_convert(coded_gates, coded_ups, &options, gate_up, err));
    return mix(*gate_up, *down, TRF_GATE_UP_INTERLEAVED_8);
}

/* ---- acts: stacks, tunings, layouts ---- */

static trf_status pass_through(trf_stack *stack, uint32_t layers) {
    void *y, *workspace;
    TRY(allocate(ROWS * 4, &y));
    for (uint32_t i = 0; i < layers; i++) {
        trf_plan **plan = &act_object_make(ACT_PLAN)->plan;
        const trf_operands operands = test_operands(x, y);
        TRY(test_make_plan(trf_stack_layer(stack, i), 1, TRF_DTYPE_BF16, TRF_DTYPE_F32, TRF_PATH_AUTO, plan, err));
        TRY(allocate(test_plan_info(*plan).workspace_bytes, &workspace));
        if (i % 2) {
            TRY(trf_stack_linear(stack, i, *plan, &operands, workspace, NULL, err));
        } else {
            TRY(trf_stack_acquire(stack, i, NULL, err));
            TRY(trf_linear(*plan, &operands, workspace, NULL, err));
            TRY(trf_stack_release(stack, i, NULL, err));
        }
        TRY(take(y, ROWS * 4));
    }
    return TRF_OK;
}

static trf_status use_stack(void) {
    enum {
        LAYERS = 6
    };
    trf_stack **stack = &act_object_make(ACT_STACK)->stack;
    trf_layer **host = &act_object_make(ACT_HOST_LAYER)->host_layer;
    trf_stack_info info;
    TRY(trf_layer_from_memory(blob, blob_bytes, host, err));
    TRY(trf_stack_create(context, stack, err));
    for (int i = 0; i < LAYERS; i++)
        TRY(i % 2 ? trf_stack_add(*stack, *host, err) : trf_stack_load(*stack, checkpoint, "a.weight", NULL, err));
    trf_stack_get_info(*stack, &info);
    TRY(trf_stack_prepare(*stack, info.least_bytes + info.layer_bytes / LAYERS, err));
    return pass_through(*stack, LAYERS);
}

static trf_status tune(void) {
    trf_tuning **measured = &act_object_make(ACT_TUNING)->tuning, **read = &act_object_make(ACT_TUNING)->tuning;
    trf_tune_options options;
    trf_tune_options_init(&options);
    options.max_m = 1;
    TRY(trf_tuning_measure(&coded, 1, &options, measured, err));
    TRY(trf_tuning_write(*measured, tuning_file, 1, err));
    TRY(trf_tuning_read(tuning_file, read, err));
    TRY(trf_context_set_tuning(context, *read, err));
    return trf_context_set_tuning(context, NULL, err);
}

static trf_status choose_layouts(void) {
    act_object *opened = act_object_make(ACT_CHECKPOINT), *set = act_object_make(ACT_LAYOUT_SET);
    trf_layout_set_info info;
    trf_layouts_options options;
    trf_layouts_choice choice;
    trf_layout layouts[4];
    double microseconds;
    TRY(trf_checkpoint_open(source, &opened->checkpoint, err));
    TRY(trf_layout_set_read(opened->checkpoint, NULL, &set->layout_set, err));
    trf_layout_set_get_info(set->layout_set, &info);
    trf_layouts_options_init(&options);
    options.memory_bytes = 1 << 30;
    TRY(trf_layouts_choose(trf_layout_set_layers(set->layout_set), info.num_layers, &options, layouts, &choice, err));
    note(layouts, info.num_layers * sizeof *layouts);
    TRY(trf_layouts_estimate(trf_layout_set_layers(set->layout_set), TRF_LAYOUT_CODED, &options, &microseconds, err));
    note(&microseconds, sizeof microseconds);
    return TRF_OK;
}

static trf_status open_file(void) {
    trf_layer **layer = &act_object_make(ACT_HOST_LAYER)->host_layer;
    TRY(trf_layer_open(trf_file, layer, err));
    TRY(trf_layer_decode(*layer, taken, sizeof dense, 2, err));
    note(taken, sizeof dense);
    return TRF_OK;
}

const device_act kDeviceActs[] = {{"a context", use_context},
                                  {"a coded layer", create_coded},
                                  {"a plain layer", create_plain},
                                  {"a packed layer", create_packed},
                                  {"a blob on the device", use_device_blob},
                                  {"a blob on the device, packed", pack_device_blob},
                                  {"loading", load},
                                  {"loading a shard", load_shard},
                                  {"rows", look_up},
                                  {"encoding", encode},
                                  {"converting", convert},
                                  {"packing", pack},
                                  {"joining", join},
                                  {"coded products", multiply_coded},
                                  {"packed and plain products", multiply_packed},
                                  {"a group", multiply_group},
                                  {"experts", load_experts},
                                  {"packing experts", pack_experts},
                                  {"converting experts", convert_experts},
                                  {"converting gate and up", convert_gate_up},
#ifndef TRF_ACTS_WITHOUT_KERNELS /* it takes what kernels find */
                                  {"packing gate and up", pack_gate_up},
#endif
                                  {"a packed mixture", mix_packed},
                                  {"a coded mixture", mix_coded},
                                  {"an FP8 mixture", mix_fp8},
                                  {"a stack", use_stack},
                                  {"tuning", tune},
                                  {"choosing layouts", choose_layouts},
                                  {"a file", open_file}};
const int kNumDeviceActs = sizeof kDeviceActs / sizeof kDeviceActs[0];

trf_status device_act_do(const device_act *act, uint64_t *found) {
    digest = 0xCBF29CE484222325u;
    device_act_error = (trf_error){0};
    const trf_status status = act->act();
    act_objects_destroy();
    *found = digest;
    return status;
}
