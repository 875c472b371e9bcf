/* SPDX-License-Identifier: Apache-2.0 */
#include "bench_cublas_grouped_cuda.h"

#include "bench_cublaslt_cuda.h"
#include "bench_library_cuda.h"
#include "cli_cuda.h"
#include "cli_messages.h"

#include <assert.h>
#include <cublas_v2.h>
#include <dlfcn.h>
#include <stdlib.h>

#define TEXT_OF(x) #x
#define TEXT(x) TEXT_OF(x)
#define LIBRARY "libcublas.so." TEXT(CUBLAS_VER_MAJOR)

/* cublasGemmGroupedBatchedEx, which the headers before CUDA 12.5 do not declare. a, b and c are arrays in device memory
 * that hold device pointers, one for each product of each group; all other arrays are in host memory. alpha, beta:
 * floats for CUBLAS_COMPUTE_32F. */
typedef cublasStatus_t grouped_fn(cublasHandle_t handle, const cublasOperation_t transa[],
                                  const cublasOperation_t transb[], const int m[], const int n[], const int k[],
                                  const void *alpha, const void *const a[], cudaDataType_t a_type, const int lda[],
                                  const void *const b[], cudaDataType_t b_type, const int ldb[], const void *beta,
                                  void *const c[], cudaDataType_t c_type, const int ldc[], int group_count,
                                  const int group_size[], cublasComputeType_t compute_type);
#if CUBLAS_VER_MAJOR >= 13
static_assert(__builtin_types_compatible_p(grouped_fn, __typeof__(cublasGemmGroupedBatchedEx)), "as cuBLAS has it");
#endif

struct bench_grouped {
    cublasHandle_t handle;
    void *workspace; /* BENCH_CUBLASLT_WORKSPACE_BYTES */
    __typeof__(&cublasCreate_v2) create;
    __typeof__(&cublasDestroy_v2) destroy;
    __typeof__(&cublasSetStream_v2) set_stream;
    __typeof__(&cublasSetWorkspace_v2) set_workspace;
    __typeof__(&cublasGetStatusString) status_string;
    grouped_fn *multiply;
};

/* Each matrix is one of cuBLAS's groups. cuBLAS is column-major: Y' (rows x tokens) = W' ^T (W' is cols x rows) . X'
 * (cols x tokens), so m and ldc are `rows`, n is `tokens`, and k, lda and ldb are `cols`. The host's arrays stay here
 * for as long as graphs may read them. */
struct bench_grouped_product {
    bench_grouped *grouped;
    int count;
    cublasOperation_t transposed[BENCH_GROUPED_MAX_PRODUCTS], plain[BENCH_GROUPED_MAX_PRODUCTS];
    int rows[BENCH_GROUPED_MAX_PRODUCTS], tokens[BENCH_GROUPED_MAX_PRODUCTS], cols[BENCH_GROUPED_MAX_PRODUCTS],
        sizes[BENCH_GROUPED_MAX_PRODUCTS];
    float one[BENCH_GROUPED_MAX_PRODUCTS], zero[BENCH_GROUPED_MAX_PRODUCTS];
    void **pointers; /* device: [3][BENCH_GROUPED_MAX_PRODUCTS], of W, x and y */
};

/* ---- the library ---- */

static int find_functions(void *library, bench_grouped *grouped) {
    const bench_library_function functions[] = {
        {&grouped->create, "cublasCreate_v2"},
        {&grouped->destroy, "cublasDestroy_v2"},
        {&grouped->set_stream, "cublasSetStream_v2"},
        {&grouped->set_workspace, "cublasSetWorkspace_v2"},
        {&grouped->status_string, "cublasGetStatusString"},
        {&grouped->multiply, "cublasGemmGroupedBatchedEx"},
    };
    return bench_library_find(library, LIBRARY, functions, sizeof functions / sizeof functions[0]);
}

static int check(const bench_grouped *grouped, cublasStatus_t status, const char *doing) {
    if (status == CUBLAS_STATUS_SUCCESS)
        return 0;
    cli_fail(status == CUBLAS_STATUS_NOT_SUPPORTED ? TRF_ERR_UNSUPPORTED : TRF_ERR_CUDA, "bench: cuBLAS: %s: %s (%d)",
             doing, grouped->status_string(status), (int)status);
    return -1;
}

bench_grouped *bench_grouped_open(void) {
    bench_grouped *grouped = calloc(1, sizeof *grouped);
    if (!grouped) {
        cli_fail(TRF_ERR_MEMORY, "bench: out of memory");
        return NULL;
    }
    /* The library is not closed again, since unloading a CUDA library can only go wrong. */
    void *library = dlopen(LIBRARY, RTLD_NOW | RTLD_LOCAL);
    if (!library)
        cli_fail(TRF_ERR_UNSUPPORTED, "bench: cuBLAS is not there: %s", dlerror());
    else if (!find_functions(library, grouped) && !check(grouped, grouped->create(&grouped->handle), "opening it"))
        grouped->workspace = cli_cuda_alloc(BENCH_CUBLASLT_WORKSPACE_BYTES);
    if (grouped->workspace)
        return grouped;
    bench_grouped_close(grouped);
    return NULL;
}

void bench_grouped_close(bench_grouped *grouped) {
    if (!grouped)
        return;
    if (grouped->handle)
        grouped->destroy(grouped->handle);
    cudaFree(grouped->workspace);
    free(grouped);
}

/* ---- a product ---- */

static int upload_pointers(bench_grouped_product *p, const bench_grouped_matrix *matrices) {
    const void *pointers[3][BENCH_GROUPED_MAX_PRODUCTS] = {{0}};
    for (int i = 0; i < p->count; i++) {
        pointers[0][i] = matrices[i].w;
        pointers[1][i] = matrices[i].x;
        pointers[2][i] = matrices[i].y;
    }
    p->pointers = cli_cuda_alloc(sizeof pointers);
    return !p->pointers ||
           cli_cuda_check(cudaMemcpy(p->pointers, pointers, sizeof pointers, cudaMemcpyHostToDevice),
                          "bench: copying pointers") ||
           cli_cuda_check(cudaDeviceSynchronize(), "bench: copying pointers"); /* other streams do not wait for it */
}

bench_grouped_product *bench_grouped_product_make(bench_grouped *grouped, uint32_t rows, uint32_t cols,
                                                  const bench_grouped_matrix *matrices, uint32_t count) {
    assert(count <= BENCH_GROUPED_MAX_PRODUCTS);
    bench_grouped_product *p = calloc(1, sizeof *p);
    if (!p) {
        cli_fail(TRF_ERR_MEMORY, "bench: out of memory");
        return NULL;
    }
    p->grouped = grouped;
    p->count = (int)count;
    for (uint32_t i = 0; i < count; i++) {
        p->transposed[i] = CUBLAS_OP_T;
        p->plain[i] = CUBLAS_OP_N;
        p->rows[i] = (int)rows;
        p->tokens[i] = (int)matrices[i].tokens;
        p->cols[i] = (int)cols;
        p->sizes[i] = 1;
        p->one[i] = 1;
    }
    if (!upload_pointers(p, matrices))
        return p;
    bench_grouped_product_free(p);
    return NULL;
}

void bench_grouped_product_free(bench_grouped_product *p) {
    if (!p)
        return;
    cudaFree(p->pointers);
    free(p);
}

int bench_grouped_queue(const bench_grouped_product *p, cudaStream_t stream) {
    const bench_grouped *grouped = p->grouped;
    const void *const *w = (const void *const *)p->pointers, *const *x = w + BENCH_GROUPED_MAX_PRODUCTS;
    void *const *y = p->pointers + 2 * BENCH_GROUPED_MAX_PRODUCTS;
    /* The order matters: setting a stream resets the workspace. */
    const int failed =
        check(grouped, grouped->set_stream(grouped->handle, stream), "setting a stream") ||
        check(grouped, grouped->set_workspace(grouped->handle, grouped->workspace, BENCH_CUBLASLT_WORKSPACE_BYTES),
              "setting a workspace") ||
        check(grouped,
              grouped->multiply(grouped->handle, p->transposed, p->plain, p->rows, p->tokens, p->cols, p->one, w,
                                CUDA_R_16BF, p->cols, x, CUDA_R_16BF, p->cols, p->zero, y, CUDA_R_16BF, p->rows,
                                p->count, p->sizes, CUBLAS_COMPUTE_32F),
              "multiplying groups");
    return failed ? -1 : 0;
}
