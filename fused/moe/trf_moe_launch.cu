/* SPDX-License-Identifier: Apache-2.0 */
/* The kernels that multiply by packed experts (trf_moe_product.cuh), and the launches of a whole mixture. */
#include "trf_moe_launch.h"

#include "trf_kernel_launch.cuh"
#include "trf_moe_product.cuh"
#include "trf_moe_route_launch.cuh"
#include "trf_packed_launch_id.cuh"
#include "trf_pad_x.h"

typedef void (*trf_moe_product_kernel)(trf_moe_args);

template <int kKernel, class Weights>
static __global__ void __launch_bounds__(TRF_MOE_THREADS, 1)
    trf_moe_product(const __grid_constant__ trf_moe_args args) {
#if TRF_HAS_SM_90A
    extern __shared__ __align__(1024) uint8_t trf_moe_memory[];
    trf_moe_block<trf_moe_config<kKernel, Weights>>(args, trf_moe_memory,
                                                    trf_keep_in_register(trf_shared_address(trf_moe_memory)));
#endif
}

template <class Weights> static trf_moe_product_kernel kernel_of(int kernel) {
    static constexpr trf_moe_product_kernel kKernels[TRF_MOE_KERNELS] = {trf_moe_product<TRF_MOE_64, Weights>,
                                                                         trf_moe_product<TRF_MOE_192, Weights>,
                                                                         trf_moe_product<TRF_MOE_256, Weights>};
    return kKernels[kernel];
}

/* Completes the arguments of a product, whose routes, tables, result, bias and y are set, and launches it. x: device,
 * [x_rows][x_stride], with as many columns as the experts. */
static cudaError_t launch_product(trf_moe_args &args, const trf_packed_experts &experts, int kernel, uint32_t blocks,
                                  const void *x, uint32_t x_rows, uint64_t x_stride, void *handover,
                                  cudaStream_t stream) {
    trf_moe_set_experts(args, kernel, experts.views_dev, experts.first);
    args.x = (const uint16_t *)x;
    args.x_stride = x_stride;
    args.handover = trf_packed_handover_at(handover, blocks, trf_moe_acc_tiles(kernel), trf_next_launch_id());
    if (!trf_moe_gathers_x(kernel)) {
        const cudaError_t status = trf_make_x_map(x, x_rows, experts.first.cols, (uint32_t)x_stride, TRF_MOE_BOX_ROWS,
                                                  TRF_PACKED_X_BOX_COLS, true, &args.x_map);
        if (status != cudaSuccess)
            return status;
    }
    bool early;
    const uint32_t slab_bytes = experts.is_fp8 ? (uint32_t)TRF_PACKED8_SLAB_BYTES : (uint32_t)TRF_PACKED_SLAB_BYTES;
    const trf_moe_product_kernel found = experts.in_turns   ? kernel_of<trf_moe_fp8_in_turns>(kernel)
                                         : experts.is_fp8   ? kernel_of<trf_moe_fp8>(kernel)
                                         : experts.may_zero ? kernel_of<trf_moe_bf16_may_zero>(kernel)
                                                            : kernel_of<trf_moe_bf16>(kernel);
    return trf_launch_kernel(
        found, args,
        {blocks, TRF_MOE_THREADS, trf_moe_shared_bytes(kernel, slab_bytes), 1, stream, experts.are_new != 0}, &early);
}

/* Whether each block of the products sorts the routes by itself. */
static bool blocks_sort(const trf_moe_partition *partition) {
    return trf_moe_gathers_x(partition->kernel) && partition->routes <= TRF_MOE_OWN_ROUTES;
}

static trf_moe_routes routes_of(const trf_moe_call *call, const trf_moe_shape *shape,
                                const trf_moe_partition *partition) {
    return {call->ids,
            call->map,
            call->id_bytes,
            partition->routes,
            shape->num_ids,
            shape->experts,
            trf_divisor_of(shape->top_k)};
}

/* Sorts routes, and rows of x into the order of slots, as far as the kernel does not do so. */
static cudaError_t prepare(const trf_moe_call *call, const trf_moe_shape *shape, const trf_moe_partition *partition,
                           cudaStream_t stream) {
    uint8_t *const workspace = call->workspace;
    const trf_moe_sort_args sort = {routes_of(call, shape, partition), (uint32_t *)(workspace + partition->counts),
                                    (uint32_t *)(workspace + partition->first_slots),
                                    (uint32_t *)(workspace + partition->slot_routes),
                                    (uint32_t *)(workspace + partition->route_slots)};
    cudaError_t status = blocks_sort(partition) ? cudaSuccess : trf_moe_sort_launch(sort, stream);
    if (status == cudaSuccess && !trf_moe_gathers_x(partition->kernel))
        status = trf_moe_gather_launch({(const uint16_t *)call->x, (uint16_t *)(workspace + partition->slot_x),
                                        sort.slot_routes, sort.first_slots + shape->experts, sort.routes.top_k,
                                        shape->hidden / 8},
                                       partition->routes, stream);
    return status;
}

/* The arguments that both products have in common. */
static trf_moe_args args_of(const trf_moe_call *call, const trf_moe_shape *shape, const trf_moe_partition *partition) {
    trf_moe_args args = {};
    args.routes = routes_of(call, shape, partition);
    if (!blocks_sort(partition))
        args.routes.ids = nullptr;
    args.max_slots = partition->routes;
    args.first_slots = (const uint32_t *)(call->workspace + partition->first_slots);
    args.slot_routes = (const uint32_t *)(call->workspace + partition->slot_routes);
    args.activation = call->activation;
    return args;
}

static cudaError_t launch_gate_up(const trf_moe_call *call, const trf_moe_shape *shape,
                                  const trf_moe_partition *partition, cudaStream_t stream) {
    const bool gathers = trf_moe_gathers_x(partition->kernel);
    uint8_t *const workspace = call->workspace;
    trf_moe_args args = args_of(call, shape, partition);
    args.x_has_slots = !gathers;
    args.route_slots = (uint32_t *)(workspace + partition->route_slots);
    args.routes_are_old = !gathers; /* then gathering came in between */
    args.result = TRF_MOE_GATED;
    args.bias = (const uint16_t *)call->gate_up_bias;
    args.y = workspace + partition->hidden;
    args.y_stride = shape->gate_up_rows / 2;
    args.y_dtype = TRF_DTYPE_BF16;
    return launch_product(args, call->gate_up, partition->kernel, partition->blocks,
                          gathers ? call->x : workspace + partition->slot_x,
                          gathers ? partition->tokens : partition->routes, shape->hidden,
                          workspace + partition->gate_up_handover, stream);
}

static cudaError_t launch_down(const trf_moe_call *call, const trf_moe_shape *shape, const trf_moe_partition *partition,
                               cudaStream_t stream) {
    uint8_t *const workspace = call->workspace;
    trf_moe_args args = args_of(call, shape, partition);
    args.x_has_slots = 1;
    args.routes_are_old = 1;
    args.result = partition->slot_dtype == TRF_DTYPE_BF16 ? TRF_MOE_OCTETS : TRF_MOE_ELEMENTS;
    args.bias = (const uint16_t *)call->down_bias;
    args.y = workspace + partition->slot_y;
    args.y_stride = shape->hidden;
    args.y_dtype = partition->slot_dtype;
    return launch_product(args, call->down, partition->kernel, partition->blocks, workspace + partition->hidden,
                          partition->routes, shape->gate_up_rows / 2, workspace + partition->down_handover, stream);
}

static cudaError_t make_weights(const trf_moe_call *call, int is_down, cudaStream_t stream) {
    return call->make_weights ? (cudaError_t)call->make_weights(call->weights_context, is_down, stream) : cudaSuccess;
}

int trf_moe_launch(const trf_moe_call *call, const trf_moe_shape *shape, const trf_moe_partition *partition,
                   trf_stream stream) {
    uint8_t *const workspace = call->workspace;
    cudaError_t status = prepare(call, shape, partition, stream);
    if (status == cudaSuccess)
        status = make_weights(call, 0, stream);
    if (status == cudaSuccess)
        status = launch_gate_up(call, shape, partition, stream);
    if (status == cudaSuccess)
        status = make_weights(call, 1, stream);
    if (status == cudaSuccess)
        status = launch_down(call, shape, partition, stream);
    if (status == cudaSuccess)
        status = trf_moe_sum_launch({workspace + partition->slot_y, partition->slot_dtype,
                                     (const uint32_t *)(workspace + partition->route_slots), call->weights,
                                     (uint16_t *)call->y, shape->top_k, shape->hidden / 8},
                                    partition->tokens, stream);
    return status;
}

int trf_packed_experts_launch(const trf_packed_experts_call *call, const trf_packed_experts_partition *partition,
                              trf_stream stream) {
    const uint32_t cols = call->experts.first.cols, rows = call->experts.first.rows;
    const void *x = call->x;
    uint32_t x_stride = cols;
    if ((uintptr_t)x % 16 || cols % 8) {
        x_stride = partition->x_stride;
        const int status = trf_launch_pad_tokens(x, call->offsets_dev + call->experts.count, call->max_tokens, cols,
                                                 call->workspace, x_stride, stream);
        if (status)
            return status;
        x = call->workspace;
    }
    trf_moe_args args = {};
    args.routes.experts = call->experts.count;
    args.routes.top_k = trf_divisor_of(1);
    args.max_slots = call->max_tokens;
    args.first_slots = call->offsets_dev;
    args.x_has_slots = 1;
    args.result = call->y_dtype != TRF_DTYPE_F32 && (uintptr_t)call->y % 16 == 0 && rows % 8 == 0 ? TRF_MOE_OCTETS
                                                                                                  : TRF_MOE_ELEMENTS;
    args.y = call->y;
    args.y_stride = rows;
    args.y_dtype = call->y_dtype;
    return launch_product(args, call->experts, partition->kernel, partition->blocks, x, call->max_tokens, x_stride,
                          call->workspace + partition->handover_offset, stream);
}
