/* SPDX-License-Identifier: Apache-2.0 */
#include "trf_decode_choice.h"

/* The times of kernels, measured on an H200 (docs/notebook/2026-11-23-two-step-decoding.md). The unit is the time that
 * memory takes for the gathered weights of one slab of 256 columns on each multiprocessor: 0.96 us. */
static const double kSlabTimeOfWarp = 10.5; /* the least time of a warp that gathers, for such a slab */
static const double kGatheredEnd = 2.2;     /* time at the end in which memory waits for the last slabs */
static const double kPlainTime = 1.14;      /* time of memory for such a slab, if warps do not gather */

static int fits(const trf_device_view *view, const trf_layer_traits *traits, uint32_t warps, uint32_t table_log,
                int gathers, int shared_bytes, trf_smem_layout *smem) {
    *smem = trf_smem_layout_of(view->raw_bits, traits->max_rans_bytes, warps, 1, table_log, 0,
                               gathers ? TRF_GATHER_BYTES : 0, TRF_RING_STEPS);
    return (int)smem->total + TRF_STATIC_SMEM_BYTES <= shared_bytes;
}

static uint32_t pieces_of(uint32_t num_slabs, uint32_t warps) { return (num_slabs + warps - 1) / warps; }

static double gathered_time(const trf_device_view *view, const trf_decode_request *request, uint32_t warps) {
    const uint64_t pieces = (uint64_t)request->matrices * pieces_of(request->regular_slabs, warps),
                   most = (pieces + request->multiprocessors - 1) / request->multiprocessors;
    const double slab_time = warps > kSlabTimeOfWarp ? (double)warps : kSlabTimeOfWarp;
    return (double)most * slab_time * view->slab_cols / TRF_TILE_SIZE + kGatheredEnd;
}

static double plain_time(const trf_device_view *view, const trf_decode_request *request) {
    return kPlainTime * request->regular_slabs * request->matrices / request->multiprocessors * view->slab_cols /
           TRF_TILE_SIZE;
}

/* Returns the number of warps that gather, or 0 if gathering takes no less time. */
static uint32_t gathering_warps(const trf_device_view *view, const trf_layer_traits *traits,
                                const trf_decode_request *request) {
    uint32_t best = 0;
    double least = plain_time(view, request);
    trf_smem_layout smem;
    for (uint32_t warps = TRF_MAX_WRITE_WARPS; warps >= 8; warps--) {
        if (!fits(view, traits, warps, TRF_SMALL_TABLE_LOG, 1, request->shared_bytes, &smem))
            continue;
        const double time = gathered_time(view, request, warps);
        if (time < least) {
            least = time;
            best = warps;
        }
    }
    return best;
}

/* Chooses the kernel for any p, with the most warps and then the largest table that fit. */
static int find_general(const trf_device_view *view, const trf_layer_traits *traits, int shared_bytes,
                        trf_decode_choice *found) {
    found->default_p = 0;
    for (found->warps = TRF_MAX_WRITE_WARPS; found->warps >= 4; found->warps /= 2)
        for (uint32_t table_log = TRF_TABLE_LOG; table_log >= view->probability_bits + 4; table_log--)
            if (fits(view, traits, found->warps, table_log, 0, shared_bytes, &found->smem))
                return 1;
    return 0;
}

/* Codes of more than 8 bits do not fit the bytes that weights are built in. */
static int has_kernel(const trf_device_view *view, trf_write_format format) {
    return format != TRF_WRITE_NONE && (view->codec != TRF_CODEC_INT || view->class_bits + view->raw_bits <= 8);
}

int trf_choose_decode_kernel(const trf_device_view *view, const trf_layer_traits *traits,
                             const trf_decode_request *request, trf_decode_choice *chosen) {
    if (!has_kernel(view, request->format))
        return 0;
    const uint32_t bytes = trf_write_format_bytes(request->format);
    const uint32_t gathering =
        request->aligned && trf_may_gather(view->codec, bytes) ? gathering_warps(view, traits, request) : 0;
    chosen->method = request->aligned ? TRF_METHOD_VECTOR : TRF_METHOD_SCALAR;
    chosen->default_p = 1;
    chosen->warps = gathering ? gathering : TRF_MAX_WRITE_WARPS;
    if (!trf_has_default_p(view, traits->max_frequency) ||
        !fits(view, traits, chosen->warps, (uint32_t)trf_write_table_log(view->codec, bytes), gathering != 0,
              request->shared_bytes, &chosen->smem))
        return find_general(view, traits, request->shared_bytes, chosen);
    if (gathering)
        chosen->method = TRF_METHOD_GATHERED;
    return 1;
}

/* ---- experts ---- */

int trf_decode_alike(const trf_device_view *a, const trf_device_view *b) {
    return a->codec == b->codec && a->class_bits == b->class_bits && a->raw_bits == b->raw_bits && a->rows == b->rows &&
           a->cols == b->cols && a->slab_cols == b->slab_cols && a->probability_bits == b->probability_bits &&
           a->state_bits == b->state_bits;
}

int trf_choose_expert_decode(const trf_device_view *view, const trf_layer_traits *traits,
                             const trf_decode_request *request, trf_expert_decode_choice *chosen) {
    if (!request->regular_slabs || request->format != TRF_WRITE_ELEMENTS || !trf_may_gather(view->codec, 2) ||
        !trf_choose_decode_kernel(view, traits, request, &chosen->kernel) || !chosen->kernel.default_p)
        return 0;
    const uint32_t fewest = pieces_of(request->regular_slabs, chosen->kernel.warps),
                   blocks_each =
                       request->multiprocessors / request->matrices; /* if there are enough blocks for more pieces */
    chosen->pieces = blocks_each < request->regular_slabs ? blocks_each : request->regular_slabs;
    if (chosen->pieces < fewest)
        chosen->pieces = fewest;
    const uint64_t pieces = (uint64_t)request->matrices * chosen->pieces;
    chosen->blocks = pieces < request->multiprocessors ? (uint32_t)pieces : request->multiprocessors;
    return 1;
}
