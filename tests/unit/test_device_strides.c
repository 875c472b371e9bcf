/* SPDX-License-Identifier: Apache-2.0 */
/* Plans: y, multiplier and residual whose rows lie apart give the same bits as rows one after the other, and nothing is
 * written in between; several layers write into one wider y; several threads use one plan; and a plan keeps what it was
 * made from. These tests run on the CPU; tests/gpu/ builds this file for a GPU, too, with its ordinal as
 * TRF_TEST_DEVICE. */
#include "common/any_device.h"
#include "common/checkpoint_fixture.h"
#include "common/expect.h"
#include "common/run_suite.h"
#include "common/test_calls.h"
#include "common/test_weights.h"
#include "transfuse/cpu.h"
#include "trf_number_formats.h"

#include <check.h>
#include <glob.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    ON_GPU = TRF_TEST_DEVICE != TRF_DEVICE_CPU,
    UNTOUCHED = 0xA5, /* every byte that no product may write */
    MOST_M = 130
};

static trf_error err;
static trf_context *device;

static void begin(void) {
    fixture_check_status(trf_context_create(TRF_TEST_DEVICE, &device, &err), TRF_OK, &err);
    trf_context_set_threads(device, 2);
}

static void end(void) { trf_context_destroy(device); }

/* ---- device memory ---- */

static void *to_device(const void *from, uint64_t bytes) {
    void *memory;
    fixture_check_status(trf_device_allocate(device, bytes, &memory, &err), TRF_OK, &err);
    fixture_check_status(trf_device_upload(device, memory, from, bytes, &err), TRF_OK, &err);
    return memory;
}

static void download(void *to, const void *from, uint64_t bytes) {
    fixture_check_status(trf_device_download(device, to, from, bytes, &err), TRF_OK, &err);
}

static void *filled(uint64_t bytes, int byte) {
    uint8_t *memory = malloc(bytes + 1);
    memset(memory, byte, bytes + 1);
    return memory;
}

/* Makes a workspace filled with NaNs, so that what is read from there shows. */
static void *make_workspace(const trf_plan *plan) {
    const uint64_t bytes = test_plan_info(plan).workspace_bytes;
    void *filler = filled(bytes, 0xFF), *workspace = to_device(filler, bytes);
    free(filler);
    return workspace;
}

/* ---- layers ---- */

typedef struct kind {
    const char *name;
    trf_dtype dtype;
    trf_codec codec;
    trf_granularity granularity;
    uint32_t scale_group_size;
    trf_dtype x_dtype;
} kind;

static const kind kKinds[] = {
    {"bf16", TRF_DTYPE_BF16, TRF_CODEC_AUTO, TRF_GRANULARITY_NONE, 0, TRF_DTYPE_BF16},
    {"fp16", TRF_DTYPE_F16, TRF_CODEC_AUTO, TRF_GRANULARITY_NONE, 0, TRF_DTYPE_F16},
    {"e4m3", TRF_DTYPE_F8_E4M3, TRF_CODEC_AUTO, TRF_GRANULARITY_NONE, 0, TRF_DTYPE_BF16},
    {"channel", TRF_DTYPE_BF16, TRF_CODEC_INT, TRF_GRANULARITY_CHANNEL, 0, TRF_DTYPE_F16},
    {"group 32", TRF_DTYPE_F32, TRF_CODEC_INT, TRF_GRANULARITY_SCALE_GROUP, 32, TRF_DTYPE_BF16},
};
/* Shapes with edges beside and below slabs, with only edges, and with whole bands. On GPUs several blocks also share
 * rows: by clusters, by stream-K, and as the wide kernels cut them. */
static const uint32_t kShapes[][2] = {{300, 515},   {15, 300},    {33, 65},     {256, 512},
                                      {160, 14336}, {5216, 2048}, {1056, 1344}, {9000, 300}};
static const uint32_t kBatches[] = {1, 5, 33, MOST_M};
static const trf_dtype kYTypes[] = {TRF_DTYPE_F32, TRF_DTYPE_BF16, TRF_DTYPE_F16};
enum {
    BF16 = 0, /* of kKinds */
    E4M3 = 2,
    NUM_KINDS = sizeof kKinds / sizeof kKinds[0],
    NUM_SHAPES = ON_GPU ? sizeof kShapes / sizeof kShapes[0] : 4,
    NUM_BATCHES = sizeof kBatches / sizeof kBatches[0]
};

static void *encode(const kind *k, uint32_t rows, uint32_t cols, uint64_t *blob_bytes) {
    const size_t count = (size_t)rows * cols;
    void *weights = malloc(count * trf_dtype_bytes(k->dtype)), *blob;
    trf_encode_options options;
    test_rng rng = {rows + cols};
    test_fill_normal(&rng, weights, k->dtype, count, trf_dtype_bytes(k->dtype) == 1 ? 1 : 0.02);
    trf_encode_options_init(&options);
    options.codec = k->codec;
    options.granularity = k->granularity;
    options.scale_group_size = k->scale_group_size;
    options.verify = 0;
    const trf_matrix matrix = test_matrix(weights, k->dtype, rows, cols);
    fixture_check_status(trf_encode_layer(&matrix, &options, &blob, blob_bytes, NULL, &err), TRF_OK, &err);
    free(weights);
    return blob;
}

/* shard: as test_shard; NULL: the whole layer. */
static trf_device_layer *make_layer(const kind *k, uint32_t rows, uint32_t cols, const uint32_t *shard) {
    static const uint32_t all[4] = {0, 0, 0, 0};
    uint64_t blob_bytes;
    void *blob = encode(k, rows, cols, &blob_bytes);
    const trf_load_options options = test_shard(shard ? shard : all);
    trf_device_layer *layer;
    fixture_check_status(trf_device_layer_create(device, blob, blob_bytes, &options, &layer, &err), TRF_OK, &err);
    trf_free(blob);
    return layer;
}

/* Normal values; malloc'd. */
static void *random_values(uint64_t seed, trf_dtype dtype, size_t count) {
    void *values = malloc(4 * count);
    test_rng rng = {seed};
    test_fill_normal(&rng, values, dtype, count, 1.0);
    return values;
}

static void *make_x(const trf_device_layer *layer, uint32_t m, trf_dtype x_dtype) {
    const size_t count = (size_t)m * test_layer_info(layer).cols;
    void *values = random_values(7, x_dtype, count), *x = to_device(values, 2 * count);
    free(values);
    return x;
}

/* ---- rows that lie apart ---- */

/* m rows of an element type, `stride` elements apart, from the `lead`-th element of device memory on. Everything else
 * in that memory is UNTOUCHED. */
typedef struct spread {
    trf_dtype dtype;
    uint32_t m, rows;
    uint64_t stride, lead, bytes;
    void *memory;
} spread;

static uint64_t spread_place(const spread *s, uint32_t n) {
    return trf_dtype_bytes(s->dtype) * (s->lead + n * s->stride);
}

/* values: [m][rows]; NULL: the rows are UNTOUCHED, too. */
static spread spread_make(trf_dtype dtype, uint32_t m, uint32_t rows, uint64_t stride, uint64_t lead,
                          const void *values) {
    const uint64_t each = trf_dtype_bytes(dtype);
    spread s = {dtype, m, rows, stride, lead, each * (lead + m * stride + 16), NULL};
    uint8_t *bytes = filled(s.bytes, UNTOUCHED);
    for (uint32_t n = 0; values && n < m; n++)
        memcpy(bytes + spread_place(&s, n), (const uint8_t *)values + n * each * rows, each * rows);
    s.memory = to_device(bytes, s.bytes);
    free(bytes);
    return s;
}

static void *spread_at(const spread *s) { return (uint8_t *)s->memory + spread_place(s, 0); }

static void spread_free(spread *s) { trf_device_free(device, s->memory); }

/* Reads the rows, [m][rows], malloc'd; fails if anything else was written. */
static void *spread_read(const spread *s, const char *what) {
    const uint64_t row_bytes = trf_dtype_bytes(s->dtype) * s->rows;
    uint8_t *bytes = malloc(s->bytes), *values = malloc(s->m * row_bytes);
    download(bytes, s->memory, s->bytes);
    for (uint32_t n = 0; n < s->m; n++) {
        memcpy(values + n * row_bytes, bytes + spread_place(s, n), row_bytes);
        memset(bytes + spread_place(s, n), UNTOUCHED, row_bytes);
    }
    for (uint64_t i = 0; i < s->bytes; i++)
        if (bytes[i] != UNTOUCHED)
            ck_abort_msg("%s: byte %llu was written, which is in no row of %u elements, %llu apart", what,
                         (unsigned long long)i, s->rows, (unsigned long long)s->stride);
    free(bytes);
    return values;
}

/* ---- products ---- */

/* Where an operand of the epilogue is. */
typedef enum place {
    ABSENT,
    APART,
    IN_PLACE
} place;

typedef struct combination {
    trf_activation activation;
    place bias, multiplier, residual;
} combination;

static const combination kCombinations[] = {
    {TRF_ACTIVATION_NONE, ABSENT, ABSENT, ABSENT},       {TRF_ACTIVATION_NONE, APART, ABSENT, ABSENT},
    {TRF_ACTIVATION_SILU, ABSENT, APART, ABSENT},        {TRF_ACTIVATION_GELU, APART, APART, APART},
    {TRF_ACTIVATION_SILU, ABSENT, IN_PLACE, ABSENT},     {TRF_ACTIVATION_NONE, APART, ABSENT, IN_PLACE},
    {TRF_ACTIVATION_GELU_TANH, ABSENT, APART, IN_PLACE}, {TRF_ACTIVATION_NONE, ABSENT, IN_PLACE, IN_PLACE},
};
enum {
    COMBINATIONS = sizeof kCombinations / sizeof kCombinations[0]
};

/* A layer, and what its products take. */
typedef struct subject {
    char name[100];
    trf_device_layer *layer;
    uint32_t m, rows;
    trf_dtype x_dtype, y_dtype;
    trf_path path;
    void *x, *bias;              /* device */
    void *multiplier, *residual; /* host, [m][rows] of y's dtype */
} subject;

static subject subject_make(trf_device_layer *layer, trf_dtype x_dtype, uint32_t m, trf_dtype y_dtype, trf_path path) {
    const trf_layer_info info = test_layer_info(layer);
    subject s = {.layer = layer, .m = m, .rows = info.rows, .x_dtype = x_dtype, .y_dtype = y_dtype, .path = path};
    const size_t count = (size_t)m * info.rows;
    snprintf(s.name, sizeof s.name, "%s of %ux%u, m %u, y %s, path %d", trf_codec_name(info.codec), info.rows,
             info.cols, m, trf_dtype_name(y_dtype), (int)path);
    void *bias = random_values(11, y_dtype, info.rows);
    s.x = make_x(layer, m, x_dtype);
    s.bias = to_device(bias, info.rows * trf_dtype_bytes(y_dtype));
    s.multiplier = random_values(12, y_dtype, count);
    s.residual = random_values(13, y_dtype, count);
    free(bias);
    return s;
}

static void subject_free(subject *s) {
    trf_device_free(device, s->x);
    trf_device_free(device, s->bias);
    free(s->multiplier);
    free(s->residual);
}

/* The strides of a product, and at which element of its memory y begins. */
typedef struct strides {
    uint64_t y, multiplier, residual, lead;
} strides;

static trf_plan_options options_of(const subject *s, combination c, strides apart) {
    trf_plan_options options = test_plan_options(s->m, s->x_dtype, s->y_dtype, s->path);
    options.activation = c.activation;
    options.has_bias = c.bias != ABSENT;
    options.has_multiplier = c.multiplier != ABSENT;
    options.has_residual = c.residual != ABSENT;
    options.y_stride = apart.y;
    options.multiplier_stride = c.multiplier == IN_PLACE ? apart.y : apart.multiplier;
    options.residual_stride = c.residual == IN_PLACE ? apart.y : apart.residual;
    return options;
}

static uint64_t or_packed(const subject *s, uint64_t stride) { return stride ? stride : s->rows; }

/* Computes a product. Strides of 0 mean rows one after the other. @return y [m][rows], malloc'd; NULL if the path does
 * not take the product. */
static void *compute(const subject *s, combination c, strides apart) {
    const trf_plan_options options = options_of(s, c, apart);
    trf_plan *plan;
    trf_status status = trf_plan_create(s->layer, &options, &plan, &err);
    if (status == TRF_ERR_UNSUPPORTED && s->path != TRF_PATH_AUTO)
        return NULL;
    fixture_check_status(status, TRF_OK, &err);
    const void *before = c.multiplier == IN_PLACE ? s->multiplier : c.residual == IN_PLACE ? s->residual : NULL;
    spread y = spread_make(s->y_dtype, s->m, s->rows, or_packed(s, apart.y), apart.lead, before),
           multiplier = spread_make(s->y_dtype, s->m, s->rows, or_packed(s, apart.multiplier), 1, s->multiplier),
           residual = spread_make(s->y_dtype, s->m, s->rows, or_packed(s, apart.residual), 3, s->residual);
    void *workspace = make_workspace(plan);
    trf_operands operands = test_operands(s->x, spread_at(&y));
    operands.bias = c.bias ? s->bias : NULL;
    operands.multiplier = c.multiplier == IN_PLACE ? operands.y : c.multiplier ? spread_at(&multiplier) : NULL;
    operands.residual = c.residual == IN_PLACE ? operands.y : c.residual ? spread_at(&residual) : NULL;
    fixture_check_status(trf_linear(plan, &operands, workspace, NULL, &err), TRF_OK, &err);
    void *values = spread_read(&y, s->name);
    free(spread_read(&multiplier, "the multiplier"));
    free(spread_read(&residual, "the residual"));
    trf_device_free(device, workspace);
    spread_free(&y);
    spread_free(&multiplier);
    spread_free(&residual);
    trf_plan_destroy(plan);
    return values;
}

/* Whether cuBLASLt sees y as aligned to 16 bytes, rows and all. */
static int is_aligned(const subject *s, strides apart) {
    const uint64_t each = trf_dtype_bytes(s->y_dtype), between = s->m > 1 ? apart.y : 0;
    return (apart.lead * each) % 16 == 0 && (between * each) % 16 == 0;
}

/* Compares one combination with some strides with rows one after the other. @return whether the path took it. */
static int check_strides(const subject *s, combination c) {
    const uint64_t rows = s->rows, bytes = s->m * rows * trf_dtype_bytes(s->y_dtype);
    const strides packed = {0, 0, 0, 0}, packed_odd = {0, 0, 0, 1},
                  apart[] = {{rows + 1, rows + 3, rows, 1},
                             {(rows + 79) / 16 * 16, rows, 2 * rows + 5, 0},
                             {3 * rows + 7, rows + 8, rows + 1, 3}};
    void *due = compute(s, c, packed);
    if (!due)
        return 0;
    /* The two-step path may take another algorithm if y is not aligned; for the others alignment makes no
     * difference. */
    void *due_odd = compute(s, c, packed_odd);
    EXPECT(s->path == TRF_PATH_TWO_STEP || memcmp(due, due_odd, bytes) == 0);
    for (int i = 0; i < (test_quick() ? 2 : 3); i++) {
        void *found = compute(s, c, apart[i]);
        if (memcmp(found, is_aligned(s, apart[i]) ? due : due_odd, bytes) != 0)
            ck_abort_msg("%s: activation %d, bias %d, multiplier %d, residual %d: other bits with rows %llu apart",
                         s->name, (int)c.activation, (int)c.bias, (int)c.multiplier, (int)c.residual,
                         (unsigned long long)apart[i].y);
        free(found);
    }
    free(due);
    free(due_odd);
    return 1;
}

static const trf_path *paths_of_device(int *count) {
    static const trf_path paths[] = {TRF_PATH_FUSED, TRF_PATH_TWO_STEP, TRF_PATH_WIDE};
    *count = ON_GPU ? 3 : 1;
    return paths;
}

/* Checks every path, batch and type of y, with the combinations in turn. @return how many products there were. */
static int check_layer(trf_device_layer *layer, trf_dtype x_dtype) {
    static unsigned turn;
    int num_paths, taken = 0;
    const trf_path *paths = paths_of_device(&num_paths);
    for (int p = 0; p < num_paths; p++)
        for (int b = 0; b < NUM_BATCHES; b++)
            for (int t = 0; t < 3; t++) {
                if (test_quick() && (b + t) % 3 != 0)
                    continue;
                subject s = subject_make(layer, x_dtype, kBatches[b], kYTypes[t], paths[p]);
                taken += check_strides(&s, kCombinations[0]);
                for (int i = 0; i < 2; i++)
                    check_strides(&s, kCombinations[turn++ % COMBINATIONS]);
                subject_free(&s);
            }
    return taken;
}

/* loop: kind and shape. */
START_TEST(rows_apart_have_the_same_bits) {
    const kind *k = &kKinds[_i / NUM_SHAPES];
    const uint32_t *shape = kShapes[_i % NUM_SHAPES];
    trf_device_layer *layer = make_layer(k, shape[0], shape[1], NULL);
    ck_assert_int_gt(check_layer(layer, k->x_dtype), 0);
    fixture_check_status(trf_device_layer_check(layer, &err), TRF_OK, &err);
    trf_device_layer_destroy(layer);
}
END_TEST

/* Makes a layer that the path takes if the device has that path. x: BF16. */
static trf_device_layer *make_layer_for(trf_path path, uint32_t rows, uint32_t cols) {
    return make_layer(&kKinds[path == TRF_PATH_WIDE ? E4M3 : BF16], rows, cols, NULL);
}

/* loop: combinations. */
START_TEST(every_epilogue) {
    int num_paths;
    const trf_path *paths = paths_of_device(&num_paths);
    for (int p = 0; p < num_paths; p++) {
        trf_device_layer *layer = make_layer_for(paths[p], 288, 512);
        for (int t = 0; t < 3; t++) {
            subject s = subject_make(layer, TRF_DTYPE_BF16, 7, kYTypes[t], paths[p]);
            EXPECT(check_strides(&s, kCombinations[_i]) || paths[p] == TRF_PATH_WIDE);
            subject_free(&s);
        }
        trf_device_layer_destroy(layer);
    }
}
END_TEST

/* Shards that cut tiles, and one of whole tiles. loop: shards. */
START_TEST(shards) {
    static const uint32_t parts[][4] = {{16, 400, 0, 0}, {0, 0, 272, 560}, {48, 416, 272, 560}, {256, 256, 0, 0}};
    trf_device_layer *layer = make_layer(&kKinds[0], 600, 1100, parts[_i]);
    ck_assert_int_gt(check_layer(layer, TRF_DTYPE_BF16), 0);
    trf_device_layer_destroy(layer);
}
END_TEST

/* ---- several layers, one y ---- */

/* Three layers write their y side by side, with biases and a residual that is as wide; then the multiplier of a product
 * is another layer's y in the same wider rows. */
START_TEST(side_by_side) {
    enum {
        LAYERS = 3,
        M = 9
    };
    static const uint32_t rows[LAYERS] = {304, 96, 33}, all = 304 + 96 + 33;
    const trf_dtype y_dtype = kYTypes[_i];
    const uint64_t each = trf_dtype_bytes(y_dtype);
    const combination c = {TRF_ACTIVATION_NONE, APART, ABSENT, APART};
    uint8_t *residuals = random_values(20, y_dtype, (size_t)M * all);
    spread y = spread_make(y_dtype, M, all, all + 5, 2, NULL),
           residual = spread_make(y_dtype, M, all, all, 0, residuals);
    void *due[LAYERS];
    uint32_t first = 0;
    for (int l = 0; l < LAYERS; first += rows[l++]) {
        trf_device_layer *layer = make_layer(&kKinds[0], rows[l], 515, NULL);
        subject s = subject_make(layer, TRF_DTYPE_BF16, M, y_dtype, TRF_PATH_AUTO);
        const strides packed = {0}, apart = {all + 5, 0, all, 0};
        for (uint32_t n = 0; n < M; n++)
            memcpy((uint8_t *)s.residual + n * each * rows[l], residuals + (n * (uint64_t)all + first) * each,
                   each * rows[l]);
        due[l] = compute(&s, c, packed);
        const trf_plan_options options = options_of(&s, c, apart);
        trf_plan *plan;
        fixture_check_status(trf_plan_create(layer, &options, &plan, &err), TRF_OK, &err);
        trf_operands operands = test_operands(s.x, (uint8_t *)spread_at(&y) + first * each);
        operands.bias = s.bias;
        operands.residual = (uint8_t *)spread_at(&residual) + first * each;
        void *workspace = make_workspace(plan);
        fixture_check_status(trf_linear(plan, &operands, workspace, NULL, &err), TRF_OK, &err);
        trf_device_free(device, workspace);
        trf_plan_destroy(plan);
        subject_free(&s);
        trf_device_layer_destroy(layer);
    }
    uint8_t *found = spread_read(&y, "side by side");
    first = 0;
    for (int l = 0; l < LAYERS; first += rows[l++]) {
        for (uint32_t n = 0; n < M; n++)
            EXPECT(memcmp(found + (n * (uint64_t)all + first) * each, (uint8_t *)due[l] + n * each * rows[l],
                          each * rows[l]) == 0);
        free(due[l]);
    }
    free(found);
    free(residuals);
    spread_free(&y);
    spread_free(&residual);
}
END_TEST

/* One call with y and, if the combination has one, the multiplier in given places. */
static void multiply_to(const subject *s, combination c, uint64_t stride, void *y, const void *multiplier) {
    const strides apart = {stride, stride, 0, 0};
    const trf_plan_options options = options_of(s, c, apart);
    trf_plan *plan;
    fixture_check_status(trf_plan_create(s->layer, &options, &plan, &err), TRF_OK, &err);
    void *workspace = make_workspace(plan);
    trf_operands operands = test_operands(s->x, y);
    operands.multiplier = multiplier;
    fixture_check_status(trf_linear(plan, &operands, workspace, NULL, &err), TRF_OK, &err);
    trf_device_free(device, workspace);
    trf_plan_destroy(plan);
}

/* SwiGLU: up's multiplier is gate's y, whose rows lie between those of up's. */
START_TEST(multiplier_between_rows) {
    enum {
        M = 6,
        ROWS = 200
    };
    const trf_dtype y_dtype = kYTypes[_i];
    const uint64_t each = trf_dtype_bytes(y_dtype), bytes = M * ROWS * each;
    const combination gate = {TRF_ACTIVATION_SILU, ABSENT, ABSENT, ABSENT},
                      up = {TRF_ACTIVATION_NONE, ABSENT, APART, ABSENT};
    const strides packed = {0};
    trf_device_layer *layer = make_layer(&kKinds[0], ROWS, 300, NULL);
    subject s = subject_make(layer, TRF_DTYPE_BF16, M, y_dtype, TRF_PATH_AUTO);
    spread y = spread_make(y_dtype, M, 2 * ROWS, 2 * ROWS + 1, 1, NULL);
    uint8_t *const left = spread_at(&y), *const right = left + ROWS * each;
    multiply_to(&s, gate, 2 * ROWS + 1, left, NULL);
    multiply_to(&s, up, 2 * ROWS + 1, right, left);
    void *of_gate = compute(&s, gate, packed);
    memcpy(s.multiplier, of_gate, bytes);
    void *of_up = compute(&s, up, packed);
    uint8_t *found = spread_read(&y, "gate and up");
    for (uint32_t n = 0; n < M; n++) {
        const uint8_t *row = found + 2 * n * ROWS * each;
        EXPECT(memcmp(row, (uint8_t *)of_gate + n * ROWS * each, ROWS * each) == 0);
        EXPECT(memcmp(row + ROWS * each, (uint8_t *)of_up + n * ROWS * each, ROWS * each) == 0);
    }
    free(found);
    free(of_gate);
    free(of_up);
    spread_free(&y);
    subject_free(&s);
    trf_device_layer_destroy(layer);
}
END_TEST

/* ---- what is refused ---- */

START_TEST(refused_strides) {
    enum {
        M = 3,
        ROWS = 64
    };
    trf_device_layer *layer = make_layer(&kKinds[0], ROWS, 128, NULL);
    subject s = subject_make(layer, TRF_DTYPE_BF16, M, TRF_DTYPE_F32, TRF_PATH_AUTO);
    const combination c = {TRF_ACTIVATION_NONE, APART, APART, APART};
    const strides wrong[] = {
        {ROWS - 1, 0, 0, 0},   {0, ROWS - 1, 0, 0},   {0, 0, ROWS - 1, 0},       {1, 0, 0, 0},
        {UINT64_MAX, 0, 0, 0}, {1ull << 32, 0, 0, 0}, {0, UINT64_MAX / 2, 0, 0}, {0, 0, UINT64_MAX / 4, 0}};
    trf_plan *plan = NULL;
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        const trf_plan_options options = options_of(&s, c, wrong[i]);
        fixture_check_status(trf_plan_create(layer, &options, &plan, &err), TRF_ERR_ARGUMENT, &err);
    }
    ck_assert_ptr_null(plan);
    ck_assert_uint_eq(test_device_layer_info(layer).plans, 0);

    /* A residual may not be y with another stride, nor share a column with y; but it may lie between y's rows. */
    const strides wide = {2 * ROWS, 2 * ROWS, 2 * ROWS, 0}, other = {2 * ROWS, 2 * ROWS, ROWS, 0};
    spread y = spread_make(TRF_DTYPE_F32, M, ROWS, 2 * ROWS, 0, NULL),
           apart = spread_make(TRF_DTYPE_F32, M, ROWS, 2 * ROWS, 0, s.multiplier);
    float *const at = spread_at(&y);
    const struct {
        strides strides;
        const void *bias, *multiplier, *residual;
        trf_status due;
    } cases[] = {{wide, s.bias, spread_at(&apart), at, TRF_OK},
                 {other, s.bias, spread_at(&apart), at, TRF_ERR_ARGUMENT},
                 {wide, s.bias, spread_at(&apart), at + ROWS, TRF_OK},
                 {wide, s.bias, at + ROWS, spread_at(&apart), TRF_OK},
                 {wide, s.bias, spread_at(&apart), at + ROWS - 1, TRF_ERR_ARGUMENT},
                 {wide, s.bias, at + ROWS + 1, spread_at(&apart), TRF_ERR_ARGUMENT},
                 {wide, at + ROWS, spread_at(&apart), at, TRF_OK},
                 {wide, at + ROWS + 1, spread_at(&apart), at, TRF_ERR_ARGUMENT}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const trf_plan_options options = options_of(&s, c, cases[i].strides);
        trf_operands operands = test_operands(s.x, at);
        operands.bias = cases[i].bias;
        operands.multiplier = cases[i].multiplier;
        operands.residual = cases[i].residual;
        fixture_check_status(trf_plan_create(layer, &options, &plan, &err), TRF_OK, &err);
        void *workspace = make_workspace(plan);
        const trf_status status = trf_linear(plan, &operands, workspace, NULL, &err);
        ck_assert_msg(status == cases[i].due, "case %zu: %s", i, trf_status_name(status));
        fixture_check_status(trf_device_layer_check(layer, &err), TRF_OK, &err); /* waits */
        trf_device_free(device, workspace);
        trf_plan_destroy(plan);
    }
    spread_free(&y);
    spread_free(&apart);
    subject_free(&s);
    trf_device_layer_destroy(layer);
}
END_TEST

/* A corrupt layer's y is NaN in its own rows, and nothing is written elsewhere. */
START_TEST(corrupt_layers) {
    enum {
        M = 2
    };
    glob_t files;
    int corrupt = 0;
    ck_assert_int_eq(glob(TRF_TEST_DATA_DIR "/golden/corrupt/*.trf", 0, NULL, &files), 0);
    for (size_t f = 0; f < files.gl_pathc; f++) {
        size_t blob_bytes;
        void *blob = fixture_read(files.gl_pathv[f], &blob_bytes);
        trf_device_layer *layer;
        if (trf_device_layer_create(device, blob, blob_bytes, NULL, &layer, NULL) == TRF_OK) {
            const trf_layer_info info = test_layer_info(layer);
            const trf_dtype x_dtype = info.codec == TRF_CODEC_BF16 ? TRF_DTYPE_BF16 : TRF_DTYPE_F16;
            subject s = subject_make(layer, x_dtype, M, TRF_DTYPE_F32, TRF_PATH_AUTO);
            const strides apart = {info.rows + 3, 0, 0, 0};
            const trf_plan_options options = options_of(&s, kCombinations[0], apart);
            spread y = spread_make(TRF_DTYPE_F32, M, info.rows, apart.y, 1, NULL);
            trf_plan *plan;
            fixture_check_status(trf_plan_create(layer, &options, &plan, &err), TRF_OK, &err);
            void *workspace = make_workspace(plan);
            fixture_check_status(test_multiply(plan, s.x, spread_at(&y), workspace, NULL, &err),
                                 ON_GPU ? TRF_OK : TRF_ERR_RANS, &err);
            float *found = spread_read(&y, files.gl_pathv[f]);
            uint32_t nans = 0;
            for (uint32_t i = 0; i < M * info.rows; i++)
                nans += isnan(found[i]) != 0;
            ck_assert(ON_GPU ? nans > 0 : nans == M * info.rows);
            free(found);
            trf_device_free(device, workspace);
            trf_plan_destroy(plan);
            spread_free(&y);
            subject_free(&s);
            trf_device_layer_destroy(layer);
            corrupt++;
        }
        free(blob);
    }
    globfree(&files);
    ck_assert_int_gt(corrupt, 0);
}
END_TEST

/* ---- plans ---- */

/* What a plan was made of, and what a call was given, may be overwritten afterwards. loop: paths. */
START_TEST(plans_keep_what_they_are_made_of) {
    enum {
        M = 5,
        ROWS = 288
    };
    int num_paths;
    const trf_path path = paths_of_device(&num_paths)[_i];
    const strides packed = {0}, apart = {ROWS + 9, 0, ROWS + 2, 1};
    const combination c = {TRF_ACTIVATION_GELU, APART, ABSENT, APART};
    trf_device_layer *layer = make_layer_for(path, ROWS, 512);
    subject s = subject_make(layer, TRF_DTYPE_BF16, M, TRF_DTYPE_BF16, path);
    void *due = compute(&s, c, packed);
    ck_assert(due || path == TRF_PATH_WIDE);
    for (int i = 0; due && i < 3; i++) {
        trf_plan_options options = options_of(&s, c, apart);
        trf_plan *plan;
        fixture_check_status(trf_plan_create(layer, &options, &plan, &err), TRF_OK, &err);
        const trf_plan_info before = test_plan_info(plan);
        memset(&options, 0xFF, sizeof options);
        spread y = spread_make(TRF_DTYPE_BF16, M, ROWS, apart.y, 0, NULL),
               residual = spread_make(TRF_DTYPE_BF16, M, ROWS, apart.residual, 0, s.residual);
        void *workspace = make_workspace(plan);
        for (int call = 0; call < 2; call++) {
            trf_operands operands = test_operands(s.x, spread_at(&y));
            operands.bias = s.bias;
            operands.residual = spread_at(&residual);
            fixture_check_status(trf_linear(plan, &operands, workspace, NULL, &err), TRF_OK, &err);
            memset(&operands, 0xFF, sizeof operands);
            uint16_t *found = spread_read(&y, s.name);
            ck_assert_mem_eq(found, due, 2 * M * ROWS);
            free(found);
        }
        const trf_plan_info after = test_plan_info(plan);
        ck_assert(before.m == after.m && before.x_dtype == after.x_dtype && before.y_dtype == after.y_dtype &&
                  before.path == after.path && before.path_name == after.path_name && before.reason == after.reason &&
                  before.workspace_bytes == after.workspace_bytes);
        trf_device_free(device, workspace);
        spread_free(&y);
        spread_free(&residual);
        trf_plan_destroy(plan);
    }
    free(due);
    subject_free(&s);
    trf_device_layer_destroy(layer);
}
END_TEST

START_TEST(plans_are_counted) {
    enum {
        PLANS = 20
    };
    trf_device_layer *layer = make_layer(&kKinds[0], 64, 128, NULL);
    trf_plan *plans[PLANS], *none = NULL;
    ck_assert_uint_eq(test_device_layer_info(layer).plans, 0);
    for (uint32_t i = 0; i < PLANS; i++) {
        fixture_check_status(
            test_make_plan(layer, i + 1, TRF_DTYPE_BF16, TRF_DTYPE_F32, TRF_PATH_AUTO, &plans[i], &err), TRF_OK, &err);
        ck_assert_uint_eq(test_device_layer_info(layer).plans, i + 1);
        fixture_check_status(test_make_plan(layer, 0, TRF_DTYPE_BF16, TRF_DTYPE_F32, TRF_PATH_AUTO, &none, &err),
                             TRF_ERR_ARGUMENT, &err);
        ck_assert_uint_eq(test_device_layer_info(layer).plans, i + 1);
    }
    for (uint32_t i = 0; i < PLANS; i++) {
        trf_plan_destroy(plans[(i * 7 + 3) % PLANS]);
        ck_assert_uint_eq(test_device_layer_info(layer).plans, PLANS - 1 - i);
    }
    ck_assert_ptr_null(none);
    trf_device_layer_destroy(layer);
}
END_TEST

/* ---- threads ---- */

enum {
    THREADS = 6,
    CALLS = 8,
    THREAD_M = 4,
    THREAD_ROWS = 300
};

typedef struct worker {
    const trf_plan *plan;
    trf_device_layer *layer;
    const void *x;
    spread y;
    void *workspace;
    int failures;
} worker;

/* Uses one plan that all threads share, and plans of its own that come and go. Check's assertions do not work in
 * several threads. */
static void *work(void *context) {
    worker *w = context;
    for (int i = 0; i < CALLS; i++) {
        trf_plan *own = NULL;
        w->failures += test_multiply(w->plan, w->x, spread_at(&w->y), w->workspace, NULL, NULL) != TRF_OK;
        w->failures += test_make_plan(w->layer, 1 + (uint32_t)i, TRF_DTYPE_BF16, TRF_DTYPE_F32, TRF_PATH_AUTO, &own,
                                      NULL) != TRF_OK;
        w->failures += test_device_layer_info(w->layer).plans < 2;
        trf_plan_destroy(own);
    }
    return NULL;
}

START_TEST(plans_in_several_threads) {
    trf_device_layer *layer = make_layer(&kKinds[0], THREAD_ROWS, 515, NULL);
    subject s = subject_make(layer, TRF_DTYPE_BF16, THREAD_M, TRF_DTYPE_F32, TRF_PATH_AUTO);
    const strides packed = {0}, apart = {THREAD_ROWS + 1, 0, 0, 0};
    const trf_plan_options options = options_of(&s, kCombinations[0], apart);
    void *due = compute(&s, kCombinations[0], packed);
    pthread_t threads[THREADS];
    worker workers[THREADS];
    trf_plan *plan;
    fixture_check_status(trf_plan_create(layer, &options, &plan, &err), TRF_OK, &err);
    for (int i = 0; i < THREADS; i++) {
        workers[i] = (worker){
            plan, layer, s.x, spread_make(TRF_DTYPE_F32, THREAD_M, THREAD_ROWS, apart.y, 1, NULL), make_workspace(plan),
            0};
        EXPECT(pthread_create(&threads[i], NULL, work, &workers[i]) == 0);
    }
    for (int i = 0; i < THREADS; i++) {
        pthread_join(threads[i], NULL);
        float *found = spread_read(&workers[i].y, s.name);
        ck_assert_int_eq(workers[i].failures, 0);
        ck_assert_mem_eq(found, due, 4 * THREAD_M * THREAD_ROWS);
        free(found);
        spread_free(&workers[i].y);
        trf_device_free(device, workers[i].workspace);
    }
    ck_assert_uint_eq(test_device_layer_info(layer).plans, 1);
    trf_plan_destroy(plan);
    ck_assert_uint_eq(test_device_layer_info(layer).plans, 0);
    free(due);
    subject_free(&s);
    trf_device_layer_destroy(layer);
}
END_TEST

int main(void) {
    if (test_device_missing("gpu.strides"))
        return 77;
    Suite *suite = suite_create("device_strides");
    TCase *tests = tcase_create("device_strides");
    tcase_add_unchecked_fixture(tests, begin, end);
    tcase_set_timeout(tests, 240);
    tcase_add_loop_test(tests, rows_apart_have_the_same_bits, 0, NUM_KINDS * NUM_SHAPES);
    tcase_add_loop_test(tests, every_epilogue, 0, COMBINATIONS);
    tcase_add_loop_test(tests, shards, 0, 4);
    tcase_add_loop_test(tests, side_by_side, 0, 3);
    tcase_add_loop_test(tests, multiplier_between_rows, 0, 3);
    tcase_add_test(tests, refused_strides);
    tcase_add_test(tests, corrupt_layers);
    tcase_add_loop_test(tests, plans_keep_what_they_are_made_of, 0, ON_GPU ? 3 : 1);
    tcase_add_test(tests, plans_are_counted);
    suite_add_tcase(suite, tests);
    TCase *threads = tcase_create("threads");
    tcase_set_tags(threads, "threads");
    tcase_add_unchecked_fixture(threads, begin, end);
    tcase_set_timeout(threads, 240);
    tcase_add_test(threads, plans_in_several_threads);
    suite_add_tcase(suite, threads);
    return run_suite(suite);
}
