/* SPDX-License-Identifier: Apache-2.0 */
/* What the library's .cu files define: each launch calls the runtime, which may fail, and computes nothing, but for
 * checksums of data, which loading compares. */
#include "made_up_cuda.h"
#include "trf_device_limits.h"
#include "trf_integrity_launch.h"
#include "trf_pack_coded_experts_launch.h"
#include "trf_pack_coded_launch.h"

#include <stdlib.h>

static int launch(void) {
    const dim3 one = {1, 1, 1};
    cudaLaunchKernel(NULL, one, one, NULL, 0, NULL);
    return cudaGetLastError();
}

static int launch_two(void) {
    const int error = launch();
    return error ? error : launch();
}

/* Whether the device says what it has. */
static int device_tells(void) {
    int value;
    const int tells = cudaDeviceGetAttribute(&value, cudaDevAttrMultiProcessorCount, 0) == cudaSuccess;
    if (!tells)
        cudaGetLastError();
    return tells;
}

int trf_find_device_limits(trf_device_limits *limits) {
    struct cudaFuncAttributes attributes;
    limits->missing_kernels = 0;
    for (uint32_t blocks = 1; blocks <= TRF_MAX_CLUSTER; blocks++)
        limits->clusters_of[blocks] = (uint32_t)limits->multiprocessors / blocks;
    return cudaFuncGetAttributes(&attributes, NULL);
}

int trf_can_pack_coded(const trf_device_view *view, const trf_layer_traits *traits) {
    (void)view, (void)traits;
    return device_tells();
}

uint64_t trf_pack_coded_scratch_bytes(uint64_t rows, uint64_t cols) { return 4 * (rows + 256) * (cols + 256); }

int trf_launch_pack_coded(const trf_device_view *view, const trf_layer_traits *traits, const trf_packed_view *packed,
                          uint32_t first_row, const trf_pack_coded_memory *memory, trf_stream stream) {
    (void)view, (void)traits, (void)packed, (void)first_row, (void)memory, (void)stream;
    return launch_two();
}

const char *trf_pack_coded_experts_refusal(const trf_device_view *view, const trf_layer_traits *traits,
                                           trf_pack_rows rows) {
    (void)view, (void)traits, (void)rows;
    return device_tells() ? NULL : "the device does not say how much shared memory it has";
}

uint64_t trf_pack_coded_experts_bytes(uint32_t count, uint32_t rows, uint32_t cols) {
    return 4ull * count * rows * cols;
}

trf_packed_view trf_pack_coded_experts_first(uint32_t count, uint32_t rows, uint32_t cols, const uint8_t *memory) {
    (void)count, (void)memory;
    return (trf_packed_view){.rows = rows, .cols = cols};
}

int trf_launch_pack_coded_experts(const trf_experts_to_pack *experts, trf_stream stream) {
    (void)experts, (void)stream;
    return launch_two();
}

typedef struct sum_arguments {
    const void *data;
    uint64_t bytes;
    trf_data_checksum *to;
} sum_arguments;

/* This kernel finds the place of the sum in the order of its stream: what was there is added to. */
static void sum_data(void *arguments) {
    const sum_arguments *a = arguments;
    trf_data_checksum sum = {0};
    if (trf_compute_data_checksum(a->data, a->bytes, 1, &sum, NULL) != TRF_OK)
        abort();
    a->to->sum += sum.sum;
    a->to->places += sum.places;
}

int trf_launch_sum_data(const void *data_dev, uint64_t bytes, trf_data_checksum *to_dev, uint32_t multiprocessors,
                        trf_stream stream) {
    const sum_arguments arguments = {data_dev, bytes, to_dev};
    const int error = launch();
    (void)multiprocessors;
    return error ? error : made_up_cuda_enqueue(stream, sum_data, &arguments, sizeof arguments);
}
