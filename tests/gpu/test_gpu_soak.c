/* SPDX-License-Identifier: Apache-2.0 */
/* 16 threads on several contexts and streams of one GPU, which load, run, cancel and close at once
 * (tests/common/soak.h); and layers that are loaded and freed again and again. TRF_TEST_SECONDS and TRF_TEST_CYCLES
 * make them long. Device memory is counted as the GPU's own, so that no other program may allocate there meanwhile. */
#include "common/checkpoint_fixture.h"
#include "common/soak.h"
#include "gpu_fixture.h"

static trf_stream make_stream(void) {
    cudaStream_t stream;
    CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    return stream;
}

static void destroy_stream(trf_stream stream) { CUDA(cudaStreamDestroy(stream)); }

static int copy(trf_stream stream, void *to, const void *from, uint64_t bytes) {
    return cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, stream) == cudaSuccess &&
           cudaStreamSynchronize(stream) == cudaSuccess;
}

static uint64_t used_bytes(void) {
    size_t now = 0, all = 0;
    CUDA(cudaDeviceSynchronize());
    CUDA(cudaMemGetInfo(&now, &all));
    return all - now;
}

static const soak_device gpu = {.make_stream = make_stream,
                                .destroy_stream = destroy_stream,
                                .copy = copy,
                                .used_bytes = used_bytes,
                                .has_large_layers = 1};

START_TEST(threads_at_once) {
    fixture_begin();
    soak_run(&gpu, (soak_length){.seconds = 2});
    fixture_end();
}
END_TEST

START_TEST(load_and_free) {
    soak_device device = gpu;
    device.has_large_layers = 0;
    fixture_begin();
    soak_cycle(&device, test_quick() ? 40 : 400);
    fixture_end();
}
END_TEST

int main(void) {
    const gpu_test tests[] = {{threads_at_once, 1}, {load_and_free, 1}};
    return gpu_main("soak", tests, sizeof tests / sizeof tests[0]);
}
