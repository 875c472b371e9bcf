/* SPDX-License-Identifier: Apache-2.0 */
/* Epilogues of fused products.
 *
 * Kernels have no registers to spare when their sums are ready, and another wave of units may follow. So with an
 * epilogue the sums go to the workspace, as they would go to an F32 y. After its last wave a cluster shares out its
 * rows among its threads, which read the sums back, apply the epilogue and write y. If the partition is stream-K, the
 * second kernel does this. A single thread reads an element's operands and then writes the element, so that operands
 * may be y itself.
 *
 * A thread takes four elements at once, and loads all that it needs for them before it waits for any: with 8 warps a
 * multiprocessor, latency is the limit. */
#ifndef TRF_FUSED_EPILOGUE_CUH
#define TRF_FUSED_EPILOGUE_CUH

#include "trf_warp_product.cuh"

/* Not inlined, since it is long and kernels call it from several places. */
static __device__ __noinline__ float4 trf_activate_elements_of_thread(uint32_t activation, float4 v) {
    switch (activation) {
    case TRF_ACTIVATION_SILU:
        return make_float4(trf_silu(v.x), trf_silu(v.y), trf_silu(v.z), trf_silu(v.w));
    case TRF_ACTIVATION_GELU:
        return make_float4(trf_gelu(v.x), trf_gelu(v.y), trf_gelu(v.z), trf_gelu(v.w));
    case TRF_ACTIVATION_GELU_TANH:
        return make_float4(trf_gelu_tanh(v.x), trf_gelu_tanh(v.y), trf_gelu_tanh(v.z), trf_gelu_tanh(v.w));
    default:
        return v;
    }
}

/* Four elements of y. */
struct trf_epilogue_elements {
    uint64_t at[4];
    bool is_valid[4];
    float sum[4];
    trf_epilogue_inputs inputs[4];

    __device__ __forceinline__ void skip(int i) {
        at[i] = 0;
        is_valid[i] = false;
        sum[i] = 0;
        inputs[i] = {0, 0, 0};
    }

    /* Loads what element (n, row) needs; value is its sum. */
    __device__ __forceinline__ void load(int i, const trf_epilogue &epilogue, uint32_t n, uint32_t row, float value) {
        at[i] = n * epilogue.y_stride + row;
        is_valid[i] = true;
        sum[i] = value;
        inputs[i] = trf_epilogue_inputs_of(&epilogue, n, row);
    }

    __device__ __forceinline__ float with_bias(const trf_epilogue &epilogue, int i) const {
        return trf_add_bias(&inputs[i], epilogue.y_dtype, sum[i]);
    }

    __device__ __forceinline__ void store(const trf_epilogue &epilogue) const {
        const float4 v = trf_activate_elements_of_thread(epilogue.activation,
                                                         make_float4(with_bias(epilogue, 0), with_bias(epilogue, 1),
                                                                     with_bias(epilogue, 2), with_bias(epilogue, 3)));
        const float activated[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
        for (int i = 0; i < 4; i++)
            if (is_valid[i])
                trf_write_rounded(epilogue.y, epilogue.y_dtype, at[i],
                                  trf_after_activation(&inputs[i], epilogue.y_dtype, activated[i]));
    }
};

/* Writes rows [first, end) of y, shared out among `threads`. */
static __device__ __forceinline__ void trf_apply_epilogue_of_rows(const trf_epilogue &epilogue, const trf_sums &sums,
                                                                  uint32_t first, uint32_t end, uint32_t thread,
                                                                  uint32_t threads) {
    const uint32_t rows = end - first, step_n = threads / rows, step_row = threads % rows;
    uint32_t n = thread / rows, row = thread % rows;
    while (n < sums.m) {
        trf_epilogue_elements elements;
#pragma unroll
        for (int i = 0; i < 4; i++) {
            if (n < sums.m)
                elements.load(i, epilogue, n, first + row, sums.at[n * sums.stride + first + row]);
            else
                elements.skip(i);
            n += step_n;
            row += step_row;
            if (row >= rows) {
                row -= rows;
                n++;
            }
        }
        elements.store(epilogue);
    }
}

/* Applies the epilogue after a block's last wave: to the cluster's rows [first, end), if there are any, and to the
 * thread's share of the rows from whole_rows on. All threads of the cluster call it. Arguments are copied to registers,
 * since in a function that is not inlined each access to one is a load. */
static __device__ __noinline__ void trf_apply_epilogue_of_block(const trf_fused_args &args, uint32_t first,
                                                                uint32_t end) {
    const trf_product_args &a = args.product;
    const uint32_t cluster_size = args.partition.cluster_size;
    if (!args.partition.is_stream_k && first < end) {
        trf_cluster_arrive(cluster_size);
        trf_cluster_wait(cluster_size); /* now all sums are there */
        const trf_epilogue epilogue = args.epilogue;
        const trf_sums sums = {(const float *)a.y, a.y_stride, a.m, a.view.rows};
        trf_apply_epilogue_of_rows(epilogue, sums, first, end, blockIdx.x % cluster_size * blockDim.x + threadIdx.x,
                                   cluster_size * blockDim.x);
    }
    const trf_epilogue epilogue = args.epilogue;
    trf_each_remainder_element(a, [&](uint32_t n, uint32_t row) {
        trf_epilogue_elements elements;
        elements.load(0, epilogue, n, row, trf_add_edges(a, trf_y_place(a, n, row), 0.0f));
#pragma unroll
        for (int i = 1; i < 4; i++)
            elements.skip(i);
        elements.store(epilogue);
    });
}

/* Applies the epilogue to a lane's four elements of an accumulator tile; for the second kernel. */
static __device__ __forceinline__ void trf_apply_epilogue_of_acc_tile(const trf_fused_args &args, uint32_t lane,
                                                                      uint32_t first_row, uint32_t b, uint32_t t) {
    const trf_product_args &a = args.product;
    trf_epilogue_elements elements;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const uint32_t n = trf_n_of_sum(lane % 4, t, i), row = trf_row_of_sum(lane, first_row, b, i);
        if (n < a.m && row < a.whole_rows)
            elements.load(i, args.epilogue, n, row, ((const float *)a.y)[trf_y_place(a, n, row)]);
        else
            elements.skip(i);
    }
    elements.store(args.epilogue);
}

#endif
