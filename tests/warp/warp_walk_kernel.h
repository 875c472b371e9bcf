/* SPDX-License-Identifier: Apache-2.0 */
/* What the kernels around trf_walk_slabs have in common, and sinks that store elements. */
#ifndef WARP_WALK_KERNEL_H
#define WARP_WALK_KERNEL_H

#include "warp_emulation.h"

#include "trf_decode_slabs.cuh"
#include "warp_walk.h"

/* The arguments that all threads of a block get. */
struct warp_walk_args {
    const warp_walk *walk;
    trf_smem_layout smem;
    uint32_t panels;   /* that are regular */
    const uint16_t *x; /* WARP_WALK_TWO_SLABS_COPY: [8][x_stride] */
    uint32_t x_stride;
    trf_write_args store; /* WARP_WALK_WRITE, WARP_WALK_WRITE_GENERAL */
};

typedef void warp_walk_kernel(void *args);

/* A range of the columns of each band, as in a k split of the fused and wide kernels. */
struct warp_split_k_unit_order {
    uint32_t begin, end;

    void next_unit(trf_walk &walk) const {
        walk.unit++;
        walk.panel = begin;
        walk.stop = end;
    }
};

/* ---- sinks: that of decoding to memory, and one that puts each weight where its lane, step and index say ---- */

static inline void warp_note_verdict(const warp_walk &w, uint32_t band, uint32_t panel, bool good) {
    uint8_t &slab = w.slabs[(uint64_t)band * w.view->num_panels + panel];
    const uint8_t verdict = good ? WARP_SLAB_GOOD : WARP_SLAB_BAD;
    if (slab != WARP_SLAB_PASSED_BY && slab != verdict)
        warp_fail("does not agree with other lanes about the slab of band %u, panel %u", band, panel);
    slab = verdict;
}

/* Counts what is stored. */
template <class Codec, bool kMayGather> struct warp_store_sink : trf_write_sink<Codec, 2, kMayGather> {
    using Base = trf_write_sink<Codec, 2, kMayGather>;
    const warp_walk &w;

    warp_store_sink(const warp_walk_args &args, uint32_t lane, uint32_t behind)
        : Base(args.store.view, args.store.call, args.store.weights, lane, behind), w(*args.walk) {}

    void step(const uint32_t (*reg)[8], const trf_walk &walk, uint32_t k) {
        Base::step(reg, walk, k);
        for (uint32_t i = 0; i < TRF_FRAGMENT_SIZE; i++) /* its row of the step, in place of another lane */
            w.seen[(walk.unit * TRF_SLAB_ROWS + this->lane) * (uint64_t)w.view->cols + walk.panel * w.view->slab_cols +
                   TRF_FRAGMENT_SIZE * k + i]++;
    }

    void end_slab(const trf_walk &walk, bool good) {
        Base::end_slab(walk, good);
        warp_note_verdict(w, walk.unit, walk.panel, good);
    }
};

static constexpr uint32_t kXBytes = 2 * 8 * 64; /* a warp's copies of x: [2][8][32 columns] */

template <class Codec, int kSlabs, bool kCopies_> struct warp_sink {
    static constexpr bool kCopiesX = kCopies_;
    const warp_walk_args &a;
    const warp_walk &w;
    const trf_device_view &view;
    uint32_t lane;
    uint32_t x_shared; /* shared address of the lane's x */
    trf_walk at;       /* the slabs at hand */
    uint32_t finished; /* steps, of each slab in turn */
    uint32_t x_col;    /* of the chunk that is copied ahead */

    warp_sink(const warp_walk_args &args, uint32_t lane_, uint32_t behind)
        : a(args), w(*args.walk), view(*args.walk->view), lane(lane_), x_shared(behind + 16 * lane_), at(), finished(0),
          x_col(0) {}

    uint32_t first_row(uint32_t s) const { return (kSlabs * at.unit + s) * TRF_SLAB_ROWS; }
    bool is_there(uint32_t s) const { return first_row(s) + TRF_SLAB_ROWS <= view.rows; }

    /* Row and column in the layer of the lane's weight i of the present step. */
    trf_slab_shape shape() const {
        const uint32_t cols = min(view.cols - at.panel * view.slab_cols, view.slab_cols) / TRF_FRAGMENT_SIZE;
        return {TRF_SLAB_ROWS / TRF_FRAGMENT_SIZE, cols};
    }
    uint32_t row_of(uint32_t s, uint32_t i) const { return first_row(s) + trf_lane_row(shape(), lane, i); }
    uint32_t col_of(uint32_t i) const { return at.panel * view.slab_cols + trf_lane_col(shape(), lane, i); }

    void begin_slab(const trf_walk &walk) {
        at = walk;
        finished = 0;
    }

    /* ---- x, as trf_warp_product copies it ---- */

    const uint16_t *x_of(uint32_t col) const { return a.x + lane / 4 * a.x_stride + col + 8 * (lane % 4); }

    void begin_step_pair(int step_pair) {
        if (kCopiesX && step_pair == 0)
            trf_cp_async16(x_shared + kXBytes / 2, x_of(x_col + 32));
    }
    void prefetch_chunk() {
        if (kCopiesX)
            trf_cp_async16(x_shared, x_of(x_col += 64));
    }
    void prefetch_slab(const trf_walk &walk) {
        if (kCopiesX)
            trf_cp_async16(x_shared, x_of(x_col = walk.panel * view.slab_cols));
    }

    /* The four columns that the lane multiplies in step k. */
    void expect_x(uint32_t k) const {
        const uint2 found = trf_lds64(x_shared + k / 2 % 2 * (kXBytes / 2) + k % 2 * 8);
        if (memcmp(&found, a.x + lane / 4 * a.x_stride + col_of(16 * k), sizeof found) != 0)
            warp_fail("has other x in step %u", k);
    }

    /* ---- elements ---- */

    /* Converts F16 as trf_build_four_f16 makes it back to E4M3. The bits above it must be zeros. */
    static uint32_t e4m3_from_f16(uint32_t half) {
        if (half & 0x407F)
            warp_fail("%04x is no E4M3", half);
        return (half >> 8 & 0x80) | (half >> 7 & 0x7F);
    }

    void complete_fragments(uint32_t *reg) {
        const uint32_t s = finished % kSlabs, k = finished / kSlabs;
        finished++;
        if (Codec::kAsF16)
            for (int i = 0; i < 8; i++)
                reg[i] = e4m3_from_f16(reg[i] & 0xFFFF) | e4m3_from_f16(reg[i] >> 16) << 16;
        else
            trf_step_elements(Codec::kCodec, view.class_value[0], reg);
        if (Codec::kInt || !is_there(s))
            return;
        const uint32_t mode =
            view.tiles[(uint64_t)(first_row(s) / TRF_TILE_SIZE) * view.num_tile_cols + col_of(0) / TRF_TILE_SIZE]
                .predictor_mode;
        for (uint32_t i = 0; i < 16; i++) {
            const uint32_t row = row_of(s, 16 * k + i), col = col_of(16 * k + i);
            const int32_t offset = view.exponent_offset + (mode & TRF_PREDICT_ROW ? view.row_offsets[row] : 0) +
                                   (mode & TRF_PREDICT_COL ? view.col_offsets[col] : 0);
            reg[i / 2] = trf_add_exponents(Codec::kCodec, reg[i / 2],
                                           trf_exponent_offsets(Codec::kCodec, i % 2 ? 0 : offset, i % 2 ? offset : 0));
        }
    }

    uint32_t exception_bits(uint32_t, uint32_t exception, const trf_walk &) const {
        return trf_exception_element(exception);
    }

    void step(const uint32_t (*reg)[8], const trf_walk &walk, uint32_t k) {
        if (walk.unit != at.unit || walk.panel != at.panel || k != finished / kSlabs - 1)
            warp_fail("is at step %u of unit %u, column %u", k, walk.unit, walk.panel);
        if (kCopiesX)
            expect_x(k);
        for (uint32_t s = 0; s < kSlabs && is_there(s); s++)
            for (uint32_t i = 0; i < 16; i++) {
                const uint64_t to = (uint64_t)row_of(s, 16 * k + i) * view.cols + col_of(16 * k + i);
                w.elements[to] = (uint16_t)(reg[s][i / 2] >> (16 * (i % 2)));
                w.seen[to]++;
            }
    }

    void end_slab(const trf_walk &walk, bool good) {
        if (finished != kSlabs * shape().steps)
            warp_fail("ends a slab behind %u steps", finished / kSlabs);
        for (uint32_t s = 0; s < kSlabs && is_there(s); s++)
            warp_note_verdict(w, kSlabs * walk.unit + s, walk.panel, good);
    }
};

/* ---- the kernel ---- */

/* With one slab at a time, a warp has consecutive slabs, as in kernels that decode; with two, it has a range of
 * columns, band by band, as in kernels that multiply. Sink: constructed from the arguments, the lane, and the shared
 * address after the warp's buffers. */
template <class Codec, int kSlabs, int kRingSteps, int kP, int kLog, class Sink> void warp_walk_slabs(void *args) {
    const warp_walk_args &a = *(const warp_walk_args *)args;
    const trf_device_view &view = *a.walk->view;
    const uint32_t warps = blockDim.x / TRF_LANES, warp = threadIdx.x / TRF_LANES, lane = threadIdx.x % TRF_LANES;
    const uint32_t bands = (view.rows / TRF_SLAB_ROWS + kSlabs - 1) / kSlabs;
    uint8_t *const shared_memory = warp_shared_memory();
    uint2 *const constants = (uint2 *)warp_static_shared_memory();
    const uint32_t shared = trf_shared_address(shared_memory),
                   memory = shared + a.smem.first_warp + warp * a.smem.warp_bytes;
    const trf_table_slots<kP> table_source(view);
    const trf_int_planes planes = trf_int_planes_of(view.raw_bits);

    trf_walk walk;
    warp_split_k_unit_order unit_order = {0, a.panels};
    if (kSlabs == 1) {
        const uint32_t num_slabs = bands * a.panels, begin = num_slabs * warp / warps,
                       end = num_slabs * (warp + 1) / warps;
        walk = {begin / a.panels, begin % a.panels, a.panels, end - begin};
    } else {
        unit_order = {a.panels * warp / warps, a.panels * (warp + 1) / warps};
        walk = {0, unit_order.begin, unit_order.end, bands * (unit_order.end - unit_order.begin)};
    }
    const uint32_t walked = walk.left;
    trf_prefetcher<kSlabs, kRingSteps> prefetcher;
    trf_start_walk<Codec>(prefetcher, view, a.smem, planes, walk, unit_order, memory, lane);
    trf_build_constants<Codec, kP, kLog>(view, table_source, shared, a.smem, constants);
    __syncthreads();

    const trf_rans_params<kP, kLog> params =
        trf_rans_params_of<kP, kLog>(view, shared_memory, a.smem.table_log, trf_shared_address(constants), lane);
    Sink sink(a, lane, memory + kSlabs * a.smem.slab_bytes);
    if (Sink::kCopiesX) {
        if (prefetcher.bytes[0])
            sink.prefetch_slab(prefetcher.entered);
        trf_cp_async_commit();
    }
    /* a band or unit at a time, or all of them */
    for (uint32_t band = kSlabs == 2 && walked && kRingSteps == kRing ? 0 : bands - 1; band < bands; band++)
        trf_walk_slabs<Codec>(view, a.smem, planes, prefetcher, params, shared + a.smem.lane_pair_masks, unit_order,
                              band, lane, sink);
    trf_cp_async_wait<0>();
}

/* ---- which of them a layer has ---- */

/* kProductConfig: the codec config that only products have. @return NULL if there is no such kernel. */
template <class Codec, bool kProductConfig> warp_walk_kernel *warp_walk_kernel_of(const warp_walk *w) {
    constexpr int kP = kDefaultP<Codec>, kTwoLog = Codec::kClassBits == 2 ? kSmallTableLog : kTableLog;
    constexpr bool kDecodesOnly = Codec::kCodec == TRF_CODEC_E4M3 && !kProductConfig,
                   kTwoOnly = Codec::kInt && kProductConfig;
    if (w->variant != WARP_WALK_GENERAL && w->variant != WARP_WALK_WRITE_GENERAL &&
        !trf_has_default_p(w->view, w->max_frequency))
        return nullptr;
    if constexpr (!kProductConfig) {
        constexpr bool kMayGather = trf_may_gather(Codec::kCodec, 2);
        if (w->variant == WARP_WALK_WRITE)
            return warp_walk_slabs<Codec, 1, kRing, kP, trf_write_table_log(Codec::kCodec, 2),
                                   warp_store_sink<Codec, kMayGather>>;
        if (w->variant == WARP_WALK_WRITE_GENERAL)
            return warp_walk_slabs<Codec, 1, kRing, 0, 0, warp_store_sink<Codec, false>>;
    }
    if constexpr (!kDecodesOnly && !kTwoOnly) {
        if (w->variant == WARP_WALK_ONE_SLAB)
            return warp_walk_slabs<Codec, 1, kRing, kP, kTableLog, warp_sink<Codec, 1, false>>;
        if (w->variant == WARP_WALK_GENERAL)
            return warp_walk_slabs<Codec, 1, kRing, 0, 0, warp_sink<Codec, 1, false>>;
        if (w->variant == WARP_WALK_WIDE)
            return warp_walk_slabs<Codec, 2, kShortRing, kP, kSmallTableLog, warp_sink<Codec, 2, false>>;
    }
    if constexpr (!kDecodesOnly) {
        if (w->variant == WARP_WALK_TWO_SLABS)
            return warp_walk_slabs<Codec, 2, kRing, kP, kTwoLog, warp_sink<Codec, 2, false>>;
        if constexpr (Codec::kClassBits == 2 && (!Codec::kInt || kProductConfig))
            if (w->variant == WARP_WALK_TWO_SLABS_COPY)
                return warp_walk_slabs<Codec, 2, kRing, kP, kTwoLog, warp_sink<Codec, 2, true>>;
    }
    return nullptr;
}

/* Each of these has a source file of instantiations. */
warp_walk_kernel *warp_walk_kernel_of_bf16(const warp_walk *w);
warp_walk_kernel *warp_walk_kernel_of_fp16(const warp_walk *w);
warp_walk_kernel *warp_walk_kernel_of_e4m3(const warp_walk *w);
warp_walk_kernel *warp_walk_kernel_of_e5m2(const warp_walk *w);
warp_walk_kernel *warp_walk_kernel_of_int(const warp_walk *w);

#endif
