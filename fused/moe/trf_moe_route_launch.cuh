/* SPDX-License-Identifier: Apache-2.0 */
/* The launchers of the small kernels around the products of a mixture of experts (trf_moe_route_kernels.cuh). */
#ifndef TRF_MOE_ROUTE_LAUNCH_CUH
#define TRF_MOE_ROUTE_LAUNCH_CUH

#include "trf_moe_route_kernels.cuh"

#include <cuda_runtime.h>

cudaError_t trf_moe_sort_launch(const trf_moe_sort_args &args, cudaStream_t stream);
/* max_slots: as many as there may be. */
cudaError_t trf_moe_gather_launch(const trf_moe_gather_args &args, uint32_t max_slots, cudaStream_t stream);
cudaError_t trf_moe_sum_launch(const trf_moe_sum_args &args, uint32_t tokens, cudaStream_t stream);

#endif
