/* SPDX-License-Identifier: Apache-2.0 */
/* The launcher of the kernels that pack all coded experts of a tensor to memory that only the products after them use.
 * C and CUDA; it returns the launches' cudaError_t as an int, 0 for success, and only enqueues work on `stream`.
 *
 * Memory: 256-byte aligned. Lists are what the first kernel leaves for the second one.
 *   views of the packed experts | lines, packed tiles of expert 0 | of expert 1 | ... | lists */
#ifndef TRF_PACK_CODED_EXPERTS_LAUNCH_H
#define TRF_PACK_CODED_EXPERTS_LAUNCH_H

#include "trf_pack_coded_launch.h"

#ifdef __cplusplus
extern "C" {
#endif

enum {
    TRF_PACK_EXPERTS_MAX = 512 /* experts of a launch */
};

/* How the rows of a packed expert follow from those of coded ones. In turns are 8 rows of gate, the same 8 rows of up,
 * the next 8 rows of gate ... (TRF_GATE_UP_INTERLEAVED_8). */
typedef enum trf_pack_rows {
    TRF_PACK_ROWS_AS_THEY_ARE,
    TRF_PACK_ROWS_OF_HALVES, /* in turns, of an expert with all rows of gate first and then all rows of up */
    TRF_PACK_ROWS_OF_TWO     /* in turns, of a gate and an up projection that are experts of two tensors */
} trf_pack_rows;

/* Says what keeps the kernels from an expert, as the rest of a sentence about it, or returns NULL if nothing does.
 * rows: how it, or it and the up projection that goes with it, is packed. The current device is asked for its memory.
 */
const char *trf_pack_coded_experts_refusal(const trf_device_view *view, const trf_layer_traits *traits,
                                           trf_pack_rows rows);

/* The outcome of packing one expert. */
typedef struct trf_pack_expert_result {
    trf_pack_coded_counts counts;
    trf_pack_state state;
} trf_pack_expert_result;

/* Experts that nothing keeps from being packed; they are alike (trf_decode_alike), also gates and up projections. */
typedef struct trf_experts_to_pack {
    const trf_device_view *view; /* of any of them */
    uint32_t max_rans_bytes;     /* the most of a slab's rANS streams in any of them */
    uint32_t count;              /* 1 to TRF_PACK_EXPERTS_MAX */
    trf_pack_rows rows;
    const trf_expert *experts_dev; /* [count] */
    const trf_expert *up_dev;      /* [count], or NULL but for TRF_PACK_ROWS_OF_TWO */
    const uint16_t *windows;       /* host, [count]: trf_pack_window_word of each */
    uint8_t *memory;               /* device, trf_pack_coded_experts_bytes */
    /* Device, [count], zeros before the launch; or NULL if they have been packed before, with no line left. */
    trf_pack_expert_result *results;
} trf_experts_to_pack;

TRF_HD uint16_t trf_pack_window_word(trf_packed_window window) {
    return (uint16_t)(window.base | (window.zeroing ? 256u : 0));
}

/* Returns how much memory the launch needs for `count` packed experts of rows x cols. */
uint64_t trf_pack_coded_experts_bytes(uint32_t count, uint32_t rows, uint32_t cols);

/* Returns expert 0 as it lies in that memory, but for its window. The views begin where the memory does. */
trf_packed_view trf_pack_coded_experts_first(uint32_t count, uint32_t rows, uint32_t cols, const uint8_t *memory);

/* Packs all rows of all experts: exception lines and packed tiles, which are those of trf_launch_pack with the same
 * windows; and writes their views. */
int trf_launch_pack_coded_experts(const trf_experts_to_pack *experts, trf_stream stream);

#ifdef __cplusplus
}
#endif

#endif
