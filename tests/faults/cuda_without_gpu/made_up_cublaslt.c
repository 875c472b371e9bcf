/* SPDX-License-Identifier: Apache-2.0 */
/* A cuBLASLt that always has an algorithm, and computes nothing. The header would insist on the functions' types. */
#include <string.h>

enum {
    RESULT_BYTES = 96 /* of a cublasLtMatmulHeuristicResult_t */
};

int cublasLtCreate(void **handle);
int cublasLtCreate(void **handle) {
    *handle = handle;
    return 0;
}

int cublasLtMatmulAlgoGetHeuristic(void *handle, void *product, void *a, void *b, void *c, void *d, void *preference,
                                   int asked_for, void *results, int *found);
int cublasLtMatmulAlgoGetHeuristic(void *handle, void *product, void *a, void *b, void *c, void *d, void *preference,
                                   int asked_for, void *results, int *found) {
    (void)handle, (void)product, (void)a, (void)b, (void)c, (void)d, (void)preference, (void)asked_for;
    memset(results, 0, RESULT_BYTES);
    *found = 1;
    return 0;
}

const char *cublasLtGetStatusString(int status);
const char *cublasLtGetStatusString(int status) { return status ? "a made-up status" : "success"; }

#define SUCCEEDS(name)                                                                                                 \
    int name(void);                                                                                                    \
    int name(void) { return 0; }

SUCCEEDS(cublasLtDestroy)
SUCCEEDS(cublasLtMatmul)
SUCCEEDS(cublasLtMatmulDescInit_internal)
SUCCEEDS(cublasLtMatmulDescSetAttribute)
SUCCEEDS(cublasLtMatmulPreferenceInit_internal)
SUCCEEDS(cublasLtMatmulPreferenceSetAttribute)
SUCCEEDS(cublasLtMatrixLayoutInit_internal)
SUCCEEDS(cublasLtMatrixLayoutSetAttribute)
