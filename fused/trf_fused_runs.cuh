/* y = x . W^T from the blob in runs: for batches up to 8, and for layers of any size.
 *
 * One persistent block a multiprocessor. A block has whole items. Its slabs, unit by unit, are cut into equal runs, one a warp: the warps share units and
 * split K. A run's sums go to shared memory at its end (into the warp's own buffers), or to the workspace when the run goes on into another unit; units
 * that lie within one run go to y at once. Then the block adds up runs in their order, and blocks that share a unit leave their sums in the workspace,
 * where the last one to arrive adds them in the order of blocks.
 *
 * No sum depends on timing: who adds does, in which order does not.
 *
 * Shared memory: trf_shared_plan. Registers: 96 to 128 a thread with 20 or 16 warps. What limits it: docs/performance.md. */
#ifndef TRF_FUSED_RUNS_CUH
#define TRF_FUSED_RUNS_CUH

#include "trf_fused_product.cuh"

/* First slab (or pair of slabs side by side) of item i: items cut a unit's columns evenly. */
static __device__ __forceinline__ uint32_t trf_item_begin(const trf_fused_args &a, uint32_t item) {
    const uint32_t unit = item / a.splits, part = item % a.splits;
    return unit * a.regular_cols + (uint32_t)((uint64_t)a.regular_cols * part / a.splits);
}

/* A run: slabs [begin, end) of the layer's order, unit by unit. */
struct trf_run {
    uint32_t begin, end;
};

/* How a block's slabs are cut: runs of `length`, the first `longer` of them of one more. */
struct trf_run_cut {
    uint32_t begin, length, longer;

    __device__ __forceinline__ trf_run_cut(const trf_run &block, uint32_t warps)
        : begin(block.begin), length((block.end - block.begin) / warps), longer((block.end - block.begin) % warps) {}

    __device__ __forceinline__ uint32_t begin_of(uint32_t warp) const {
        return begin + warp * length + min(warp, longer);
    }
    __device__ __forceinline__ trf_run run(uint32_t warp) const { return {begin_of(warp), begin_of(warp + 1)}; }

    /* Which run a slab of the block is in. */
    __device__ __forceinline__ uint32_t warp_of(uint32_t slab) const {
        const uint32_t at = slab - begin, in_longer = longer * (length + 1);
        return at < in_longer ? at / (length + 1) : longer + (at - in_longer) / length;
    }
};

/* Whether a unit's slabs all lie in a run. */
static __device__ __forceinline__ bool trf_has_unit(const trf_run &run, uint32_t unit, uint32_t cols) {
    return run.begin <= unit * cols && (unit + 1) * cols <= run.end;
}

/* A run's product: leaves its sums where the block finds them. */
template <class Product> struct trf_run_sink : Product {
    trf_run run;
    uint32_t unit; /* at hand */
    float *at_end; /* [m][rows], shared memory: sums of the run's last unit */
    float *midway; /* [m][rows], workspace: of its first one, if the run goes on */

    __device__ __forceinline__ trf_run_sink(const trf_fused_args &args, uint32_t lane, const trf_run &run_,
                                            uint32_t unit_, float *at_end_, float *midway_)
        : Product(args, lane), run(run_), unit(unit_), at_end(at_end_), midway(midway_) {}

    __device__ __forceinline__ void leave(uint32_t next_unit, bool run_ends) {
        while (unit < next_unit) {
            if (trf_has_unit(run, unit, this->a.regular_cols)) {
                this->finish(unit);
            } else {
                const bool last = run_ends && unit + 1 == next_unit;
                if (last)
                    __syncwarp(); /* at_end lies in buffers that other lanes may be reading */
                float *const to = last ? at_end : midway;
                this->each([&](uint32_t n, uint32_t row, float v) { to[n * Product::kRows + row] = v; });
            }
            this->clear();
            unit++;
        }
    }

    __device__ __forceinline__ void begin_slab(const trf_walk &walk) {
        if (walk.band != unit)
            leave(walk.band, false);
        Product::begin_slab(walk);
    }
};

/* One sum of a unit over the runs of this block that have a part of it, in their order. */
static __device__ __forceinline__ float trf_add_runs(const trf_fused_args &a, const uint8_t *shared_memory,
                                                     const trf_run_cut &runs, uint32_t unit, uint32_t places,
                                                     uint32_t place) {
    const uint32_t unit_begin = unit * a.regular_cols, unit_end = unit_begin + a.regular_cols;
    float sum = 0;
    const uint32_t warps = blockDim.x / TRF_LANES;
    for (uint32_t w = 0; w < warps; w++) {
        const trf_run run = runs.run(w);
        if (run.begin == run.end || run.end <= unit_begin || run.begin >= unit_end)
            continue;
        if (run.end <= unit_end)
            sum += ((const float *)(shared_memory + a.shared.warps + w * a.shared.warp_bytes))[place];
        else
            sum += a.run_sums[((uint64_t)blockIdx.x * warps + w) * places + place];
    }
    return sum;
}

/* Blocks that share a unit: the last to arrive adds. All threads call it, for the block's first and last unit at once; its own sums are in the
 * workspace. shared_units[i]: whether unit[i] is shared. */
template <uint32_t kRows>
static __device__ __forceinline__ void trf_finish_shared_units(const trf_fused_args &a, const uint32_t *unit,
                                                               const bool *is_shared, uint32_t *arrived) {
    trf_fence();
    __syncthreads();
#pragma unroll
    for (int i = 0; i < 2; i++)
        if (threadIdx.x == 32 * i && is_shared[i])
            arrived[i] = atomicAdd(a.counters + unit[i], 1u);
    __syncthreads();
    trf_fence();
    const uint32_t places = a.m * kRows;
#pragma unroll
    for (int i = 0; i < 2; i++) {
        const uint32_t first = trf_block_of_item(a, unit[i] * a.splits),
                       last = trf_block_of_item(a, unit[i] * a.splits + a.splits - 1);
        if (!is_shared[i] || arrived[i] != last - first)
            continue;
        /* A block's slot 0 is for its first unit, 1 for its last. Those behind the first block begin inside the unit. */
        const uint32_t first_slot = trf_first_item(a, first) < unit[i] * a.splits ? 1 : 0;
        const float *const of_first = a.block_sums + ((uint64_t)first * 2 + first_slot) * places;
        const float *const of_others = a.block_sums + ((uint64_t)first + 1) * 2 * places;
        for (uint32_t place = threadIdx.x; place < places; place += blockDim.x) {
            float sum = __ldcg(of_first + place);
#pragma unroll 4
            for (uint32_t b = 0; b < last - first; b++)
                sum += __ldcg(of_others + (uint64_t)b * 2 * places + place);
            trf_finish<kRows>(a, unit[i], place, sum);
        }
        if (threadIdx.x == 0)
            a.counters[unit[i]] = 0;
    }
}

/* kMostWarps: blocks have so many warps or fewer. */
template <class Form, class Type, int kP, int kSlabs, bool kScaled, int kMostWarps>
__global__ void __launch_bounds__(TRF_LANES *kMostWarps, 1) trf_fused_runs(const __grid_constant__ trf_fused_args a) {
    using Product = trf_product<Form, Type, kSlabs, 1, kScaled, kP == 0>;
    extern __shared__ __align__(1024) uint8_t shared_memory[];
    __shared__ uint32_t arrived[2];
    constexpr int kLog = kP == 0 ? 0 : kTableLog;
    __shared__ uint2 constants;
    const uint32_t shared = trf_shared_address(shared_memory);
    const uint32_t warps = blockDim.x / TRF_LANES, warp = threadIdx.x / TRF_LANES, lane = threadIdx.x % TRF_LANES;
    const uint32_t cols = max(a.regular_cols, 1u);
    trf_allow_successor();

    const trf_run block = {trf_item_begin(a, trf_first_item(a, blockIdx.x)),
                           trf_item_begin(a, trf_first_item(a, blockIdx.x + 1))};
    const trf_run_cut runs(block, warps);
    const uint32_t memory = a.shared.warps + warp * a.shared.warp_bytes;
    {
        const trf_run run = runs.run(warp);
        const trf_walk walk = {run.begin / cols, run.begin % cols, cols, run.end - run.begin};
        const trf_int_planes planes = trf_int_planes_of(a.view.raw_bits);
        const trf_walk_grid grid = {cols};
        trf_stager<kSlabs> stager;
        trf_start<Form>(stager, a.view, a.shared, planes, walk, grid, shared + memory, lane);
        trf_build_constants<Form, kP, kLog>(a.view, shared, a.shared, &constants);
        __syncthreads();
        trf_wait_for_predecessor();

        trf_run_sink<Product> sink(a, lane, run, walk.band, (float *)(shared_memory + memory),
                                   a.run_sums + ((uint64_t)blockIdx.x * warps + warp) * a.m * Product::kRows);
        if (stager.bytes[0])
            sink.slab_ahead(stager.entered);
        trf_walk_slabs<Form>(
            a.view, a.shared, planes, stager,
            trf_lane_rule_of<kP, kLog>(a.view, shared_memory, a.shared.table_log, trf_shared_address(&constants), lane),
            shared + a.shared.pair_masks, grid, 0xFFFFFFFF, lane, sink);
        trf_copy_wait<0>();
        if (run.begin < run.end)
            sink.leave((run.end - 1) / cols + 1, true);
    }
    __syncthreads();

    /* Units of this block that no run has whole. */
    const uint32_t unit_begin = block.begin / cols, unit_end = (block.end + cols - 1) / cols;
    const uint32_t places = a.m * Product::kRows, units = block.begin < block.end ? unit_end - unit_begin : 0;
    for (uint32_t i = threadIdx.x; i < units * places; i += blockDim.x) {
        const uint32_t unit = unit_begin + i / places, place = i % places;
        const bool whole = trf_has_unit(block, unit, a.regular_cols);
        if (whole && trf_has_unit(runs.run(runs.warp_of(unit * cols)), unit, a.regular_cols))
            continue;
        const float sum = trf_add_runs(a, shared_memory, runs, unit, places, place);
        if (whole)
            trf_finish<Product::kRows>(a, unit, place, sum);
        else
            a.block_sums[((uint64_t)blockIdx.x * 2 + (unit == unit_begin ? 0 : 1)) * places + place] = sum;
    }
    const uint32_t ends[2] = {unit_begin, unit_end - 1};
    const bool is_shared[2] = {units && !trf_has_unit(block, ends[0], a.regular_cols),
                               units > 1 && !trf_has_unit(block, ends[1], a.regular_cols)};
    if (is_shared[0] || is_shared[1])
        trf_finish_shared_units<Product::kRows>(a, ends, is_shared, arrived);
    trf_store_tail_rows(a);
}

#endif
