/* SPDX-License-Identifier: Apache-2.0 */
/* Products of packed FP8 layers by all kernels in all cuts: exact sums of integers, odd shapes, records, all types of
 * y, an epilogue, misaligned x, the same bits on every run; every class of scales with every code; layers in one
 * launch, and experts. */
#include "common/packed8_product.h"
#include "gpu_fixture.h"
#include "trf_moe_launch.h"
#include "trf_number_formats.h"
#include "trf_packed8_launch.h"
#include "trf_packed_group_launch.h"
#include "trf_packed_wgmma_sizes.h"

#include <stdio.h>

/* A product on the device. */
typedef struct device_case {
    packed8_product of;
    gpu_memory packed, x, y, workspace;
    trf_packed8_view view;
    trf_dtype y_dtype;
    uint64_t y_stride;
} device_case;

static trf_device_limits find_limits(void) {
    trf_device_limits limits = {0};
    int major, minor;
    CUDA(cudaDeviceGetAttribute(&limits.multiprocessors, cudaDevAttrMultiProcessorCount, 0));
    CUDA(cudaDeviceGetAttribute(&limits.shared_bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, 0));
    CUDA(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, 0));
    CUDA(cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, 0));
    limits.capability = 10 * major + minor;
    CUDA((cudaError_t)trf_find_device_limits(&limits));
    return limits;
}

static const char *lacks_kernels(const trf_context *context) {
    const trf_device_limits limits = find_limits();
    (void)context;
    return trf_has_sm_90a(&limits) ? NULL : "no code for 9.0a";
}

static device_case case_begin(packed8_product of, trf_dtype y_dtype) {
    device_case c = {.of = of, .y_dtype = y_dtype, .y_stride = of.layer.rows + 5};
    c.packed = gpu_memory_copy_of(of.layer.packed, of.layer.head.common.buffer_bytes);
    c.x = gpu_memory_copy_of(of.x, sizeof *of.x * of.m * of.layer.cols);
    c.y = gpu_memory_make(c.y_stride * of.m * trf_dtype_bytes(y_dtype));
    c.view = trf_packed8_view_of(&of.layer.head, c.packed.at);
    return c;
}

static void case_end(device_case *c) {
    gpu_memory_free(&c->packed);
    gpu_memory_free(&c->x);
    gpu_memory_free(&c->y);
    packed8_product_free(&c->of);
}

static trf_product product_of(const device_case *c) {
    return (trf_product){.m = c->of.m, .x_dtype = TRF_DTYPE_BF16, .y_dtype = c->y_dtype, .y_stride = c->y_stride};
}

/* Enqueues the product, with a workspace that may hold anything, and reads y. */
static uint8_t *multiply(device_case *c, const trf_packed_partition *partition, const trf_product *product,
                         const trf_operands *operands) {
    c->workspace = gpu_memory_make(partition->workspace_bytes);
    gpu_memory_poison(&c->y);
    CUDA((cudaError_t)trf_packed8_launch(&c->view, product, partition, operands, c->workspace.at, NULL));
    CUDA(cudaDeviceSynchronize());
    uint8_t *y = gpu_malloc(c->y.bytes);
    gpu_memory_read(&c->y, y);
    gpu_memory_free(&c->workspace);
    return y;
}

/* Multiplies in all cuts of all shapes that the device has. @return how many there were. */
static int try_all(device_case *c, const char *what) {
    const trf_device_limits limits = find_limits();
    const trf_product product = product_of(c);
    const trf_operands operands = {.x = c->x.at, .y = c->y.at};
    int tried = 0;
    for (int shape = 0; shape < TRF_PACKED_SHAPES; shape++)
        for (uint32_t cut = 0; cut <= TRF_MAX_CLUSTER; cut++) {
            trf_packed_partition partition;
            char name[160];
            if (!trf_packed8_choose_shape(&c->view, &limits, c->of.m, shape, cut, &partition))
                continue;
            snprintf(name, sizeof name, "%s, %s, cut %s, flags %u", what, trf_packed_kernel_name(shape),
                     trf_packed_cut_name(cut), c->view.flags);
            uint8_t *y = multiply(c, &partition, &product, &operands);
            packed8_product_check(&c->of, y, c->y_dtype, c->y_stride, name);
            free(y);
            tried++;
        }
    return tried;
}

static const uint32_t kCases[][3] = {{1, 1, 1},        {70, 100, 3},    {600, 97, 8},   {130, 1100, 13},
                                     {300, 2112, 30},  {64, 704, 64},   {520, 300, 50}, {2048, 2048, 1},
                                     {1024, 3000, 16}, {4100, 1024, 9}, {33, 3900, 40}, {1000, 1032, 64}};
enum {
    CASES = sizeof kCases / sizeof *kCases
};

/* More rows of x than bulk kernels take; ragged shapes. */
static const uint32_t kLargeCases[][3] = {{70, 100, 65},    {600, 97, 128},   {130, 1100, 200}, {300, 2112, 257},
                                          {64, 704, 512},   {520, 300, 1000}, {2048, 2048, 96}, {1024, 3000, 144},
                                          {4100, 1024, 80}, {33, 3900, 4097}, {130, 328, 8192}, {640, 704, 2048}};
enum {
    LARGE_CASES = sizeof kLargeCases / sizeof *kLargeCases
};

START_TEST(sums_are_exact) {
    static const trf_dtype dtypes[] = {TRF_DTYPE_F32, TRF_DTYPE_BF16, TRF_DTYPE_F16};
    const uint32_t *of = kCases[_i / PACKED8_KINDS];
    const int kind = _i % PACKED8_KINDS;
    if (!test_tries(_i))
        return;
    test_rng rng = {900 + (uint64_t)_i};
    device_case c = case_begin(packed8_product_make(&rng, of[0], of[1], of[2], kind), dtypes[_i / PACKED8_KINDS % 3]);
    EXPECT(try_all(&c, "exact sums") > 0);
    if (kind == BY_ONE) /* kernels that do more than the layer needs */
        for (uint32_t flags = 1; flags <= TRF_PACKED8_ALL_FLAGS; flags++) {
            c.view.flags = flags;
            EXPECT(try_all(&c, "more than there is") > 0);
        }
    case_end(&c);
}
END_TEST

/* All wgmma kernels in all cuts, and the one that is chosen. */
START_TEST(large_sums_are_exact) {
    static const trf_dtype dtypes[] = {TRF_DTYPE_F32, TRF_DTYPE_BF16, TRF_DTYPE_F16};
    const uint32_t *of = kLargeCases[_i / PACKED8_KINDS];
    const trf_device_limits limits = find_limits();
    if (!test_tries(_i))
        return;
    test_rng rng = {1900 + (uint64_t)_i};
    device_case c =
        case_begin(packed8_product_make(&rng, of[0], of[1], of[2], _i % PACKED8_KINDS), dtypes[_i / PACKED8_KINDS % 3]);
    const trf_product product = product_of(&c);
    const trf_operands operands = {.x = c.x.at, .y = c.y.at};
    trf_packed_partition partition;
    EXPECT(try_all(&c, "exact sums") >= TRF_PACKED_WGMMA_SHAPES);
    EXPECT(trf_packed8_choose(&c.view, &limits, c.of.m, &partition));
    uint8_t *y = multiply(&c, &partition, &product, &operands);
    packed8_product_check(&c.of, y, c.y_dtype, c.y_stride, "the chosen kernel");
    free(y);
    case_end(&c);
}
END_TEST

/* Products that pick single weights: 2,048 blocks have the first and the last scale of each class, and 107 exponents.
 * By a bulk kernel, and by a wgmma kernel. */
START_TEST(every_class_and_code) {
    const trf_device_limits limits = find_limits();
    test_rng rng = {7};
    device_case c = case_begin(packed8_product_make_classes(&rng, 4096, 4096, 64, 0), TRF_DTYPE_F32);
    const trf_product product = product_of(&c);
    const trf_operands operands = {.x = c.x.at, .y = c.y.at};
    trf_packed_partition partition;
    EXPECT(trf_packed8_choose_shape(&c.view, &limits, c.of.m, _i ? TRF_PACKED_WGMMA_64 : TRF_PACKED_BULK_32, 1,
                                    &partition));
    for (uint32_t col = 0; col < c.of.layer.cols; col += c.of.m * (test_quick() ? 16 : 1)) {
        packed8_product_pick(&c.of, col);
        CUDA(cudaMemcpy(c.x.at, c.of.x, c.x.bytes, cudaMemcpyHostToDevice));
        uint8_t *y = multiply(&c, &partition, &product, &operands);
        packed8_product_check(&c.of, y, c.y_dtype, c.y_stride, "single weights");
        free(y);
    }
    case_end(&c);
}
END_TEST

/* x that lies at an odd address, and the same bits on every run although sums are rounded. */
START_TEST(misaligned_x_and_the_same_bits) {
    const trf_device_limits limits = find_limits();
    static const int shapes[] = {TRF_PACKED_BULK_256,  TRF_PACKED_BULK_128,  TRF_PACKED_BULK_64,     TRF_PACKED_BULK_32,
                                 TRF_PACKED_WGMMA_128, TRF_PACKED_WGMMA_256, TRF_PACKED_WGMMA_192X96};
    const int shape = shapes[_i], is_wgmma = trf_packed_is_wgmma(shape);
    test_rng rng = {8 + (uint64_t)_i};
    device_case c =
        case_begin(packed8_product_make(&rng, 1000, 4096, is_wgmma ? 300 : 16, WITH_RECORDS), TRF_DTYPE_F32);
    const trf_product product = product_of(&c);
    trf_operands operands = {.x = c.x.at, .y = c.y.at};
    trf_packed_partition partition;
    gpu_memory shifted = gpu_memory_make(c.x.bytes + 2);
    if (!trf_packed8_choose_shape(&c.view, &limits, c.of.m, shape,
                                  is_wgmma || shape == TRF_PACKED_BULK_256 ? TRF_PACKED_STREAM_K : 2, &partition))
        ck_abort_msg("no kernel %d", shape);
    CUDA(cudaMemcpy((uint8_t *)shifted.at + 2, c.of.x, c.x.bytes, cudaMemcpyHostToDevice));
    operands.x = (const uint8_t *)shifted.at + 2;
    uint8_t *y = multiply(&c, &partition, &product, &operands);
    packed8_product_check(&c.of, y, c.y_dtype, c.y_stride, "misaligned x");
    free(y);
    for (size_t i = 0; i < (size_t)c.of.m * c.of.layer.cols; i++)
        c.of.x[i] = trf_f32_to_bf16((float)test_normal(&rng));
    CUDA(cudaMemcpy(c.x.at, c.of.x, c.x.bytes, cudaMemcpyHostToDevice));
    operands.x = c.x.at;
    uint8_t *first = multiply(&c, &partition, &product, &operands);
    for (int i = 0; i < 20; i++) {
        y = multiply(&c, &partition, &product, &operands);
        EXPECT(memcmp(first, y, c.y.bytes) == 0);
        free(y);
    }
    free(first);
    gpu_memory_free(&shifted);
    case_end(&c);
}
END_TEST

/* Bias, and a residual that is added, both integers: the sums stay exact. */
START_TEST(epilogue) {
    const trf_device_limits limits = find_limits();
    test_rng rng = {9};
    device_case c = case_begin(packed8_product_make(&rng, 300, 1100, 12, BY_TWO), TRF_DTYPE_F32);
    const uint32_t rows = c.of.layer.rows;
    float *bias = gpu_malloc(sizeof *bias * rows), *residual = gpu_malloc(sizeof *residual * rows * c.of.m);
    for (uint32_t i = 0; i < rows * c.of.m; i++) {
        residual[i] = (float)(i % 11) - 5;
        if (i < rows)
            bias[i] = (float)(i % 7);
        c.of.exact[i] += residual[i] + (float)(i % rows % 7);
    }
    gpu_memory bias_dev = gpu_memory_copy_of(bias, sizeof *bias * rows),
               residual_dev = gpu_memory_copy_of(residual, sizeof *residual * rows * c.of.m);
    trf_product product = product_of(&c);
    product.has_bias = product.has_residual = 1;
    product.residual_stride = rows;
    const trf_operands operands = {.x = c.x.at, .y = c.y.at, .bias = bias_dev.at, .residual = residual_dev.at};
    for (int shape = 0; shape < TRF_PACKED_SHAPES; shape++) {
        trf_packed_partition partition;
        EXPECT(trf_packed8_choose_shape(&c.view, &limits, c.of.m, shape,
                                        shape == TRF_PACKED_BULK_256 ? TRF_PACKED_STREAM_K : 1, &partition));
        uint8_t *y = multiply(&c, &partition, &product, &operands);
        packed8_product_check(&c.of, y, c.y_dtype, c.y_stride, "epilogue");
        free(y);
    }
    gpu_memory_free(&bias_dev);
    gpu_memory_free(&residual_dev);
    free(bias);
    free(residual);
    case_end(&c);
}
END_TEST

/* Layers in one launch: the partition that is chosen, and every kernel and cut of a group. */
enum {
    GROUP = 4
};

static void check_group(device_case *c, const trf_packed_group_partition *partition) {
    const trf_packed8_view *views[GROUP];
    trf_product products[GROUP];
    const trf_product *pointers[GROUP];
    const void *x[GROUP];
    void *y[GROUP];
    gpu_memory workspace = gpu_memory_make(partition->workspace_bytes);
    for (int i = 0; i < GROUP; i++) {
        views[i] = &c[i].view;
        products[i] = product_of(&c[i]);
        pointers[i] = &products[i];
        x[i] = c[i].x.at;
        y[i] = c[i].y.at;
        gpu_memory_poison(&c[i].y);
    }
    CUDA((cudaError_t)trf_packed8_group_launch(views, pointers, GROUP, partition, x, y, workspace.at, NULL));
    CUDA(cudaDeviceSynchronize());
    for (int i = 0; i < GROUP; i++) {
        uint8_t *found = gpu_malloc(c[i].y.bytes);
        char what[80];
        snprintf(what, sizeof what, "layer %d of a group, %s, clusters of %u", i,
                 trf_packed_kernel_name(partition->shape), partition->cluster_size);
        gpu_memory_read(&c[i].y, found);
        packed8_product_check(&c[i].of, found, c[i].y_dtype, c[i].y_stride, what);
        free(found);
    }
    gpu_memory_free(&workspace);
}

/* @return 0 if a layer does not take the kernel or the cut, or if there are more blocks than run at once. */
static int cut_group(const device_case *c, const trf_device_limits *limits, int shape, uint32_t cut,
                     trf_packed_group_partition *made) {
    *made = (trf_packed_group_partition){.shape = shape, .cluster_size = cut};
    for (int i = 0; i < GROUP; i++) {
        trf_packed_partition *member = &made->members[i];
        if (!trf_packed8_choose_shape(&c[i].view, limits, c[i].of.m, shape, cut, member))
            return 0;
        made->x_tiles = member->x_tiles > made->x_tiles ? member->x_tiles : made->x_tiles;
        made->blocks += (uint32_t)member->blocks;
        made->x_offset[i] = made->workspace_bytes;
        made->workspace_bytes += member->handover_offset;
    }
    for (int i = 0; i < GROUP; i++)
        made->members[i].x_tiles = made->x_tiles;
    return made->blocks / cut <= limits->clusters_of[cut];
}

START_TEST(groups) {
    static const uint32_t shapes[GROUP][2] = {{1000, 2048}, {300, 1100}, {65, 4000}, {1024, 97}};
    static const trf_dtype dtypes[GROUP] = {TRF_DTYPE_BF16, TRF_DTYPE_F32, TRF_DTYPE_F16, TRF_DTYPE_BF16};
    const trf_device_limits limits = find_limits();
    test_rng rng = {3000 + (uint64_t)_i};
    device_case c[GROUP];
    trf_packed_partition alone[GROUP];
    trf_packed_group_product list[GROUP];
    trf_packed_group_partition partition;
    int tried = 0;
    for (int i = 0; i < GROUP; i++) {
        const uint32_t m = 1 + ((uint32_t)_i / 2 * 8 + (uint32_t)i) % 32;
        c[i] = case_begin(packed8_product_make(&rng, shapes[i][0], shapes[i][1], m,
                                               _i % 2 ? (_i + i) % PACKED8_KINDS : BY_ONE + i % 2),
                          dtypes[i]);
        EXPECT(trf_packed8_choose(&c[i].view, &limits, m, &alone[i]));
        list[i] = (trf_packed_group_product){&c[i].view.packed, m, &alone[i], &c[i].view};
        EXPECT(trf_packed_group_takes(&list[i]));
    }
    EXPECT(trf_packed_group_choose(list, GROUP, &limits, &partition));
    check_group(c, &partition);
    for (int shape = TRF_PACKED_BULK_128; shape < TRF_PACKED_BULK_SHAPES; shape++)
        for (uint32_t cut = 1; cut <= TRF_MAX_CLUSTER; cut++)
            if (cut_group(c, &limits, shape, cut, &partition)) {
                check_group(c, &partition);
                tried++;
            }
    EXPECT(tried >= 3);
    for (int i = 0; i < GROUP; i++)
        case_end(&c[i]);
}
END_TEST

/* Products of FP8 experts, of all kinds of layers, by each kernel: some have no tokens, some few and some many. Weights
 * and x are the members' own; x has the experts' rows one after the other. */
START_TEST(experts) {
    enum {
        EXPERTS = 6,
        ROWS = 400,
        COLS = 1160
    };
    static const uint32_t tokens[EXPERTS] = {3, 40, 0, 200, 1, 70};
    const trf_device_limits limits = find_limits();
    test_rng rng = {5000 + (uint64_t)_i};
    packed8_product of[EXPERTS];
    gpu_memory packed[EXPERTS];
    trf_packed_view views[EXPERTS];
    uint32_t offsets[EXPERTS + 1] = {0};
    for (int e = 0; e < EXPERTS; e++) {
        of[e] = packed8_product_make(&rng, ROWS, COLS, tokens[e] ? tokens[e] : 1, e % PACKED8_KINDS);
        packed[e] = gpu_memory_copy_of(of[e].layer.packed, of[e].layer.head.common.buffer_bytes);
        views[e] = trf_packed8_view_of(&of[e].layer.head, packed[e].at).packed;
        offsets[e + 1] = offsets[e] + tokens[e];
    }
    const uint32_t all = offsets[EXPERTS];
    uint16_t *x = gpu_malloc(sizeof *x * all * COLS);
    for (int e = 0; e < EXPERTS; e++)
        memcpy(x + (size_t)offsets[e] * COLS, of[e].x, sizeof *x * tokens[e] * COLS);
    gpu_memory x_dev = gpu_memory_copy_of(x, sizeof *x * all * COLS),
               y_dev = gpu_memory_make(sizeof(float) * all * ROWS), views_dev = gpu_memory_copy_of(views, sizeof views),
               offsets_dev = gpu_memory_copy_of(offsets, sizeof offsets);
    trf_packed_experts_partition partition;
    EXPECT(trf_packed_experts_choose(EXPERTS, ROWS, COLS, &limits, all, _i, &partition));
    gpu_memory workspace = gpu_memory_make(partition.workspace_bytes);
    const trf_packed_experts_call call = {
        .experts = {.views_dev = views_dev.at, .first = views[0], .count = EXPERTS, .is_fp8 = 1},
        .max_tokens = all,
        .y_dtype = TRF_DTYPE_F32,
        .offsets_dev = offsets_dev.at,
        .x = x_dev.at,
        .y = y_dev.at,
        .workspace = workspace.at};
    CUDA((cudaError_t)trf_packed_experts_launch(&call, &partition, NULL));
    CUDA(cudaDeviceSynchronize());
    float *y = gpu_malloc(y_dev.bytes);
    gpu_memory_read(&y_dev, y);
    for (int e = 0; e < EXPERTS; e++) {
        if (tokens[e])
            packed8_product_check(&of[e], y + (size_t)offsets[e] * ROWS, TRF_DTYPE_F32, ROWS, "an expert");
        gpu_memory_free(&packed[e]);
        packed8_product_free(&of[e]);
    }
    gpu_memory_free(&x_dev);
    gpu_memory_free(&y_dev);
    gpu_memory_free(&views_dev);
    gpu_memory_free(&offsets_dev);
    gpu_memory_free(&workspace);
    free(x);
    free(y);
}
END_TEST

START_TEST(other_partitions_are_refused) {
    test_rng rng = {10};
    device_case c = case_begin(packed8_product_make(&rng, 64, 64, 1, BY_ONE), TRF_DTYPE_F32);
    const trf_product product = product_of(&c);
    const trf_operands operands = {.x = c.x.at, .y = c.y.at};
    const trf_packed_partition general = {.shape = TRF_PACKED_GENERAL}, none = {.shape = TRF_PACKED_SHAPES};
    EXPECT(trf_packed8_launch(&c.view, &product, &general, &operands, NULL, NULL) == cudaErrorInvalidValue);
    EXPECT(trf_packed8_launch(&c.view, &product, &none, &operands, NULL, NULL) == cudaErrorInvalidValue);
    case_end(&c);
}
END_TEST

int main(void) {
    const gpu_test tests[] = {{sums_are_exact, CASES * PACKED8_KINDS},
                              {large_sums_are_exact, LARGE_CASES * PACKED8_KINDS},
                              {every_class_and_code, 2},
                              {misaligned_x_and_the_same_bits, 7},
                              {epilogue, 1},
                              {groups, 8},
                              {experts, TRF_MOE_KERNELS},
                              {other_partitions_are_refused, 1}};
    return gpu_main_unless(lacks_kernels, "packed8_product", tests, sizeof tests / sizeof *tests);
}
