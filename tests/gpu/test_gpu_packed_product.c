/* SPDX-License-Identifier: Apache-2.0 */
/* Products of packed layers by every kernel that the device has, compared with exact sums of integers: odd shapes and
 * batches, zeros, records, stored tiles, row offsets; misaligned x, leading dimensions, types of y, and the same bits
 * on every run. */
#include "common/packed_integers.h"
#include "common/test_weights.h"
#include "gpu_fixture.h"
#include "trf_context.h"
#include "trf_number_formats.h"
#include "trf_packed_launch.h"
#include "trf_packed_wgmma_sizes.h"
#include "trf_threads.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum {
    CUTS = TRF_MAX_CLUSTER + 1,
    KERNELS = 1 + CUTS * TRF_PACKED_SHAPES, /* the general one, and the others, cut in each way */
    GUARD = 3                               /* elements between rows of y */
};

typedef struct layer_shape {
    uint32_t rows, cols;
} layer_shape;

enum {
    SHAPES = 12,
    SMALL_SHAPES = 8 /* the first ones */
};
static const layer_shape kShapes[SHAPES] = {{1, 1},       {65, 40},     {64, 2100},  {130, 1100},
                                            {70, 2112},   {200, 97},    {600, 3104}, {96, 8192},
                                            {2048, 5632}, {4160, 1000}, {3000, 777}, {5000, 4096}};
static const uint32_t kBatches[] = {1, 3, 8, 9, 16, 30, 33, 64, 65, 130, 300};

/* A packed layer on the device, x, and what y must be. */
typedef struct packed_case {
    packed_layer layer;
    gpu_memory packed, x;
    trf_packed_view view; /* of device memory */
    uint32_t m;           /* the most */
    uint16_t *x_host;     /* [m][cols] */
    float *exact;         /* [m][rows] */
} packed_case;

/* ---- what products must be; computed on all cores, since it takes long ---- */

enum {
    SUMS = 16 /* at a time, which the compiler keeps in vectors */
};

typedef struct exact_work {
    packed_case *c;
    const float *x; /* [m][cols] */
    float *rows;    /* [workers][cols] */
} exact_work;

/* Computes a sum in F32, which is exact for these numbers, whatever the order. */
static float exact_sum(const float *row, const float *x, uint32_t cols) {
    float sums[SUMS] = {0}, sum = 0;
    uint32_t col = 0;
    for (; col + SUMS <= cols; col += SUMS)
        for (uint32_t i = 0; i < SUMS; i++)
            sums[i] += row[col + i] * x[col + i];
    for (uint32_t i = 0; i < SUMS; i++)
        sum += sums[i];
    for (; col < cols; col++)
        sum += row[col] * x[col];
    return sum;
}

/* A trf_parallel_fn; index: a row of the layer. */
static trf_status multiply_row(void *context, uint64_t index, int worker, trf_error *err) {
    const exact_work *work = context;
    packed_case *c = work->c;
    const uint32_t rows = c->layer.rows, cols = c->layer.cols;
    float *const row = work->rows + (size_t)worker * cols;
    (void)err;
    for (uint32_t col = 0; col < cols; col++)
        row[col] = trf_bf16_to_f32(c->layer.weights[index * cols + col]);
    for (uint32_t n = 0; n < c->m; n++)
        c->exact[(size_t)n * rows + index] = exact_sum(row, work->x + (size_t)n * cols, cols);
    return TRF_OK;
}

static void multiply_exactly(packed_case *c, int threads) {
    const uint32_t cols = c->layer.cols;
    float *x = gpu_malloc((size_t)c->m * cols * sizeof *x);
    for (size_t i = 0; i < (size_t)c->m * cols; i++)
        x[i] = trf_bf16_to_f32(c->x_host[i]);
    exact_work work = {c, x, gpu_malloc((size_t)trf_thread_count(threads) * cols * sizeof *x)};
    ck_assert_int_eq(trf_parallel_for(threads, c->layer.rows, multiply_row, &work, NULL), TRF_OK);
    free(work.rows);
    free(x);
}

/* ---- cases ---- */

/* Makes what a case has on the host. threads: as for trf_parallel_for. */
static void case_prepare(packed_case *c, layer_shape shape, int kind, uint32_t m, int threads) {
    test_rng rng = {1000 + shape.rows * 7 + (uint64_t)kind};
    *c = (packed_case){.m = m};
    c->layer = packed_integers_make(&rng, shape.rows, shape.cols, kind);
    c->x_host = gpu_malloc((size_t)m * shape.cols * sizeof *c->x_host);
    c->exact = gpu_malloc((size_t)m * shape.rows * sizeof *c->exact);
    for (size_t i = 0; i < (size_t)m * shape.cols; i++)
        c->x_host[i] = trf_f32_to_bf16((float)test_below(&rng, 9) - 4);
    multiply_exactly(c, threads);
}

static void case_upload(packed_case *c) {
    c->packed = gpu_memory_copy_of(c->layer.packed, c->layer.head.common.buffer_bytes);
    c->view = trf_packed_view_of(&c->layer.head, c->packed.at);
    c->x = gpu_memory_copy_of(c->x_host, (size_t)c->m * c->layer.cols * sizeof *c->x_host);
}

static packed_case case_begin(layer_shape shape, int kind, uint32_t m) {
    packed_case c;
    case_prepare(&c, shape, kind, m, 0);
    case_upload(&c);
    return c;
}

static void case_end(packed_case *c) {
    packed_layer_free(&c->layer);
    gpu_memory_free(&c->packed);
    gpu_memory_free(&c->x);
    free(c->x_host);
    free(c->exact);
}

/* @return 0 if the kernel does not run here, or not for this batch. */
static int choose(const packed_case *c, uint32_t m, int kernel, trf_packed_partition *partition) {
    const trf_device_limits *limits = &gpu_context->limits;
    if (kernel == 0)
        return trf_packed_choose_general(&c->view, limits, m, partition);
    return trf_packed_choose_shape(&c->view, limits, m, (kernel - 1) / CUTS, (uint32_t)(kernel - 1) % CUTS, partition);
}

static void launch(const packed_case *c, const trf_packed_partition *partition, const trf_product *product,
                   const void *x, void *y, void *workspace, cudaStream_t stream) {
    const trf_operands operands = {.struct_bytes = sizeof operands, .x = x, .y = y};
    const int status = trf_packed_launch(&c->view, product, partition, &operands, workspace, stream);
    ck_assert_msg(status == cudaSuccess, "%s", cudaGetErrorString((cudaError_t)status));
}

static trf_product product_of(uint32_t m, trf_dtype y_dtype, uint64_t y_stride) {
    return (trf_product){.m = m, .x_dtype = TRF_DTYPE_BF16, .y_dtype = y_dtype, .y_stride = y_stride};
}

/* Takes device memory from a room that a suite uses again and again, since allocating takes longer than most products;
 * with compute-sanitizer, which must see the bounds of each, it allocates. */
static gpu_memory room_take(gpu_memory *room, uint64_t bytes) {
    if (test_quick())
        return gpu_memory_make(bytes);
    if (!room->at || room->bytes < bytes) {
        gpu_memory_free(room);
        *room = gpu_memory_make(bytes);
    }
    const gpu_memory taken = {room->at, bytes, room->guard_bytes};
    gpu_memory_poison(&taken);
    return taken;
}

static void room_give(gpu_memory *taken) {
    if (test_quick())
        gpu_memory_free(taken);
}

static gpu_memory y_room, workspace_room;

/* Checks a row of y, and what lies between it and the next one. */
static int row_is_right(const float *found, const float *exact, uint32_t rows) {
    if (memcmp(found, exact, rows * sizeof *found) != 0) /* else zeros may have other signs */
        for (uint32_t row = 0; row < rows; row++)
            if (found[row] != exact[row])
                return 0;
    for (uint32_t i = rows; i < rows + GUARD; i++)
        if (trf_f32_bits(found[i]) != 0xFFFFFFFF)
            return 0;
    return 1;
}

static void fail_row(const packed_case *c, uint32_t m, const trf_packed_partition *partition, uint32_t n,
                     const float *found) {
    const uint32_t rows = c->layer.rows;
    uint32_t row = 0;
    while (row < rows && found[row] == c->exact[(size_t)n * rows + row])
        row++;
    ck_abort_msg("shape %d, %llu blocks, clusters of %u, %ux%u, m %u: y[%u][%u] is %g and not %g", partition->shape,
                 (unsigned long long)partition->blocks, partition->cluster_size, rows, c->layer.cols, m, n, row,
                 (double)found[row], row < rows ? (double)c->exact[(size_t)n * rows + row] : (double)NAN);
}

/* Expects the right bits of F32 with a leading dimension, and nothing written between the rows. */
static void check_partition(const packed_case *c, uint32_t m, const trf_packed_partition *partition, const void *x) {
    const uint32_t rows = c->layer.rows, stride = rows + GUARD;
    const size_t bytes = (size_t)m * stride * sizeof(float);
    const trf_product product = product_of(m, TRF_DTYPE_F32, stride);
    gpu_memory y = room_take(&y_room, bytes), workspace = room_take(&workspace_room, partition->workspace_bytes);
    float *found = gpu_malloc(bytes);
    launch(c, partition, &product, x, y.at, workspace.at, NULL);
    gpu_memory_read(&y, found);
    for (uint32_t n = 0; n < m; n++)
        if (!row_is_right(found + (size_t)n * stride, c->exact + (size_t)n * rows, rows))
            fail_row(c, m, partition, n, found + (size_t)n * stride);
    free(found);
    room_give(&y);
    room_give(&workspace);
}

static void check_sums(const packed_case *c, uint32_t m, int kernel, const void *x) {
    trf_packed_partition partition;
    if (choose(c, m, kernel, &partition))
        check_partition(c, m, &partition, x);
}

/* ---- the tests ---- */

typedef struct shape_cases {
    int shape;
    packed_case of[KINDS]; /* of kinds of weights */
} shape_cases;

static int is_tried(int shape, int kind) { return !test_quick() || (shape < SMALL_SHAPES && (shape + kind) % 4 == 0); }

/* A trf_parallel_fn; index: the kind. */
static trf_status prepare_kind(void *context, uint64_t index, int worker, trf_error *err) {
    shape_cases *cases = context;
    (void)worker, (void)err;
    if (is_tried(cases->shape, (int)index))
        case_prepare(&cases->of[index], kShapes[cases->shape], (int)index, cases->shape < SMALL_SHAPES ? 300 : 130, 1);
    return TRF_OK;
}

/* loop: shape. */
START_TEST(sums_are_exact) {
    shape_cases cases = {.shape = _i};
    ck_assert_int_eq(trf_parallel_for(0, KINDS, prepare_kind, &cases, NULL), TRF_OK);
    for (int kind = 0; kind < KINDS; kind++) {
        packed_case *c = &cases.of[kind];
        if (!is_tried(_i, kind))
            continue;
        case_upload(c);
        for (int b = 0; b < 11 && kBatches[b] <= c->m; b++)
            for (int kernel = 0; kernel < KERNELS; kernel++)
                check_sums(c, kBatches[b], kernel, c->x.at);
        case_end(c);
    }
}
END_TEST

/* x at odd places. */
START_TEST(misaligned_x) {
    const layer_shape shape = {300, _i % 2 ? 1000 : 1001};
    packed_case c = case_begin(shape, WITH_OUTLIERS, 20);
    const size_t bytes = (size_t)20 * shape.cols * 2;
    gpu_memory room = gpu_memory_make(bytes + 16);
    for (uint32_t at = 2; at < 16; at += 2) {
        CUDA(cudaMemcpy((uint8_t *)room.at + at, c.x_host, bytes, cudaMemcpyHostToDevice));
        for (int kernel = 0; kernel < KERNELS; kernel++)
            check_sums(&c, 20, kernel, (uint8_t *)room.at + at);
    }
    gpu_memory_free(&room);
    case_end(&c);
}
END_TEST

/* BF16 and F16 y are the exact sums rounded once; the same bits on every run, also while another stream copies. */
START_TEST(same_bits_on_every_run) {
    const layer_shape shape = {4160, 4096};
    packed_case c = case_begin(shape, WITH_OUTLIERS | WITH_STORED, 64);
    const trf_dtype dtype = _i % 2 ? TRF_DTYPE_F16 : TRF_DTYPE_BF16;
    const int runs = test_quick() ? 5 : 1000;
    const size_t count = (size_t)64 * shape.rows;
    const trf_product product = product_of(64, dtype, shape.rows);
    gpu_disturbance disturbance = gpu_disturbance_make();
    gpu_memory y = gpu_memory_make(2 * count);
    uint16_t *found = gpu_malloc(2 * count);
    for (int kernel = 0; kernel < KERNELS; kernel++) {
        trf_packed_partition partition;
        if (!choose(&c, 64, kernel, &partition))
            continue;
        gpu_memory workspace = gpu_memory_make(partition.workspace_bytes);
        for (int run = 0; run < runs; run++) {
            if (run % 50 < 2)
                CUDA(cudaMemset(y.at, 0xFF, 2 * count));
            if (run % 7 == 0)
                gpu_disturb(&disturbance);
            launch(&c, &partition, &product, c.x.at, y.at, workspace.at, NULL);
            if (run % 50 && run + 1 < runs)
                continue;
            gpu_memory_read(&y, found);
            for (size_t i = 0; i < count; i++)
                EXPECT(found[i] ==
                       (dtype == TRF_DTYPE_BF16 ? trf_f32_to_bf16(c.exact[i]) : trf_f32_to_f16(c.exact[i])));
        }
        gpu_memory_free(&workspace);
    }
    free(found);
    gpu_memory_free(&y);
    gpu_disturbance_free(&disturbance);
    case_end(&c);
}
END_TEST

/* Each run of a CUDA graph has the same launch ids in its flags. */
START_TEST(graphs_are_replayed) {
    const uint32_t m = 40 * (uint32_t)_i + 16;
    packed_case c = case_begin((layer_shape){4160, 4096}, WITH_OUTLIERS, m);
    const trf_product product = product_of(m, TRF_DTYPE_F32, 4160);
    const size_t bytes = (size_t)m * 4160 * sizeof(float);
    gpu_memory y = gpu_memory_make(bytes);
    float *found = gpu_malloc(bytes);
    cudaStream_t stream;
    CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    for (int kernel = 0; kernel < KERNELS; kernel++) {
        trf_packed_partition partition;
        if (!choose(&c, m, kernel, &partition))
            continue;
        gpu_memory workspace = gpu_memory_make(partition.workspace_bytes);
        cudaGraph_t graph;
        cudaGraphExec_t graph_exec;
        CUDA(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
        for (int i = 0; i < 3; i++)
            launch(&c, &partition, &product, c.x.at, y.at, workspace.at, stream);
        CUDA(cudaStreamEndCapture(stream, &graph));
        CUDA(cudaGraphInstantiate(&graph_exec, graph, 0));
        for (int run = 0; run < (test_quick() ? 2 : 40); run++) {
            if (run % 4 == 0)
                gpu_memory_poison(&y);
            CUDA(cudaGraphLaunch(graph_exec, stream));
            if (run % 4 < 2)
                continue;
            gpu_memory_read(&y, found);
            for (size_t i = 0; i < (size_t)m * 4160; i++)
                if (found[i] != c.exact[i])
                    ck_abort_msg("shape %d, cut %d, run %d: y[%zu]", partition.shape, (kernel - 1) % CUTS, run, i);
        }
        CUDA(cudaGraphExecDestroy(graph_exec));
        CUDA(cudaGraphDestroy(graph));
        gpu_memory_free(&workspace);
    }
    CUDA(cudaStreamDestroy(stream));
    free(found);
    gpu_memory_free(&y);
    case_end(&c);
}
END_TEST

/* Whatever lies in lines, tiles and stored tiles, products end, and compute-sanitizer reports nothing. */
START_TEST(garbage_stays_inside) {
    packed_case c = case_begin((layer_shape){520, 3100}, WITH_OUTLIERS | WITH_STORED | (_i % 2 ? WITH_ZEROS : 0), 33);
    test_rng rng = {77 + (uint64_t)_i};
    for (uint64_t at = c.layer.head.lines_offset; at < c.layer.head.common.buffer_bytes; at++)
        if (_i / 2 == 0 || test_below(&rng, 16) == 0)
            c.layer.packed[at] = (uint8_t)test_random(&rng);
    CUDA(cudaMemcpy(c.packed.at, c.layer.packed, c.layer.head.common.buffer_bytes, cudaMemcpyHostToDevice));
    const trf_product product = product_of(33, TRF_DTYPE_F32, 520);
    gpu_memory y = gpu_memory_make((size_t)33 * 520 * 4);
    float *found = gpu_malloc((size_t)33 * 520 * sizeof *found);
    for (int kernel = 0; kernel < KERNELS; kernel++) {
        trf_packed_partition partition;
        if (!choose(&c, 33, kernel, &partition))
            continue;
        gpu_memory workspace = gpu_memory_make(partition.workspace_bytes);
        launch(&c, &partition, &product, c.x.at, y.at, workspace.at, NULL);
        gpu_memory_read(&y, found); /* the guard, too */
        gpu_memory_free(&workspace);
    }
    free(found);
    gpu_memory_free(&y);
    case_end(&c);
}
END_TEST

static const layer_shape kRealShapes[] = {{28672, 8192}, {14336, 4096}, {4096, 14336}, {4096, 4096}, {1024, 4096}};
enum {
    REAL_SHAPES = sizeof kRealShapes / sizeof kRealShapes[0],
    QUICK_REAL_SHAPES = 2 /* the last ones */
};

/* A trf_parallel_fn; index: into kRealShapes. */
static trf_status prepare_real(void *context, uint64_t index, int worker, trf_error *err) {
    packed_case *cases = context;
    (void)worker, (void)err;
    if (!test_quick() || index >= REAL_SHAPES - QUICK_REAL_SHAPES)
        case_prepare(&cases[index], kRealShapes[index], WITH_OUTLIERS, 200, 0);
    return TRF_OK;
}

/* The kernels that plans would take run on layers of realistic size. */
START_TEST(chosen_kernels) {
    static const uint32_t batches[] = {3, 96, 200};
    packed_case cases[REAL_SHAPES];
    ck_assert_int_eq(trf_parallel_for(0, REAL_SHAPES, prepare_real, cases, NULL), TRF_OK);
    for (int s = test_quick() ? REAL_SHAPES - QUICK_REAL_SHAPES : 0; s < REAL_SHAPES; s++) {
        packed_case *c = &cases[s];
        case_upload(c);
        for (int b = 0; b < 3; b++) {
            trf_packed_partition partition;
            ck_assert(trf_packed_choose(&c->view, &gpu_context->limits, batches[b], &partition));
            printf("%ux%u, m %u: shape %d, %llu blocks, clusters of %u, %u of %u tiles whole\n", c->layer.rows,
                   c->layer.cols, batches[b], partition.shape, (unsigned long long)partition.blocks,
                   partition.cluster_size, partition.whole_tiles, partition.tiles);
            check_partition(c, batches[b], &partition, c->x.at);
        }
        case_end(c);
    }
}
END_TEST

int main(void) {
    const gpu_test tests[] = {
        {sums_are_exact, SHAPES}, {misaligned_x, 2},         {same_bits_on_every_run, 2},
        {graphs_are_replayed, 4}, {garbage_stays_inside, 4}, {chosen_kernels, 1},
    };
    return gpu_main("packed_product", tests, sizeof tests / sizeof *tests);
}
