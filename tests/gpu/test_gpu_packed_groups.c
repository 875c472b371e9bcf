/* SPDX-License-Identifier: Apache-2.0 */
/* Packed layers in shared launches, compared with exact sums of integers: every kernel in every cut, odd shapes,
 * records and stored tiles, all types of y; coded layers beside them; misaligned x; graphs; the same bits on every run.
 */
#include "common/packed_integers.h"
#include "common/test_calls.h"
#include "gpu_fixture.h"
#include "trf_context.h"
#include "trf_device_layer.h"
#include "trf_number_formats.h"
#include "trf_packed_bulk_sizes.h"
#include "trf_packed_group_launch.h"

#include <stdio.h>
#include <string.h>

enum {
    MOST = TRF_PACKED_GROUP_MAX_LAYERS
};

typedef struct layer_case {
    uint32_t rows, cols, m;
    trf_dtype y_dtype;
} layer_case;

/* A layer on the device, x and y, and what y must be. */
typedef struct member_case {
    layer_case of;
    packed_layer layer;
    trf_device_layer *device;
    gpu_memory weights, x, y;
    float *exact; /* [m][rows] */
} member_case;

typedef struct group_case {
    uint32_t count;
    member_case members[MOST];
    const void *x[MOST];
    void *y[MOST];
} group_case;

static void multiply_exactly(member_case *c, const uint16_t *x) {
    const uint32_t rows = c->of.rows, cols = c->of.cols;
    float *wide = gpu_malloc(sizeof *wide * cols);
    c->exact = gpu_malloc(sizeof *c->exact * c->of.m * rows);
    for (uint32_t row = 0; row < rows; row++) {
        for (uint32_t col = 0; col < cols; col++)
            wide[col] = trf_bf16_to_f32(c->layer.weights[(size_t)row * cols + col]);
        for (uint32_t n = 0; n < c->of.m; n++) {
            float sum = 0; /* it is exact for these numbers, whatever the order */
            for (uint32_t col = 0; col < cols; col++)
                sum += wide[col] * trf_bf16_to_f32(x[(size_t)n * cols + col]);
            c->exact[(size_t)n * rows + row] = sum;
        }
    }
    free(wide);
}

static member_case member_make(test_rng *rng, layer_case of, int kind) {
    member_case c = {.of = of};
    trf_device_matrix matrix;
    trf_pack_options options;
    trf_error err = {0};
    const size_t count = (size_t)of.m * of.cols;
    uint16_t *x = gpu_malloc(count * sizeof *x);
    c.layer = packed_integers_make(rng, of.rows, of.cols, kind);
    c.weights = gpu_memory_copy_of(c.layer.weights, sizeof *x * of.rows * of.cols);
    trf_device_matrix_init(&matrix);
    matrix.weights = c.weights.at;
    matrix.rows = of.rows;
    matrix.cols = of.cols;
    trf_pack_options_init(&options);
    options.packed_bf16 = 1; /* integers are FP8 */
    gpu_check(trf_device_layer_pack(gpu_context, &matrix, &options, &c.device, &err), TRF_OK, &err, "a packed layer");
    for (size_t i = 0; i < count; i++)
        x[i] = trf_f32_to_bf16((float)test_below(rng, 9) - 4);
    multiply_exactly(&c, x);
    c.x = gpu_memory_copy_of(x, count * sizeof *x);
    c.y = gpu_memory_make((uint64_t)of.m * of.rows * trf_dtype_bytes(of.y_dtype));
    free(x);
    return c;
}

static group_case group_make(test_rng *rng, const layer_case *cases, uint32_t count, int kind) {
    group_case g = {.count = count};
    for (uint32_t i = 0; i < count; i++) {
        g.members[i] = member_make(rng, cases[i], kind);
        g.x[i] = g.members[i].x.at;
        g.y[i] = g.members[i].y.at;
    }
    return g;
}

static void group_free(group_case *g) {
    for (uint32_t i = 0; i < g->count; i++) {
        member_case *c = &g->members[i];
        trf_device_layer_destroy(c->device);
        packed_layer_free(&c->layer);
        gpu_memory_free(&c->weights);
        gpu_memory_free(&c->x);
        gpu_memory_free(&c->y);
        free(c->exact);
    }
}

static void poison(const group_case *g) {
    for (uint32_t i = 0; i < g->count; i++)
        gpu_memory_poison(&g->members[i].y);
}

/* Expects that all y are the exact sums, rounded once. */
static void check_y(const group_case *g, const char *what) {
    for (uint32_t i = 0; i < g->count; i++) {
        const member_case *c = &g->members[i];
        uint8_t *found = gpu_malloc(c->y.bytes);
        gpu_memory_read(&c->y, found);
        for (size_t at = 0; at < (size_t)c->of.m * c->of.rows; at++) {
            const float exact = c->exact[at];
            const uint32_t half = ((const uint16_t *)found)[at];
            const int right = c->of.y_dtype == TRF_DTYPE_F32    ? ((const float *)found)[at] == exact
                              : c->of.y_dtype == TRF_DTYPE_BF16 ? half == trf_f32_to_bf16(exact)
                                                                : half == trf_f32_to_f16(exact);
            if (!right)
                ck_abort_msg("%s: layer %u of %u, %ux%u, y[%zu][%zu] is not %g", what, i, g->count, c->of.rows,
                             c->of.cols, at / c->of.rows, at % c->of.rows, (double)exact);
        }
        free(found);
    }
}

static trf_layer_group *make_layer_group(const group_case *g) {
    trf_group_member list[MOST];
    trf_layer_group *group;
    trf_error err = {0};
    for (uint32_t i = 0; i < g->count; i++)
        list[i] = test_group_member(g->members[i].device, g->members[i].of.m, TRF_DTYPE_BF16, g->members[i].of.y_dtype);
    gpu_check(trf_layer_group_create(list, g->count, &group, &err), TRF_OK, &err, "a group");
    return group;
}

static void queue(const group_case *g, const trf_layer_group *group, void *workspace, cudaStream_t stream) {
    trf_error err = {0};
    gpu_check(trf_linear_group(group, g->x, g->y, workspace, stream, &err), TRF_OK, &err, "a group");
}

/* ---- every kernel ---- */

/* @return 0 if a layer does not take the kernel or the cut, or if there are more blocks than run at once. */
static int cut_group(const group_case *g, int shape, uint32_t cut, trf_packed_group_partition *made) {
    *made = (trf_packed_group_partition){.shape = shape, .cluster_size = cut};
    for (uint32_t i = 0; i < g->count; i++) {
        trf_packed_partition *member = &made->members[i];
        if (!trf_packed_choose_shape(&g->members[i].device->packed, &gpu_context->limits, g->members[i].of.m, shape,
                                     cut, member))
            return 0;
        made->x_tiles = member->x_tiles > made->x_tiles ? member->x_tiles : made->x_tiles;
        made->blocks += (uint32_t)member->blocks;
        made->x_offset[i] = made->workspace_bytes;
        made->workspace_bytes += member->handover_offset;
    }
    for (uint32_t i = 0; i < g->count; i++)
        made->members[i].x_tiles = made->x_tiles;
    return made->blocks / cut <= gpu_context->limits.clusters_of[cut];
}

static void check_cut(const group_case *g, const trf_packed_group_partition *partition) {
    const trf_packed_view *views[MOST];
    trf_product products[MOST];
    const trf_product *pointers[MOST];
    char what[80];
    for (uint32_t i = 0; i < g->count; i++) {
        const layer_case *of = &g->members[i].of;
        views[i] = &g->members[i].device->packed;
        products[i] =
            (trf_product){.m = of->m, .x_dtype = TRF_DTYPE_BF16, .y_dtype = of->y_dtype, .y_stride = of->rows};
        pointers[i] = &products[i];
    }
    gpu_memory workspace = gpu_memory_make(partition->workspace_bytes);
    poison(g);
    const int status = trf_packed_group_launch(views, pointers, g->count, partition, g->x, g->y, workspace.at, NULL);
    ck_assert_msg(status == cudaSuccess, "%s", cudaGetErrorString((cudaError_t)status));
    snprintf(what, sizeof what, "%s, clusters of %u, %u x tiles", trf_packed_kernel_name(partition->shape),
             partition->cluster_size, partition->x_tiles);
    check_y(g, what);
    gpu_memory_free(&workspace);
}

/* loop: kind of weights without row offsets, and batch. */
START_TEST(every_kernel_is_exact) {
    static const uint32_t most[] = {8, 16, 32};
    const int kind = _i % 8;
    const uint32_t m = most[_i / 8];
    /* enough columns for clusters of 8 blocks */
    const layer_case cases[] = {{300, 8192, m, TRF_DTYPE_F32},
                                {70, 8200, m - 5, TRF_DTYPE_BF16},
                                {129, 8193, 1, TRF_DTYPE_F16},
                                {32, 8170, m - 7, TRF_DTYPE_F32}};
    test_rng rng = {100 + (uint64_t)_i};
    if (!test_tries(_i))
        return;
    group_case g = group_make(&rng, cases, 4, kind);
    int tried = 0;
    for (uint32_t i = 1; i < g.count; i++)
        ck_assert(g.members[0].device->packed.zeroing == g.members[i].device->packed.zeroing);
    for (int shape = TRF_PACKED_BULK_128; shape < TRF_PACKED_BULK_SHAPES; shape++)
        for (uint32_t cut = 1; cut <= TRF_MAX_CLUSTER; cut++) {
            trf_packed_group_partition partition;
            if (!cut_group(&g, shape, cut, &partition))
                continue;
            check_cut(&g, &partition);
            tried++;
        }
    if (gpu_context->limits.capability == 90)
        ck_assert_int_ge(tried, 16);
    group_free(&g);
}
END_TEST

/* ---- groups ---- */

static const layer_case kQkv[] = {
    {4096, 4096, 8, TRF_DTYPE_BF16}, {1024, 4096, 8, TRF_DTYPE_F32}, {1024, 4096, 3, TRF_DTYPE_F16}};
static const layer_case kQuickQkv[] = {
    {512, 1280, 8, TRF_DTYPE_BF16}, {128, 1280, 8, TRF_DTYPE_F32}, {128, 1280, 3, TRF_DTYPE_F16}};
static const layer_case *qkv(void) { return test_quick() ? kQuickQkv : kQkv; }

/* One launch, the same bits on every run while another stream copies, and with x at odd addresses. */
START_TEST(groups_share_a_launch) {
    test_rng rng = {200};
    group_case g = group_make(&rng, qkv(), 3, WITH_OUTLIERS | WITH_STORED);
    trf_layer_group *group = make_layer_group(&g);
    const trf_layer_group_info info = test_group_info(group);
    const int runs = test_quick() ? 5 : 1000;
    gpu_memory workspace = gpu_memory_make(info.workspace_bytes);
    gpu_disturbance d = gpu_disturbance_make();
    if (gpu_context->limits.capability == 90)
        ck_assert(info.sharing == 3 && info.launches == 1);
    for (int run = 0; run < runs; run++) {
        if (run % 50 == 0)
            poison(&g);
        if (run % 7 == 0)
            gpu_disturb(&d);
        queue(&g, group, workspace.at, NULL);
        if (run % 50 == 0 || run + 1 == runs)
            check_y(&g, "a run");
    }
    const uint64_t x_bytes = g.members[1].x.bytes;
    gpu_memory x = gpu_memory_make(x_bytes + 2);
    CUDA(cudaMemcpy((char *)x.at + 2, g.x[1], x_bytes, cudaMemcpyDeviceToDevice));
    g.x[1] = (char *)x.at + 2;
    poison(&g);
    gpu_memory_poison(&workspace);
    queue(&g, group, workspace.at, NULL);
    check_y(&g, "misaligned x");
    gpu_memory_free(&x);
    gpu_disturbance_free(&d);
    gpu_memory_free(&workspace);
    trf_layer_group_destroy(group);
    group_free(&g);
}
END_TEST

START_TEST(groups_in_graphs) {
    test_rng rng = {300};
    group_case g = group_make(&rng, qkv(), 3, WITH_OUTLIERS);
    trf_layer_group *group = make_layer_group(&g);
    gpu_memory workspace = gpu_memory_make(test_group_info(group).workspace_bytes);
    cudaStream_t stream;
    cudaGraph_t graph;
    cudaGraphExec_t executable;
    CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    CUDA(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
    for (int i = 0; i < 20; i++)
        queue(&g, group, workspace.at, stream);
    CUDA(cudaStreamEndCapture(stream, &graph));
    CUDA(cudaGraphInstantiate(&executable, graph, 0));
    for (int i = 0; i < 3; i++) {
        poison(&g);
        CUDA(cudaGraphLaunch(executable, stream));
        CUDA(cudaStreamSynchronize(stream));
        check_y(&g, "a graph");
    }
    CUDA(cudaGraphExecDestroy(executable));
    CUDA(cudaGraphDestroy(graph));
    CUDA(cudaStreamDestroy(stream));
    gpu_memory_free(&workspace);
    trf_layer_group_destroy(group);
    group_free(&g);
}
END_TEST

/* Coded and packed layers, zeroing ones, large batches: each kind has launches of its own, and some run alone. */
START_TEST(mixed_groups) {
    static const layer_case cases[MOST] = {{512, 1024, 4, TRF_DTYPE_F32},  {300, 1000, 4, TRF_DTYPE_BF16},
                                           {512, 1024, 4, TRF_DTYPE_F32},  {256, 2048, 40, TRF_DTYPE_F32},
                                           {512, 768, 2, TRF_DTYPE_F16},   {512, 768, 4, TRF_DTYPE_F32},
                                           {256, 1024, 32, TRF_DTYPE_F32}, {33, 777, 1, TRF_DTYPE_F32}};
    static const int kinds[MOST] = {WITH_OUTLIERS, WITH_OUTLIERS, WITH_OUTLIERS, WITH_OUTLIERS,
                                    WITH_ZEROS,    WITH_ZEROS,    WITH_OUTLIERS, WITH_OUTLIERS};
    test_rng rng = {400};
    group_case g = {.count = MOST};
    for (uint32_t i = 0; i < MOST; i++) {
        member_case *c = &g.members[i];
        *c = member_make(&rng, cases[i], kinds[i]);
        g.x[i] = c->x.at;
        g.y[i] = c->y.at;
        if (i != 0 && i != 2)
            continue;
        trf_error err = {0};
        void *blob;
        uint64_t blob_bytes;
        gpu_check(trf_device_layer_encode(c->device, 0, &blob, &blob_bytes, &err), TRF_OK, &err, "a blob");
        trf_device_layer_destroy(c->device);
        gpu_check(trf_device_layer_create(gpu_context, blob, blob_bytes, NULL, &c->device, &err), TRF_OK, &err,
                  "a coded layer");
        trf_free(blob);
    }
    trf_layer_group *group = make_layer_group(&g);
    const trf_layer_group_info info = test_group_info(group);
    printf("%u of %u layers share %u launches\n", info.sharing, info.members, info.launches);
    if (gpu_context->limits.capability == 90)
        ck_assert(info.sharing >= 5 && info.sharing <= 7 && info.launches >= 2); /* 40 rows of x run alone */
    gpu_memory workspace = gpu_memory_make(info.workspace_bytes);
    poison(&g);
    queue(&g, group, workspace.at, NULL);
    check_y(&g, "a mixed group");
    gpu_memory_free(&workspace);
    trf_layer_group_destroy(group);
    group_free(&g);
}
END_TEST

int main(void) {
    const gpu_test tests[] = {
        {every_kernel_is_exact, 24}, {groups_share_a_launch, 1}, {groups_in_graphs, 1}, {mixed_groups, 1}};
    return gpu_main("packed_groups", tests, sizeof tests / sizeof *tests);
}
