/* SPDX-License-Identifier: Apache-2.0 */
#include "trf_moe_route_launch.cuh"

#include "trf_kernel_launch.cuh"

static __global__ void __launch_bounds__(TRF_MOE_SORT_THREADS) trf_moe_count(const trf_moe_sort_args args) {
    extern __shared__ __align__(16) uint8_t trf_moe_sort_memory[];
    trf_wait_for_predecessor();
    trf_moe_count_routes(args, (uint16_t *)trf_moe_sort_memory);
    trf_allow_successor();
}

static __global__ void __launch_bounds__(TRF_MOE_SORT_THREADS) trf_moe_place(const trf_moe_sort_args args) {
    extern __shared__ __align__(16) uint8_t trf_moe_sort_memory[];
    __shared__ uint32_t first[TRF_MOE_MAX_EXPERTS], sums[TRF_MOE_SORT_THREADS / TRF_LANES];
    trf_wait_for_predecessor();
    trf_moe_place_routes(args, (uint16_t *)trf_moe_sort_memory, first, sums);
    trf_allow_successor();
}

static __global__ void __launch_bounds__(TRF_MOE_ROW_THREADS) trf_moe_gather(const trf_moe_gather_args args) {
    trf_wait_for_predecessor();
    trf_moe_gather_row(args, blockIdx.x);
    trf_allow_successor();
}

static __global__ void __launch_bounds__(TRF_MOE_ROW_THREADS) trf_moe_sum(const trf_moe_sum_args args) {
    const uint32_t token_blocks = (args.octets + TRF_MOE_ROW_THREADS - 1) / TRF_MOE_ROW_THREADS,
                   token = blockIdx.x / token_blocks,
                   octet = blockIdx.x % token_blocks * TRF_MOE_ROW_THREADS + threadIdx.x;
    const trf_moe_route_place place = trf_moe_place_of(args, token, threadIdx.x % TRF_LANES);
    trf_wait_for_predecessor();
    trf_moe_sum_octet(args, token, octet, place);
    trf_allow_successor();
}

cudaError_t trf_moe_sort_launch(const trf_moe_sort_args &args, cudaStream_t stream) {
    const uint32_t blocks = (args.routes.count + TRF_MOE_BLOCK_ROUTES - 1) / TRF_MOE_BLOCK_ROUTES;
    const trf_launch_config launch = {blocks, TRF_MOE_SORT_THREADS,
                                      TRF_MOE_BLOCK_CHUNKS * 2 * ((args.routes.experts + 1) / 2 * 2), 1, stream};
    bool early;
    const cudaError_t status = trf_launch_kernel(trf_moe_count, args, launch, &early);
    return status != cudaSuccess ? status : trf_launch_kernel(trf_moe_place, args, launch, &early);
}

cudaError_t trf_moe_gather_launch(const trf_moe_gather_args &args, uint32_t max_slots, cudaStream_t stream) {
    bool early;
    return trf_launch_kernel(trf_moe_gather, args, {max_slots, TRF_MOE_ROW_THREADS, 0, 1, stream}, &early);
}

cudaError_t trf_moe_sum_launch(const trf_moe_sum_args &args, uint32_t tokens, cudaStream_t stream) {
    const uint32_t token_blocks = (args.octets + TRF_MOE_ROW_THREADS - 1) / TRF_MOE_ROW_THREADS;
    bool early;
    return trf_launch_kernel(trf_moe_sum, args, {tokens * token_blocks, TRF_MOE_ROW_THREADS, 0, 1, stream}, &early);
}
