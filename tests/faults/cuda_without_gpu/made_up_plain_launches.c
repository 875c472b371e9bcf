/* SPDX-License-Identifier: Apache-2.0 */
/* The launches that do nothing, whatever their arguments, which is why no header that declares them is included. */
#include <cuda_runtime_api.h>

static int launch(void) {
    const dim3 one = {1, 1, 1};
    cudaLaunchKernel(NULL, one, one, NULL, 0, NULL);
    return cudaGetLastError();
}

#define LAUNCHES(name)                                                                                                 \
    int name(void);                                                                                                    \
    int name(void) { return launch(); }

LAUNCHES(trf_experts_launch)
LAUNCHES(trf_fused_launch)
LAUNCHES(trf_group_launch)
LAUNCHES(trf_launch_check_blob)
LAUNCHES(trf_launch_decode_edges)
LAUNCHES(trf_launch_decode_experts)
LAUNCHES(trf_launch_decode_rows)
LAUNCHES(trf_launch_decode_slabs)
LAUNCHES(trf_launch_find_fp8)
LAUNCHES(trf_launch_pack)
LAUNCHES(trf_launch_pack8)
LAUNCHES(trf_launch_pack8_pairs)
LAUNCHES(trf_launch_plain_rows)
LAUNCHES(trf_launch_round_sums)
LAUNCHES(trf_launch_unpack)
LAUNCHES(trf_launch_unpack8)
LAUNCHES(trf_launch_unpack8_rows)
LAUNCHES(trf_launch_unpack8_values)
LAUNCHES(trf_launch_unpack_rows)
LAUNCHES(trf_launch_window_histogram)
LAUNCHES(trf_moe_launch)
LAUNCHES(trf_packed8_group_launch)
LAUNCHES(trf_packed8_launch)
LAUNCHES(trf_packed_experts_launch)
LAUNCHES(trf_packed_group_launch)
LAUNCHES(trf_packed_launch)
LAUNCHES(trf_wide_launch)
