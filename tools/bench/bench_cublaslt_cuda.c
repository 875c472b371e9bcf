/* SPDX-License-Identifier: Apache-2.0 */
#include "bench_cublaslt_cuda.h"

#include "bench_library_cuda.h"
#include "cli_cuda.h"
#include "cli_messages.h"

#include <cublasLt.h>
#include <dlfcn.h>
#include <stdlib.h>

enum {
    MAX_CANDIDATES = 16
};
static const size_t kWorkspaceBytes = BENCH_CUBLASLT_WORKSPACE_BYTES;

#define TEXT_OF(x) #x
#define TEXT(x) TEXT_OF(x)
#define LIBRARY "libcublasLt.so." TEXT(CUBLAS_VER_MAJOR)

/* The functions that are used, and how they are called. */
struct bench_cublaslt {
    void *library;
    cublasLtHandle_t handle;
    void *workspace;
    __typeof__(&cublasLtCreate) create;
    __typeof__(&cublasLtDestroy) destroy;
    __typeof__(&cublasLtGetVersion) version;
    __typeof__(&cublasLtGetStatusString) status_string;
    __typeof__(&cublasLtMatmulDescCreate) desc_create;
    __typeof__(&cublasLtMatmulDescDestroy) desc_destroy;
    __typeof__(&cublasLtMatmulDescSetAttribute) desc_set;
    __typeof__(&cublasLtMatrixLayoutCreate) layout_create;
    __typeof__(&cublasLtMatrixLayoutDestroy) layout_destroy;
    __typeof__(&cublasLtMatmulPreferenceCreate) preference_create;
    __typeof__(&cublasLtMatmulPreferenceDestroy) preference_destroy;
    __typeof__(&cublasLtMatmulPreferenceSetAttribute) preference_set;
    __typeof__(&cublasLtMatmulAlgoGetHeuristic) heuristic;
    __typeof__(&cublasLtMatmul) matmul;
};

struct bench_cublaslt_product {
    bench_cublaslt *lt;
    cublasLtMatmulDesc_t desc;
    cublasLtMatrixLayout_t w, x, y;
    cublasLtMatmulHeuristicResult_t candidates[MAX_CANDIDATES];
    int num_candidates;
};

/* ---- the library ---- */

static int find_functions(bench_cublaslt *lt) {
    const bench_library_function functions[] = {
        {&lt->create, "cublasLtCreate"},
        {&lt->destroy, "cublasLtDestroy"},
        {&lt->version, "cublasLtGetVersion"},
        {&lt->status_string, "cublasLtGetStatusString"},
        {&lt->desc_create, "cublasLtMatmulDescCreate"},
        {&lt->desc_destroy, "cublasLtMatmulDescDestroy"},
        {&lt->desc_set, "cublasLtMatmulDescSetAttribute"},
        {&lt->layout_create, "cublasLtMatrixLayoutCreate"},
        {&lt->layout_destroy, "cublasLtMatrixLayoutDestroy"},
        {&lt->preference_create, "cublasLtMatmulPreferenceCreate"},
        {&lt->preference_destroy, "cublasLtMatmulPreferenceDestroy"},
        {&lt->preference_set, "cublasLtMatmulPreferenceSetAttribute"},
        {&lt->heuristic, "cublasLtMatmulAlgoGetHeuristic"},
        {&lt->matmul, "cublasLtMatmul"},
    };
    return bench_library_find(lt->library, LIBRARY, functions, sizeof functions / sizeof functions[0]);
}

static int check(const bench_cublaslt *lt, cublasStatus_t status, const char *doing) {
    if (status == CUBLAS_STATUS_SUCCESS)
        return 0;
    cli_fail(TRF_ERR_CUDA, "bench: cuBLASLt: %s: %s", doing, lt->status_string(status));
    return -1;
}

bench_cublaslt *bench_cublaslt_open(void) {
    bench_cublaslt *lt = calloc(1, sizeof *lt);
    if (!lt) {
        cli_fail(TRF_ERR_MEMORY, "bench: out of memory");
        return NULL;
    }
    lt->library = dlopen(LIBRARY, RTLD_NOW | RTLD_LOCAL);
    if (!lt->library)
        cli_fail(TRF_ERR_UNSUPPORTED, "bench: cuBLASLt is needed for comparison: %s", dlerror());
    else if (!find_functions(lt) && !check(lt, lt->create(&lt->handle), "opening it"))
        lt->workspace = cli_cuda_alloc(BENCH_CUBLASLT_WORKSPACE_BYTES);
    if (lt->workspace)
        return lt;
    bench_cublaslt_close(lt);
    return NULL;
}

void bench_cublaslt_close(bench_cublaslt *lt) {
    if (!lt)
        return;
    cudaFree(lt->workspace);
    if (lt->handle)
        lt->destroy(lt->handle);
    if (lt->library)
        dlclose(lt->library);
    free(lt);
}

uint64_t bench_cublaslt_version(const bench_cublaslt *lt) { return lt->version(); }

/* ---- a product ---- */

static cudaDataType_t cuda_type(trf_dtype dtype) {
    return dtype == TRF_DTYPE_BF16 ? CUDA_R_16BF : dtype == TRF_DTYPE_F16 ? CUDA_R_16F : CUDA_R_32F;
}

/* Describes the product to cuBLASLt, which is column-major: Y' (rows x m) = W' ^T (W' is cols x rows) . X' (cols x
 * m). */
static int describe(bench_cublaslt_product *p, uint32_t rows, uint32_t cols, uint32_t m, trf_dtype in, trf_dtype out) {
    const bench_cublaslt *lt = p->lt;
    const cublasOperation_t transpose = CUBLAS_OP_T;
    return check(lt, lt->desc_create(&p->desc, CUBLAS_COMPUTE_32F, CUDA_R_32F), "describing a product") ||
           check(lt, lt->desc_set(p->desc, CUBLASLT_MATMUL_DESC_TRANSA, &transpose, sizeof transpose),
                 "describing a product") ||
           check(lt, lt->layout_create(&p->w, cuda_type(in), cols, rows, cols), "describing W") ||
           check(lt, lt->layout_create(&p->x, cuda_type(in), cols, m, cols), "describing x") ||
           check(lt, lt->layout_create(&p->y, cuda_type(out), rows, m, rows), "describing y");
}

static int find_candidates(bench_cublaslt_product *p) {
    const bench_cublaslt *lt = p->lt;
    cublasLtMatmulPreference_t preference = NULL;
    int found = 0;
    int failed = check(lt, lt->preference_create(&preference), "preferences") ||
                 check(lt,
                       lt->preference_set(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &kWorkspaceBytes,
                                          sizeof kWorkspaceBytes),
                       "preferences") ||
                 check(lt,
                       lt->heuristic(lt->handle, p->desc, p->w, p->x, p->y, p->y, preference, MAX_CANDIDATES,
                                     p->candidates, &found),
                       "choosing algorithms");
    if (preference)
        lt->preference_destroy(preference);
    for (int i = 0; i < found; i++)
        if (p->candidates[i].state == CUBLAS_STATUS_SUCCESS)
            p->candidates[p->num_candidates++] = p->candidates[i];
    if (!failed && !p->num_candidates)
        failed = check(lt, CUBLAS_STATUS_NOT_SUPPORTED, "choosing algorithms");
    return failed;
}

bench_cublaslt_product *bench_cublaslt_product_make(bench_cublaslt *lt, uint32_t rows, uint32_t cols, uint32_t m,
                                                    trf_dtype in, trf_dtype out) {
    bench_cublaslt_product *p = calloc(1, sizeof *p);
    if (!p) {
        cli_fail(TRF_ERR_MEMORY, "bench: out of memory");
        return NULL;
    }
    p->lt = lt;
    if (!describe(p, rows, cols, m, in, out) && !find_candidates(p))
        return p;
    bench_cublaslt_product_free(p);
    return NULL;
}

void bench_cublaslt_product_free(bench_cublaslt_product *p) {
    if (!p)
        return;
    if (p->desc)
        p->lt->desc_destroy(p->desc);
    cublasLtMatrixLayout_t layouts[] = {p->w, p->x, p->y};
    for (int i = 0; i < 3; i++)
        if (layouts[i])
            p->lt->layout_destroy(layouts[i]);
    free(p);
}

int bench_cublaslt_candidates(const bench_cublaslt_product *product) { return product->num_candidates; }

int bench_cublaslt_queue_workspace(const bench_cublaslt_product *p, int candidate, const void *w, const void *x,
                                   void *y, void *workspace, cudaStream_t stream) {
    const float one = 1, zero = 0;
    const bench_cublaslt *lt = p->lt;
    return check(lt,
                 lt->matmul(lt->handle, p->desc, &one, w, p->w, x, p->x, &zero, y, p->y, y, p->y,
                            &p->candidates[candidate].algo, workspace, BENCH_CUBLASLT_WORKSPACE_BYTES, stream),
                 "multiplying");
}

int bench_cublaslt_queue(const bench_cublaslt_product *p, int candidate, const void *w, const void *x, void *y,
                         cudaStream_t stream) {
    return bench_cublaslt_queue_workspace(p, candidate, w, x, y, p->lt->workspace, stream);
}
