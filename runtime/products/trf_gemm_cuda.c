/* SPDX-License-Identifier: Apache-2.0 */
/* cuBLASLt is column-major: a row-major matrix [a][b] is its b x a matrix. So y^T = W x^T becomes a product of W^T
 * (cols x rows, used transposed) and x^T (cols x m, as it stands), with y^T (rows x m) as the result: the "TN" form,
 * the one that tensor cores like best. */
#include "trf_gemm_cuda.h"

#include "trf_library_search.h"

#include <cublasLt.h>
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TRF_STRING_OF(x) #x
#define TRF_STRING(x) TRF_STRING_OF(x)
#define TRF_CUBLASLT_FILE "libcublasLt.so." TRF_STRING(CUBLAS_VER_MAJOR)

enum {
    CHOICES = 512,       /* algorithms that are kept; another shape in a slot replaces the one there */
    FULL_ALIGNMENT = 16, /* bytes; more gains nothing, since no instruction moves more at once */
    WORKSPACE_LIMIT = 32 << 20
};

/* ---- the library ---- */

#define TRF_LT_FUNCTIONS(X)                                                                                            \
    X(cublasLtCreate)                                                                                                  \
    X(cublasLtDestroy)                                                                                                 \
    X(cublasLtGetStatusString)                                                                                         \
    X(cublasLtMatmul)                                                                                                  \
    X(cublasLtMatmulAlgoGetHeuristic)                                                                                  \
    X(cublasLtMatmulDescInit_internal)                                                                                 \
    X(cublasLtMatmulDescSetAttribute)                                                                                  \
    X(cublasLtMatmulPreferenceInit_internal)                                                                           \
    X(cublasLtMatmulPreferenceSetAttribute)                                                                            \
    X(cublasLtMatrixLayoutInit_internal)                                                                               \
    X(cublasLtMatrixLayoutSetAttribute)

#define TRF_LT_MEMBER(name) __typeof__(&name) name; /* NOLINT(bugprone-macro-parentheses): it is declared */
typedef struct trf_lt {
    TRF_LT_FUNCTIONS(TRF_LT_MEMBER)
    char missing[256]; /* why there is no library; empty if there is one */
} trf_lt;

/* Loaded once and for good: unloading a CUDA library while a process ends is asking for trouble. */
static trf_lt lt_library;
static pthread_once_t lt_once = PTHREAD_ONCE_INIT;

static void find_function(void *library, const char *name, void *function, size_t function_bytes) {
    void *symbol = dlsym(library, name);
    if (symbol)
        memcpy(function, &symbol, function_bytes);
    else
        snprintf(lt_library.missing, sizeof lt_library.missing, "%s has no %s", TRF_CUBLASLT_FILE, name);
}

static void load_lt(void) {
    /* The folders of NVIDIA's packages, on which PyTorch depends: the first from CUDA 13 on, the second before that. */
    static const char *const folders[] = {"nvidia/cu" TRF_STRING(CUBLAS_VER_MAJOR) "/lib", "nvidia/cublas/lib", NULL};
    void *library = trf_open_library(TRF_CUBLASLT_FILE, folders);
    if (!library) {
        const char *why = dlerror();
        snprintf(lt_library.missing, sizeof lt_library.missing, "%s", why ? why : TRF_CUBLASLT_FILE " does not load");
        return;
    }
#define TRF_LT_FIND(name) find_function(library, #name, &lt_library.name, sizeof lt_library.name);
    TRF_LT_FUNCTIONS(TRF_LT_FIND)
}

static const trf_lt *lt_get(void) {
    pthread_once(&lt_once, load_lt);
    return &lt_library;
}

/* ---- choices ---- */

/* All that an algorithm depends on. It has no padding, because keys are compared byte by byte. */
typedef struct trf_gemm_key {
    trf_gemm_shape shape;
    uint32_t aligned; /* 1: x and y to FULL_ALIGNMENT; 0: to their elements */
} trf_gemm_key;
_Static_assert(sizeof(trf_gemm_key) == 6 * sizeof(uint32_t), "a key has no padding");

typedef struct trf_gemm_choice {
    trf_gemm_key key; /* m = 0: none */
    cublasLtMatmulAlgo_t algorithm;
    uint64_t workspace_bytes;
} trf_gemm_choice;

struct trf_gemm {
    cublasLtHandle_t handle; /* NULL: no library */
    pthread_mutex_t mutex;   /* over choices */
    trf_gemm_choice choices[CHOICES];
};

static trf_status fail_lt(cublasStatus_t error, const char *doing, trf_error *err) {
    trf_status status = error == CUBLAS_STATUS_ALLOC_FAILED    ? TRF_ERR_MEMORY
                        : error == CUBLAS_STATUS_NOT_SUPPORTED ? TRF_ERR_UNSUPPORTED
                                                               : TRF_ERR_CUDA;
    trf_fail(err, status, TRF_NO_OFFSET, "%s: %s", doing, lt_get()->cublasLtGetStatusString(error));
    if (err && status == TRF_ERR_CUDA)
        err->cuda = 999; /* cudaErrorUnknown: cuBLASLt has codes of its own */
    return status;
}

trf_status trf_gemm_create(trf_gemm **gemm, trf_error *err) {
    const trf_lt *lt = lt_get();
    trf_gemm *made = calloc(1, sizeof *made);
    if (!made || pthread_mutex_init(&made->mutex, NULL) != 0) {
        free(made);
        return trf_fail(err, TRF_ERR_MEMORY, TRF_NO_OFFSET, "cannot allocate what cuBLASLt needs");
    }
    cublasStatus_t error = lt->missing[0] ? CUBLAS_STATUS_SUCCESS : lt->cublasLtCreate(&made->handle);
    if (error != CUBLAS_STATUS_SUCCESS) {
        made->handle = NULL;
        trf_gemm_destroy(made);
        return fail_lt(error, "starting cuBLASLt", err);
    }
    *gemm = made;
    return TRF_OK;
}

void trf_gemm_destroy(trf_gemm *gemm) {
    if (!gemm)
        return;
    if (gemm->handle)
        lt_get()->cublasLtDestroy(gemm->handle);
    pthread_mutex_destroy(&gemm->mutex);
    free(gemm);
}

/* ---- one product, as cuBLASLt describes it; it is on the stack, so that no call allocates ---- */

typedef struct trf_gemm_problem {
    cublasLtMatmulDescOpaque_t operation;
    cublasLtMatrixLayoutOpaque_t w, x, y;
} trf_gemm_problem;

static cudaDataType cuda_dtype(uint32_t dtype) {
    return dtype == TRF_DTYPE_F32 ? CUDA_R_32F : dtype == TRF_DTYPE_F16 ? CUDA_R_16F : CUDA_R_16BF;
}

static cublasStatus_t describe_problem(const trf_lt *lt, const trf_gemm_shape *shape, trf_gemm_problem *problem) {
    const cudaDataType in = cuda_dtype(shape->in_dtype), out = cuda_dtype(shape->out_dtype);
    const int32_t transposed = CUBLAS_OP_T;
    const uint64_t m = shape->m, rows = shape->rows, cols = shape->cols;
    cublasStatus_t error = lt->cublasLtMatmulDescInit_internal(&problem->operation, sizeof problem->operation,
                                                               CUBLAS_COMPUTE_32F, CUDA_R_32F);
    if (!error)
        error = lt->cublasLtMatmulDescSetAttribute(&problem->operation, CUBLASLT_MATMUL_DESC_TRANSA, &transposed,
                                                   sizeof transposed);
    if (!error)
        error = lt->cublasLtMatrixLayoutInit_internal(&problem->w, sizeof problem->w, in, cols, rows, (int64_t)cols);
    if (!error)
        error = lt->cublasLtMatrixLayoutInit_internal(&problem->x, sizeof problem->x, in, cols, m, (int64_t)cols);
    if (!error)
        error = lt->cublasLtMatrixLayoutInit_internal(&problem->y, sizeof problem->y, out, rows, m, (int64_t)rows);
    return error;
}

typedef struct trf_preference_value {
    cublasLtMatmulPreferenceAttributes_t attribute;
    uint32_t value;
} trf_preference_value;

/* Partial sums may be added in F32 only: other ways of splitting K round more than once. */
static cublasStatus_t describe_preference(const trf_lt *lt, const trf_gemm_key *key,
                                          cublasLtMatmulPreferenceOpaque_t *preference) {
    const uint32_t out_bytes = (uint32_t)trf_dtype_bytes((trf_dtype)key->shape.out_dtype);
    const uint32_t x_alignment = key->aligned ? FULL_ALIGNMENT : 2,
                   y_alignment = key->aligned ? FULL_ALIGNMENT : out_bytes;
    const trf_preference_value values[] = {
        {CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE},
        {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, FULL_ALIGNMENT},
        {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, x_alignment},
        {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, y_alignment},
        {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, y_alignment},
    };
    const uint64_t workspace_limit = WORKSPACE_LIMIT;
    cublasStatus_t error = lt->cublasLtMatmulPreferenceInit_internal(preference, sizeof *preference);
    if (!error)
        error = lt->cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                                                         &workspace_limit, sizeof workspace_limit);
    for (size_t i = 0; !error && i < sizeof values / sizeof *values; i++)
        error = lt->cublasLtMatmulPreferenceSetAttribute(preference, values[i].attribute, &values[i].value,
                                                         sizeof values[i].value);
    return error;
}

/* Asks the library's heuristics for an algorithm. They run on the host. */
static trf_status ask_heuristics(trf_gemm *gemm, trf_gemm_problem *problem, trf_gemm_choice *choice, trf_error *err) {
    const trf_lt *lt = lt_get();
    cublasLtMatmulPreferenceOpaque_t preference;
    cublasLtMatmulHeuristicResult_t result;
    int found = 0;
    cublasStatus_t error = describe_preference(lt, &choice->key, &preference);
    if (!error)
        error = lt->cublasLtMatmulAlgoGetHeuristic(gemm->handle, &problem->operation, &problem->w, &problem->x,
                                                   &problem->y, &problem->y, &preference, 1, &result, &found);
    if (error)
        return fail_lt(error, "choosing an algorithm of cuBLASLt", err);
    if (!found || result.state != CUBLAS_STATUS_SUCCESS)
        return trf_fail(err, TRF_ERR_UNSUPPORTED, TRF_NO_OFFSET,
                        "cuBLASLt has no algorithm for %ux%u weights and %u rows of x", choice->key.shape.rows,
                        choice->key.shape.cols, choice->key.shape.m);
    choice->algorithm = result.algo;
    choice->workspace_bytes = result.workspaceSize;
    return TRF_OK;
}

/* Finds the key's slot by its FNV-1a hash. */
static trf_gemm_choice *choice_slot(trf_gemm *gemm, const trf_gemm_key *key) {
    const uint8_t *bytes = (const uint8_t *)key;
    uint32_t hash = 2166136261u;
    for (size_t i = 0; i < sizeof *key; i++)
        hash = (hash ^ bytes[i]) * 16777619u;
    return &gemm->choices[(hash ^ hash >> 16) % CHOICES];
}

/* Finds the algorithm for choice->key: the one that is kept, or else a new one, which is kept from then on. The
 * heuristics give the same answer each time. */
static trf_status choose_algorithm(trf_gemm *gemm, trf_gemm_problem *problem, trf_gemm_choice *choice, trf_error *err) {
    trf_gemm_choice *slot = choice_slot(gemm, &choice->key);
    pthread_mutex_lock(&gemm->mutex);
    int kept = memcmp(&slot->key, &choice->key, sizeof slot->key) == 0;
    if (kept)
        *choice = *slot;
    pthread_mutex_unlock(&gemm->mutex);
    if (kept)
        return TRF_OK;
    trf_status status = ask_heuristics(gemm, problem, choice, err);
    if (status != TRF_OK)
        return status;
    pthread_mutex_lock(&gemm->mutex);
    *slot = *choice;
    pthread_mutex_unlock(&gemm->mutex);
    return TRF_OK;
}

static trf_status start_problem(const trf_gemm *gemm, const trf_gemm_shape *shape, trf_gemm_problem *problem,
                                trf_error *err) {
    const trf_lt *lt = lt_get();
    if (!gemm->handle)
        return trf_fail(err, TRF_ERR_UNSUPPORTED, TRF_NO_OFFSET, "cuBLASLt is not there: %s", lt->missing);
    cublasStatus_t error = describe_problem(lt, shape, problem);
    return error ? fail_lt(error, "describing a product to cuBLASLt", err) : TRF_OK;
}

/* ---- calls ---- */

trf_status trf_gemm_workspace(trf_gemm *gemm, const trf_gemm_shape *shape, uint64_t *workspace_bytes, trf_error *err) {
    trf_gemm_problem problem;
    trf_gemm_choice aligned = {.key = {*shape, 1}}, unaligned = {.key = {*shape, 0}};
    trf_status status = start_problem(gemm, shape, &problem, err);
    if (status == TRF_OK)
        status = choose_algorithm(gemm, &problem, &aligned, err);
    if (status != TRF_OK)
        return status;
    /* If there is no algorithm for this alignment, a call with such an x or y reports it. */
    if (choose_algorithm(gemm, &problem, &unaligned, NULL) != TRF_OK)
        unaligned.workspace_bytes = 0;
    *workspace_bytes =
        aligned.workspace_bytes > unaligned.workspace_bytes ? aligned.workspace_bytes : unaligned.workspace_bytes;
    return TRF_OK;
}

/* Whether x and each row of y can be moved in whole vectors. */
static int is_aligned(const trf_gemm_shape *shape, const trf_gemm_operands *operands) {
    const uint64_t row_bytes = operands->y_stride * trf_dtype_bytes((trf_dtype)shape->out_dtype);
    const int has_padding = operands->y_stride != shape->rows && shape->m > 1;
    return ((uintptr_t)operands->x | (uintptr_t)operands->y | (has_padding ? row_bytes : 0)) % FULL_ALIGNMENT == 0;
}

trf_status trf_gemm_multiply(trf_gemm *gemm, const trf_gemm_shape *shape, const trf_gemm_operands *operands,
                             trf_stream stream, trf_error *err) {
    static const float kOne = 1, kZero = 0;
    const trf_lt *lt = lt_get();
    const int64_t y_stride = (int64_t)operands->y_stride;
    trf_gemm_problem problem;
    trf_status status = start_problem(gemm, shape, &problem, err);
    if (status != TRF_OK)
        return status;
    trf_gemm_choice choice = {.key = {*shape, (uint32_t)is_aligned(shape, operands)}};
    status = choose_algorithm(gemm, &problem, &choice, err);
    if (status != TRF_OK)
        return status;
    if (choice.workspace_bytes > operands->workspace_bytes)
        return trf_fail(err, TRF_ERR_ARGUMENT, TRF_NO_OFFSET, "the product needs a workspace of %llu bytes, has %llu",
                        (unsigned long long)choice.workspace_bytes, (unsigned long long)operands->workspace_bytes);
    cublasStatus_t error =
        lt->cublasLtMatrixLayoutSetAttribute(&problem.y, CUBLASLT_MATRIX_LAYOUT_LD, &y_stride, sizeof y_stride);
    if (!error)
        error = lt->cublasLtMatmul(gemm->handle, &problem.operation, &kOne, operands->w, &problem.w, operands->x,
                                   &problem.x, &kZero, operands->y, &problem.y, operands->y, &problem.y,
                                   &choice.algorithm, operands->workspace, choice.workspace_bytes, stream);
    return error ? fail_lt(error, "the product by cuBLASLt", err) : TRF_OK;
}
