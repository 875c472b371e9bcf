/* SPDX-License-Identifier: Apache-2.0 */
/* How decoding to memory uses a device: which kernel takes a layer's regular slabs, with how many warps, how large a
 * table, and by which way rows get to memory. Planning, in plain C; C and CUDA. */
#ifndef TRF_DECODE_CHOICE_H
#define TRF_DECODE_CHOICE_H

#include "trf_fragment_write.h"
#include "trf_layer_traits.h"
#include "trf_smem_layout.h"

#ifdef __cplusplus
extern "C" {
#endif

enum {
    TRF_MAX_WRITE_WARPS = 16 /* of a block */
};

/* How a lane's 8 neighbouring columns of a row get to memory. */
typedef enum trf_write_method {
    TRF_WRITE_SCALAR,  /* one by one: rows are not aligned */
    TRF_WRITE_VECTOR,  /* in one store */
    TRF_WRITE_GATHERED /* by way of shared memory, with others of the row: TRF_GATHER_ROW_BYTES at a time */
} trf_write_method;

/* Whether kernels for a default p have code for TRF_WRITE_GATHERED. FP8 and integers take fewer bytes, and longer with
 * as few warps as that leaves. bytes: of a weight, as stored. */
TRF_HD_CONSTEXPR int trf_may_gather(uint32_t codec, uint32_t bytes) {
    return bytes == 2 && (codec == TRF_CODEC_BF16 || codec == TRF_CODEC_FP16);
}

/* The size of the decode table of kernels for a default p; the smaller one leaves space to gather in. */
TRF_HD_CONSTEXPR int trf_write_table_log(uint32_t codec, uint32_t bytes) {
    return trf_may_gather(codec, bytes) ? TRF_SMALL_TABLE_LOG : TRF_TABLE_LOG;
}

typedef struct trf_decode_choice {
    int default_p; /* whether the kernel is the one for a default p (trf_has_default_p) */
    uint32_t warps;
    trf_write_method method;
    trf_smem_layout smem;
} trf_decode_choice;

/* Chooses for a layer that has `slabs` regular slabs. aligned: rows of the matrix, so that a lane's columns of a row
 * are one store. shared_bytes: that a block may opt in to. @return 0 if no kernel takes the layer: then
 * trf_launch_decode_slabs_general does. */
int trf_choose_decode_kernel(const trf_device_view *view, const trf_layer_traits *traits, trf_write_format format,
                             uint32_t slabs, int aligned, uint32_t multiprocessors, int shared_bytes,
                             trf_decode_choice *chosen);

#ifdef __cplusplus
}
#endif

#endif
