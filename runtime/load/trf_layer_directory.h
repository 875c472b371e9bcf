/* SPDX-License-Identifier: Apache-2.0 */
/* A layer as it lies in a GPU's memory: its blob, and a directory that the host makes of it:
 *   slab directory | decode table | scale pairs of scaled FP8 | fault
 * Each begins at a multiple of 256 bytes, with zeros between them. An offloaded layer is one allocation: the blob, and
 * at the next multiple of 256 the directory without its fault, which lies elsewhere. No CUDA in here. */
#ifndef TRF_LAYER_DIRECTORY_H
#define TRF_LAYER_DIRECTORY_H

#include "trf_device_layer.h"
#include "trf_slab_directory.h"

/* Checks that a GPU can hold a blob as it is, and that the kernels take it. Errors: TRF_ERR_UNSUPPORTED. */
trf_status trf_check_gpu_takes(const trf_blob_view *blob, trf_error *err);

/* Offsets from the directory's first byte, where the slab directory begins. */
typedef struct trf_layer_directory_offsets {
    uint64_t decode_table_offset, scale_pairs_offset, fault_offset;
    uint64_t directory_bytes; /* fault included */
} trf_layer_directory_offsets;

trf_layer_directory_offsets trf_layer_directory_offsets_of(const trf_blob_view *view);

/* Offsets from an offloaded layer's first byte, where the blob begins. */
typedef struct trf_offloaded_layer_offsets {
    uint64_t directory_offset;
    uint64_t memory_bytes; /* a multiple of 256 */
} trf_offloaded_layer_offsets;

trf_offloaded_layer_offsets trf_offloaded_layer_offsets_of(const trf_blob_view *view);

/* Writes what of a directory depends on the head alone, decode table and scale pairs. directory: its first byte. */
void trf_write_head_directory(const trf_blob_view *view, uint8_t *directory);

/* Writes an offloaded layer's directory: memory_bytes - directory_offset bytes of trf_offloaded_layer_offsets, which
 * are zeros before. layer: as for trf_describe_layer. */
void trf_write_layer_directory(const trf_layer *layer, uint8_t *directory, trf_layer_traits *traits);

/* Finds what trf_device_layer_verify needs to know of a blob, and of its directory, which is complete. Errors:
 * TRF_ERR_MEMORY. */
trf_status trf_keep_checksums(const trf_blob_view *blob, const uint8_t *directory, trf_kept_checksums *kept,
                              trf_error *err);

/* @return the view of `blob` at blob_dev, with a directory. */
trf_device_view trf_device_view_of_layer(const trf_blob_view *blob, const uint8_t *blob_dev,
                                         const uint8_t *directory_dev, trf_device_fault *fault_dev);

#endif
