/* SPDX-License-Identifier: Apache-2.0 */
/* How decoding to memory uses a device: which kernel takes a layer's regular slabs, with how many warps and how large a
 * table, and how rows get to memory. Planning, in plain C; C and CUDA. */
#ifndef TRF_DECODE_CHOICE_H
#define TRF_DECODE_CHOICE_H

#include "trf_fragment_write.h"
#include "trf_layer_traits.h"
#include "trf_smem_layout.h"

#ifdef __cplusplus
extern "C" {
#endif

enum {
    TRF_MAX_WRITE_WARPS = 16 /* the most warps of a block */
};

/* How a lane writes its 8 neighbouring columns of a row to memory. */
typedef enum trf_write_method {
    TRF_METHOD_SCALAR,  /* one by one, if rows are not aligned */
    TRF_METHOD_VECTOR,  /* in one store */
    TRF_METHOD_GATHERED /* by way of shared memory, with other columns of the row: TRF_GATHER_ROW_BYTES at a time */
} trf_write_method;

/* Whether kernels for a default p have code for TRF_METHOD_GATHERED. FP8 and integers write fewer bytes, and would take
 * longer with the few warps that gathering leaves room for. bytes: of a weight as it is written. */
TRF_HD_CONSTEXPR int trf_may_gather(uint32_t codec, uint32_t bytes) {
    return bytes == 2 && (codec == TRF_CODEC_BF16 || codec == TRF_CODEC_FP16);
}

/* The log of the decode table's size, of kernels for a default p. The smaller one leaves space to gather in. */
TRF_HD_CONSTEXPR int trf_write_table_log(uint32_t codec, uint32_t bytes) {
    return trf_may_gather(codec, bytes) ? TRF_SMALL_TABLE_LOG : TRF_TABLE_LOG;
}

/* What is to be decoded, and on what device. */
typedef struct trf_decode_request {
    uint32_t regular_slabs; /* of a layer */
    uint32_t matrices;      /* layers of this shape: 1, or experts */
    trf_write_format format;
    int aligned; /* trf_rows_are_aligned */
    uint32_t multiprocessors;
    int shared_bytes; /* as many as a block may opt in to */
} trf_decode_request;

/* The number of slabs in whole bands and regular panels. */
TRF_HD uint32_t trf_regular_slabs(const trf_device_view *view) {
    return view->rows / TRF_SLAB_ROWS * trf_regular_panels(view);
}

/* Whether a lane's columns of a row can be written in one store. place: the matrix's address or, of several matrices a
 * fixed stride apart, the first one's address | that stride in bytes. */
TRF_HD int trf_rows_are_aligned(const trf_device_view *view, trf_write_format format, uint64_t place) {
    const uint32_t bytes = trf_write_format_bytes(format), vector_bytes = bytes == 1 ? 8 : 16;
    return ((uint64_t)view->cols * bytes | place) % vector_bytes == 0;
}

typedef struct trf_decode_choice {
    int default_p; /* whether the kernel is the one for a default p (trf_has_default_p) */
    uint32_t warps;
    trf_write_method method;
    trf_smem_layout smem;
} trf_decode_choice;

/* Chooses for one layer or for several. view: of one of them; traits: of each field the largest value that any of them
 * has. @return 0 if no kernel takes the layer, in which case trf_launch_decode_slabs_as_edges does. */
int trf_choose_decode_kernel(const trf_device_view *view, const trf_layer_traits *traits,
                             const trf_decode_request *request, trf_decode_choice *chosen);

/* ---- experts, all in one launch ---- */

/* A block decodes one expert after the other, since its table is for one expert. So each expert is cut into pieces,
 * which have at most one slab for each warp of a block, and blocks have equal shares of all pieces, in order. */
typedef struct trf_expert_decode_choice {
    trf_decode_choice kernel;
    uint32_t pieces; /* of an expert */
    uint32_t blocks;
} trf_expert_decode_choice;

/* The first slab of piece number `piece` of `pieces`, out of num_slabs. */
TRF_HD uint32_t trf_piece_begin(uint32_t num_slabs, uint32_t pieces, uint32_t piece) {
    return (uint32_t)((uint64_t)num_slabs * piece / pieces);
}

/* Neighbouring pieces of one expert, which a block takes at a time. */
typedef struct trf_expert_part {
    uint32_t expert, pieces; /* pieces: how many of the expert's */
    uint32_t slab, num_slabs;
} trf_expert_part;

/* The part that begins with piece number `piece` of all experts, where a block's share ends in front of `end`. */
TRF_HD trf_expert_part trf_expert_part_of(uint32_t num_slabs, uint32_t pieces, uint64_t piece, uint64_t end) {
    const uint32_t first = (uint32_t)(piece % pieces), slab = trf_piece_begin(num_slabs, pieces, first);
    trf_expert_part part;
    part.expert = (uint32_t)(piece / pieces);
    part.pieces = end - piece < pieces - first ? (uint32_t)(end - piece) : pieces - first;
    part.slab = slab;
    part.num_slabs = trf_piece_begin(num_slabs, pieces, first + part.pieces) - slab;
    return part;
}

/* Whether two layers have the same shape and codec, so that one kernel takes both; their traits may differ. */
int trf_decode_alike(const trf_device_view *a, const trf_device_view *b);

/* Chooses for experts that are alike. traits: of each field the largest value that any of them has. @return 0 if there
 * is no kernel for all of them: there is one for elements of the 16-bit float codecs, with their default p. */
int trf_choose_expert_decode(const trf_device_view *view, const trf_layer_traits *traits,
                             const trf_decode_request *request, trf_expert_decode_choice *chosen);

#ifdef __cplusplus
}
#endif

#endif
