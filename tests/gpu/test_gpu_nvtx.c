/* SPDX-License-Identifier: Apache-2.0 */
/* The NVTX ranges of loading, decoding, products and stacks, as a profiler would see them. This program itself listens,
 * by NVTX's static injection. */
#include "gpu_products.h"
#include "transfuse/stacks.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#if __has_include(<nvtx3/nvToolsExt.h>)

#define NVTX_NO_IMPL
#include <nvtx3/nvToolsExt.h>

enum {
    MOST = 256
};

/* Names of ranges in the order of their pushes, each with its depth before it, such as "0load". */
static char seen[MOST][48];
static int num_seen, depth, wrong_domain;
static char domain_name[32];
static int domain; /* its address is the domain */

static nvtxDomainHandle_t create_domain(const char *name) {
    snprintf(domain_name, sizeof domain_name, "%s", name);
    return (nvtxDomainHandle_t)&domain;
}

static int push_range(nvtxDomainHandle_t in, const nvtxEventAttributes_t *attributes) {
    wrong_domain |= in != (nvtxDomainHandle_t)&domain || attributes->messageType != NVTX_MESSAGE_TYPE_ASCII;
    if (num_seen < MOST)
        snprintf(seen[num_seen++], sizeof seen[0], "%d%s", depth, attributes->message.ascii);
    return depth++;
}

static int pop_range(nvtxDomainHandle_t in) {
    wrong_domain |= in != (nvtxDomainHandle_t)&domain;
    return --depth;
}

/* What NVTX calls at its first use. */
static int listen_to_nvtx(NvtxGetExportTableFunc_t get_table) {
    const NvtxExportTableCallbacks *callbacks = get_table(NVTX_ETID_CALLBACKS);
    NvtxFunctionTable table;
    unsigned size;
    if (!callbacks || !callbacks->GetModuleFunctionTable(NVTX_CB_MODULE_CORE2, &table, &size) ||
        size <= NVTX_CBID_CORE2_DomainCreateA)
        return 0;
    *table[NVTX_CBID_CORE2_DomainCreateA] = (NvtxFunctionPointer)create_domain;
    *table[NVTX_CBID_CORE2_DomainRangePushEx] = (NvtxFunctionPointer)push_range;
    *table[NVTX_CBID_CORE2_DomainRangePop] = (NvtxFunctionPointer)pop_range;
    return 1;
}

int (*InitializeInjectionNvtx2_fnptr)(NvtxGetExportTableFunc_t) = listen_to_nvtx;

/* Expects that exactly these ranges have been pushed since the last call, and that all are popped. */
static void check_seen(const char *const *expected, int count, const char *what) {
    if (num_seen != count)
        ck_abort_msg("%s: %d ranges, the first %s, not %d", what, num_seen, num_seen ? seen[0] : "none", count);
    for (int i = 0; i < count; i++)
        if (strcmp(seen[i], expected[i]) != 0)
            ck_abort_msg("%s: range %d is %s, not %s", what, i, seen[i], expected[i]);
    ck_assert_int_eq(depth, 0);
    ck_assert_int_eq(wrong_domain, 0);
    num_seen = 0;
}
#define CHECK_SEEN(what, ...)                                                                                          \
    do {                                                                                                               \
        static const char *const names[] = {__VA_ARGS__};                                                              \
        check_seen(names, sizeof names / sizeof names[0], what);                                                       \
    } while (0)

START_TEST(ranges) {
    static const gpu_shape shape = {256, 512};
    test_rng rng = {1};
    trf_error err = {0};
    num_seen = 0;
    gpu_layer layer = gpu_layer_make(&rng, &kGpuRecipes[0], TRF_FAVOR_SPEED, 0, shape, GPU_WEIGHTS_NORMAL);
    CHECK_SEEN("loading", "0load");
    ck_assert_str_eq(domain_name, "transfuse");
    gpu_input input = gpu_input_normal(&rng, 2, shape.cols);
    float *y = gpu_malloc(2ull * shape.rows * sizeof *y);
    for (trf_path path = TRF_PATH_FUSED; path <= TRF_PATH_TWO_STEP; path++) {
        gpu_product product;
        EXPECT(gpu_product_make(&product, &layer, 2, TRF_DTYPE_BF16, TRF_DTYPE_F32, path) == TRF_OK);
        gpu_product_run(&product, &input, y);
        if (path == TRF_PATH_FUSED)
            CHECK_SEEN("a fused product", "0fused");
        else
            CHECK_SEEN("a product in two steps", "0two-step", "1decode", "1GEMM");
        gpu_product_free(&product);
    }
    gpu_memory dense = gpu_memory_make(2ull * shape.rows * shape.cols);
    gpu_check(trf_device_layer_decode(layer.device, TRF_DECODE_SOURCE, dense.at, dense.bytes, NULL, &err), TRF_OK, &err,
              "decoding");
    CHECK_SEEN("decoding", "0decode");

    trf_stack *stack;
    trf_stack_info info;
    gpu_check(trf_stack_create(gpu_context, &stack, &err), TRF_OK, &err, "a stack");
    for (int i = 0; i < 3; i++)
        gpu_check(trf_stack_add(stack, layer.host, &err), TRF_OK, &err, "a layer");
    trf_stack_get_info(stack, &info);
    gpu_check(trf_stack_prepare(stack, info.least_bytes, &err), TRF_OK, &err, "preparing");
    CHECK_SEEN("a stack", "0load stack", "0copy ahead", "0copy ahead");
    gpu_check(trf_stack_acquire(stack, 0, NULL, &err), TRF_OK, &err, "a layer");
    gpu_check(trf_stack_release(stack, 0, NULL, &err), TRF_OK, &err, "a layer");
    CHECK_SEEN("a layer's use", "0copy ahead");
    trf_stack_destroy(stack);
    gpu_memory_free(&dense);
    gpu_input_free(&input);
    free(y);
    gpu_layer_free(&layer);
}
END_TEST

int main(void) {
    const gpu_test tests[] = {{ranges, 1}};
    return gpu_main("ranges", tests, sizeof tests / sizeof tests[0]);
}

#else

int main(void) {
    puts("skipped gpu.ranges: ranges: the CUDA toolkit has no nvtx3");
    return 77;
}

#endif
