/* SPDX-License-Identifier: Apache-2.0 */
#include "gpu_fixture.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

trf_context *gpu_context;

void gpu_check_cuda(cudaError_t error, const char *call) {
    if (error != cudaSuccess)
        ck_abort_msg("%s: %s", call, cudaGetErrorString(error));
}

void gpu_check(trf_status status, trf_status expected, const trf_error *err, const char *what) {
    if (status != expected)
        ck_abort_msg("%s: %s, not %s (%s)", what, trf_status_name(status), trf_status_name(expected),
                     status == TRF_OK ? "" : err->message);
    if (status != TRF_OK && (err->status != status || !err->message[0]))
        ck_abort_msg("%s: %s without a message", what, trf_status_name(status));
}

static int skip(const char *suite, const gpu_test *tests, size_t count, const char *why) {
    for (size_t i = 0; i < count; i++)
        printf("skipped gpu.%s: %s: %s\n", suite, tests[i].test->name, why);
    return 77;
}

int gpu_main(const char *name, const gpu_test *tests, size_t count) {
    return gpu_main_unless(NULL, name, tests, count);
}

int gpu_main_unless(const char *(*lacks)(const trf_context *context), const char *name, const gpu_test *tests,
                    size_t count) {
    trf_error err = {0};
    trf_status status = trf_context_create(0, &gpu_context, &err);
    if (status == TRF_ERR_DEVICE)
        return skip(name, tests, count, err.message);
    if (status != TRF_OK) {
        printf("gpu.%s: %s [%s]\n", name, err.message, trf_status_name(status));
        return 1;
    }
    const char *lacking = lacks ? lacks(gpu_context) : NULL;
    if (lacking) {
        trf_context_destroy(gpu_context);
        return skip(name, tests, count, lacking);
    }
    Suite *suite = suite_create(name);
    for (size_t i = 0; i < count; i++) {
        TCase *tcase = tcase_create(tests[i].test->name);
        tcase_add_loop_test(tcase, tests[i].test, 0, tests[i].loops);
        suite_add_tcase(suite, tcase);
    }
    SRunner *runner = srunner_create(suite);
    srunner_set_fork_status(runner, CK_NOFORK);
    srunner_run_all(runner, CK_ENV);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    trf_context_destroy(gpu_context);
    return failed != 0;
}

/* ---- memory ---- */

gpu_memory gpu_memory_make(uint64_t bytes) {
    gpu_memory memory = {NULL, bytes, test_quick() ? 0 : 4096};
    uint64_t all = bytes + memory.guard_bytes;
    CUDA(cudaMalloc(&memory.at, all ? all : 1));
    gpu_memory_poison(&memory);
    return memory;
}

gpu_memory gpu_memory_copy_of(const void *host, uint64_t bytes) {
    gpu_memory memory = gpu_memory_make(bytes);
    CUDA(cudaMemcpy(memory.at, host, bytes, cudaMemcpyHostToDevice));
    CUDA(cudaStreamSynchronize(NULL)); /* it has arrived, for all streams */
    return memory;
}

void gpu_memory_poison(const gpu_memory *memory) {
    CUDA(cudaMemset(memory->at, 0xFF, memory->bytes + memory->guard_bytes));
    CUDA(cudaDeviceSynchronize()); /* streams that do not wait for the default one follow */
}

void gpu_memory_read(const gpu_memory *memory, void *host) {
    unsigned char guard[4096];
    CUDA(cudaDeviceSynchronize());
    CUDA(cudaMemcpy(host, memory->at, memory->bytes, cudaMemcpyDeviceToHost));
    CUDA(cudaMemcpy(guard, (char *)memory->at + memory->bytes, memory->guard_bytes, cudaMemcpyDeviceToHost));
    for (uint64_t i = 0; i < memory->guard_bytes; i++)
        if (guard[i] != 0xFF)
            ck_abort_msg("byte %llu behind device memory of %llu bytes was written", (unsigned long long)i,
                         (unsigned long long)memory->bytes);
}

void gpu_memory_free(gpu_memory *memory) {
    CUDA(cudaFree(memory->at));
    memory->at = NULL;
}

gpu_disturbance gpu_disturbance_make(void) {
    gpu_disturbance disturbance = {NULL, gpu_memory_make(32 << 20), gpu_memory_make(32 << 20)};
    CUDA(cudaStreamCreateWithFlags(&disturbance.stream, cudaStreamNonBlocking));
    return disturbance;
}

void gpu_disturb(const gpu_disturbance *disturbance) {
    CUDA(cudaMemcpyAsync(disturbance->to.at, disturbance->from.at, disturbance->from.bytes, cudaMemcpyDeviceToDevice,
                         disturbance->stream));
}

void gpu_disturbance_free(gpu_disturbance *disturbance) {
    CUDA(cudaStreamDestroy(disturbance->stream));
    gpu_memory_free(&disturbance->from);
    gpu_memory_free(&disturbance->to);
}

uint64_t gpu_free_bytes(void) {
    size_t now = 0, all;
    CUDA(cudaDeviceSynchronize());
    CUDA(cudaMemGetInfo(&now, &all));
    return now;
}

void *gpu_malloc(size_t bytes) {
    void *memory = malloc(bytes ? bytes : 1);
    if (!memory)
        ck_abort_msg("out of memory for %zu bytes", bytes);
    return memory;
}
