/* SPDX-License-Identifier: Apache-2.0 */
/* What fewer programs need of checkpoints: limits on what files may ask for, texts for what a trf_checkpoint_report
 * counts, and side tables. Conventions: transfuse.h. */
#ifndef TRANSFUSE_CHECKPOINTS_H
#define TRANSFUSE_CHECKPOINTS_H

#include "../transfuse.h"

#ifdef __cplusplus
extern "C" {
#endif

/* How much a call may write and hold at a time for what a checkpoint's files ask for, in bytes; 0 is no limit. More is
 * TRF_ERR_LIMIT, whose message names the limit, the file and the tensor, before it is written or allocated. */
typedef struct trf_limits {
    size_t struct_bytes;
    /* Compressing, decompressing and extracting: all files of the output. Other calls write nothing. */
    uint64_t max_output_bytes;
    /* Host memory: headers and indexes with what parsing makes of them, for as long as a checkpoint is open;
     * config.json while it is parsed; heads of blobs, lists of experts, side tables, buffers of tiles and of weights,
     * and the encoder's tables. Sizes that are known only afterwards count as the most that they can be. Not counted
     * are 4 MiB for copying, names of files, stacks of threads, mapped files, and what a context holds. */
    uint64_t max_memory_bytes;
    /* Loads: the layer's device memory, as trf_device_layer_get_load_size (transfuse/device_memory.h) says it; also on
     * the CPU, and also where it is the caller's. */
    uint64_t max_device_bytes;
} trf_limits;

TRF_API void trf_limits_init(trf_limits *limits);

/* Opens a checkpoint, as trf_checkpoint_open does, within limits (copied; NULL: none). They hold for each later call on
 * the checkpoint, too, and for loads from it whose options have none. */
TRF_API trf_status trf_checkpoint_open_within(const char *path, const trf_limits *limits, trf_checkpoint **checkpoint,
                                              trf_error *err);

/* Extracts a layer, as trf_extract_layer does, within limits (NULL: none). */
TRF_API trf_status trf_extract_layer_within(const char *in_path, const char *tensor, const char *out_path,
                                            int overwrite, const trf_limits *limits, trf_error *err);

/* @return why a tensor stayed as it was, such as "F32 without a lossless codec"; "?" for a value that is none. Never
 * NULL. */
TRF_API const char *trf_left_reason_text(trf_left_reason reason);

/* Counts the side tables of a compressed checkpoint: tensors of scales beside FP8 weights, which loaders do not see and
 * decompressing writes again. *unused: those of them that are not of weights, but of activations or of a KV cache.
 * checkpoint: may be used by other threads at the same time. all, unused: may not be NULL. */
TRF_API void trf_checkpoint_count_side_tables(const trf_checkpoint *checkpoint, uint64_t *all, uint64_t *unused);

#ifdef __cplusplus
}
#endif
#endif
