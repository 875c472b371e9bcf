/* SPDX-License-Identifier: Apache-2.0 */
/* Writes any bytes over a packed layer, of BF16 or of FP8, but its head, and lets a kernel run over it in emulated
 * warps: unpacking, looking rows up, and the product kernels. None may read outside the layer's buffer, which is
 * exactly as large as it must be, or write outside of what is its own, or hang.
 *
 * An input begins with which kernel, kind of layer, shape, and rows of x; then come places, and what is written there.
 * Lines of records are a thousandth of a layer, so most places are in them. */
#include "common/hopper_limits.h"
#include "fuzz_packed_layer.h"
#include "trf_packed_bulk_sizes.h"
#include "trf_packed_wgmma_sizes.h"
#include "warp/warp_pack.h"
#include "warp/warp_packed_product.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum {
    UNPACK,
    LOOK_UP,
    GENERAL,
    BULK,
    GROUP,
    WGMMA,
    KERNELS,
    MOST_WARPS = 48, /* of an emulated cluster */
    MOST_X_ROWS = 40
};

/* What a kernel works on besides the layer. */
typedef struct kernel_run {
    const fuzz_packed_layer *layer;
    uint32_t m, order, choice; /* choice: any number; it picks among what the kernel has */
    uint16_t *x;
    float *y;
} kernel_run;

/* ---- kernels ---- */

static void unpack(const kernel_run *run) {
    const trf_packed_view *view = &run->layer->view.packed;
    const uint32_t first = run->choice % view->rows, count = 1 + run->choice / 256 % (view->rows - first);
    const uint32_t weight_bytes = run->choice & 1 ? 4 : 2;
    const warp_grid grid = {1 + run->choice % 3, run->order};
    void *weights = fuzz_allocate((size_t)count * view->cols * weight_bytes);
    const trf_unpack_target target = {weights, view->cols, weight_bytes};
    if (run->layer->is_fp8)
        warp_unpack8(&run->layer->view, first, count, &target, grid);
    else
        warp_unpack(view, first, count, &target, grid);
    free(weights);
}

static void look_up(const kernel_run *run) {
    const trf_packed_view *view = &run->layer->view.packed;
    const int64_t ids[] = {0, run->choice, -1, view->rows - 1, INT64_MAX, INT64_MIN};
    const trf_packed_lookup lookup = {ids, 8, sizeof ids / sizeof *ids};
    const warp_grid grid = {1 + run->choice % 3, run->order};
    uint16_t *weights = fuzz_allocate(lookup.count * view->cols * sizeof *weights);
    const trf_unpack_target target = {weights, view->cols, 2};
    if (run->layer->is_fp8)
        warp_unpack8_rows(&run->layer->view, &lookup, &target, grid);
    else
        warp_unpack_rows(view, &lookup, &target, grid);
    free(weights);
}

static warp_packed_product product_of(const kernel_run *run, const trf_packed_partition *partition, void *workspace) {
    const trf_epilogue epilogue = {.y = run->y, .y_stride = run->layer->view.packed.rows, .y_dtype = TRF_DTYPE_F32};
    return (warp_packed_product){
        &run->layer->view.packed, partition, run->m, run->x, 0, workspace, epilogue, run->order};
}

static void multiply_general(const kernel_run *run) {
    const trf_device_limits limits = {.multiprocessors = 1 + (int)(run->choice % 8)};
    trf_packed_partition partition;
    if (run->layer->is_fp8 || !trf_packed_choose_general(&run->layer->view.packed, &limits, run->m, &partition))
        return;
    void *workspace = fuzz_allocate(partition.workspace_bytes);
    const warp_packed_product product = product_of(run, &partition, workspace);
    warp_multiply_packed(&product);
    free(workspace);
}

/* @return 0 if the layer has no such partition. */
static int choose(const kernel_run *run, int shape, uint32_t cut, trf_packed_partition *partition) {
    trf_device_limits limits = hopper_limits();
    if (shape >= TRF_PACKED_WGMMA_64)
        limits.multiprocessors = 1 + (int)(run->choice / 64 % 8);
    return run->layer->is_fp8
               ? trf_packed8_choose_shape(&run->layer->view, &limits, run->m, shape, cut, partition)
               : trf_packed_choose_shape(&run->layer->view.packed, &limits, run->m, shape, cut, partition);
}

static void multiply_bulk(const kernel_run *run) {
    const int shape = TRF_PACKED_BULK_256 + (int)(run->choice % TRF_PACKED_BULK_SHAPES);
    const int is_stream_k = trf_packed_bulk_is_stream_k(shape);
    const uint32_t warps = trf_packed_bulk_warps(shape) + TRF_PACKED_PRODUCER_WARPS;
    trf_packed_partition bulk;
    if (!choose(run, shape, is_stream_k ? TRF_PACKED_STREAM_K : 1, &bulk))
        return;
    uint32_t blocks = 1 + run->choice / 8 % 3;
    if (blocks > bulk.tiles * bulk.k_blocks || (!is_stream_k && warps * blocks > MOST_WARPS))
        blocks = 1;
    void *workspace = fuzz_allocate(trf_packed_handover_bytes(blocks, trf_packed_bulk_acc_tiles(shape, bulk.x_tiles)));
    const warp_packed_product product = product_of(run, &bulk, workspace);
    if (run->layer->is_fp8)
        warp_multiply_packed8_bulk(&product, run->layer->view.flags, shape, bulk.x_tiles, blocks);
    else
        warp_multiply_packed_bulk(&product, shape, bulk.x_tiles, blocks);
    free(workspace);
}

static void multiply_group(const kernel_run *run) {
    const int shape = TRF_PACKED_BULK_128 + (int)(run->choice % 3);
    const uint32_t x_tiles = run->m <= 8 ? 1 : run->m <= 16 ? 2 : 4;
    kernel_run small = *run;
    if (small.m > 32)
        small.m = 32;
    const warp_packed_product products[2] = {product_of(&small, NULL, NULL), product_of(&small, NULL, NULL)};
    if (run->layer->is_fp8)
        warp_multiply_packed8_group(products, 2, run->layer->view.flags, shape, x_tiles, 1 + run->choice / 8 % 2);
    else
        warp_multiply_packed_group(products, 2, shape, x_tiles, 1 + run->choice / 8 % 2);
}

static void multiply_wgmma(const kernel_run *run) {
    const int shape = TRF_PACKED_WGMMA_64 + (int)(run->choice % TRF_PACKED_WGMMA_SHAPES);
    trf_packed_partition partition;
    if (!choose(run, shape, run->choice / 16 % 4, &partition) && !choose(run, shape, 1, &partition))
        return;
    void *workspace = fuzz_allocate(partition.workspace_bytes - partition.handover_offset);
    const warp_packed_product product = product_of(run, &partition, workspace);
    if (run->layer->is_fp8)
        warp_multiply_packed8_wgmma(&product, &partition);
    else
        warp_multiply_packed_wgmma(&product, &partition);
    free(workspace);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static void (*const kernels[KERNELS])(const kernel_run *) = {unpack,        look_up,        multiply_general,
                                                                 multiply_bulk, multiply_group, multiply_wgmma};
    fuzz_bytes bytes = {data, size};
    const uint32_t kernel = fuzz_take(&bytes) % KERNELS;
    kernel_run run = {.m = 1 + fuzz_take(&bytes) % MOST_X_ROWS, .choice = fuzz_take_two(&bytes)};
    run.order = run.choice >> 9;
    const uint32_t options = fuzz_take(&bytes), rows = 1 + fuzz_take(&bytes) % 140,
                   cols = 1 + fuzz_take_two(&bytes) % 300;
    fuzz_packed_layer layer;
    fuzz_make_packed(&layer, rows, cols, options);
    if (layer.memory) {
        const size_t xs = (size_t)run.m * layer.view.packed.cols;
        run.layer = &layer;
        run.x = fuzz_allocate(xs * sizeof *run.x);
        run.y = fuzz_allocate((size_t)run.m * layer.view.packed.rows * sizeof *run.y);
        for (size_t i = 0; i < xs; i++)
            run.x[i] = 0x3F80;
        fuzz_spoil(&layer, &bytes);
        kernels[kernel](&run);
        free(run.x);
        free(run.y);
    }
    fuzz_free_packed(&layer);
    return 0;
}
