/* SPDX-License-Identifier: Apache-2.0 */
/* What the GPU tests share: the device, memory with guards, and a main that skips by name where there is no device.
 * Everything here ends the test on failure. */
#ifndef GPU_FIXTURE_H
#define GPU_FIXTURE_H

#include "common/expect.h"
#include "transfuse.h"

#include <check.h>
#include <cuda_runtime_api.h>

#define CUDA(call) gpu_check_cuda(call, #call)
void gpu_check_cuda(cudaError_t error, const char *call);

/* Fails with the error's message unless status is the one expected. what: the case at hand. */
void gpu_check(trf_status status, trf_status expected, const trf_error *err, const char *what);

/* The device's context. gpu_main makes it. */
extern trf_context *gpu_context;

/* One test, which runs once for each of 0 ... loops - 1 (in Check's _i). */
typedef struct gpu_test {
    const TTest *test;
    int loops;
} gpu_test;

/* Runs the tests in this process (a CUDA context does not survive a fork). Without a device it names each of them as
 * skipped. @return main's exit status. */
int gpu_main(const char *suite, const gpu_test *tests, size_t count);

/* The same for tests of something that not every device or build has. lacks(context) says what is missing, and then the
 * tests are skipped, or returns NULL; lacks itself may be NULL. */
int gpu_main_unless(const char *(*lacks)(const trf_context *context), const char *suite, const gpu_test *tests,
                    size_t count);

/* Device memory with a guard after it. With TRF_TEST_QUICK set there is no guard, so that compute-sanitizer sees
 * accesses beyond the end. */
typedef struct gpu_memory {
    void *at;
    uint64_t bytes, guard_bytes;
} gpu_memory;

gpu_memory gpu_memory_make(uint64_t bytes); /* filled with 0xFF */
gpu_memory gpu_memory_copy_of(const void *host, uint64_t bytes);
void gpu_memory_poison(const gpu_memory *memory);
void gpu_memory_read(const gpu_memory *memory, void *host); /* after all work of the device; checks the guard */
void gpu_memory_free(gpu_memory *memory);

/* Work that keeps another stream busy. */
typedef struct gpu_disturbance {
    cudaStream_t stream;
    gpu_memory from, to;
} gpu_disturbance;

gpu_disturbance gpu_disturbance_make(void);
void gpu_disturb(const gpu_disturbance *disturbance); /* queues a copy */
void gpu_disturbance_free(gpu_disturbance *disturbance);

/* @return how many bytes of the device are free, once it is idle. */
uint64_t gpu_free_bytes(void);

/* Host memory. */
void *gpu_malloc(size_t bytes);

#endif
