/* SPDX-License-Identifier: Apache-2.0 */
/* The inside of trf_device_layer (transfuse.h): a layer in a device's memory. */
#ifndef TRF_DEVICE_LAYER_H
#define TRF_DEVICE_LAYER_H

#include "transfuse.h"
#include "trf_data_checksum.h"
#include "trf_device_view.h"
#include "trf_error.h"
#include "trf_layer_traits.h"
#include "trf_layout.h"
#include "trf_packed.h"
#include "trf_packed8.h"
#include "trf_shard_range.h"

#include <stdatomic.h>

/* What verifying a coded layer on a GPU needs, beside the checksums in its blob. */
typedef struct trf_kept_checksums {
    uint64_t head_bytes;      /* of the blob's head */
    uint64_t directory_bytes; /* of the directory, without its fault */
    trf_data_checksum directory;
} trf_kept_checksums;

struct trf_device_layer {
    trf_context *context;
    int device;          /* the context's */
    trf_layer_info info; /* rows and cols: the shard's */
    trf_header header;   /* of the blob that the layer was made of, or of the part of it that was loaded */
    const trf_layout_ops *layout;
    trf_shard_range shard;
    uint64_t memory_bytes; /* of device memory */
    void *memory;          /* what the library has allocated of that; NULL: all belongs to the caller or to a stack */
    atomic_uint num_plans; /* how many plans of this layer exist */
    /* On the CPU, slabs and fault are not set. A layout with a head (trf_layout_head.h) sets buffer, buffer_bytes,
     * rows, cols, codec and source_dtype, and nothing else. */
    trf_device_view view;
    trf_packed_view packed;   /* of a packed BF16 layer */
    trf_packed8_view packed8; /* of a packed FP8 layer */
    int is_to_be_bf16;        /* while the layer is made: 'packed' is packed BF16 */
    /* Why a layer of FP8 weights that 'packed' was asked for is packed as BF16; "" for all others. */
    char layout_reason[256];
    /* The following fields are a GPU's. */
    trf_layer_traits traits;
    int is_of_stack;          /* its blob need not be in device memory */
    uint64_t directory_bytes; /* of the directory at view.slabs; the blob is at view.buffer. 0: the layer is a stack's,
                               * or not coded */
    trf_kept_checksums kept;  /* of a coded layer */
    /* On the CPU: a coded layer's host layer. On a GPU: where the blob of an offloaded layer lies in host memory. */
    trf_layer *host;
    struct trf_cpu_fault *fault;
};

/* Allocates a layer in the state in which `adopt` of trf_layout_ops expects it. Release it with free(). Errors:
 * TRF_ERR_MEMORY. */
trf_status trf_begin_device_layer(trf_context *context, const trf_layout_ops *layout, trf_device_layer **layer,
                                  trf_error *err);

/* Sets what trf_device_layer_get_layout_reason says, cut off to its 255 bytes. */
void trf_note_layout_reason(trf_device_layer *layer, const char *reason);

/* The bytes in memory that a layer is made of: a blob, or the buffer of another layout. Both fields are 0 for a layer
 * that comes from a checkpoint's tensor. */
typedef struct trf_given_buffer {
    const void *at;
    uint64_t bytes;
} trf_given_buffer;

/* Checks that the caller's memory for a layer is large enough, and overlaps nothing that it must not. alignment is the
 * device's. in_place says that memory->buffer is the given buffer. Errors: TRF_ERR_ARGUMENT. */
trf_status trf_check_layer_memory(const trf_layer_memory *memory, const trf_layer_size *size,
                                  const trf_given_buffer *given, uint32_t alignment, int in_place, trf_error *err);

/* Sets info, header and shard of a layer that trf_begin_device_layer made, as `fill` expects them. view and shard say
 * what will be loaded. */
void trf_set_device_layer_info(const trf_blob_view *view, const trf_shard_range *shard, trf_device_layer *layer);

/* Sets the fields of a layer that is not coded which describe its buffer, for all of its matrix: shard, view and
 * memory_bytes. info is set. */
void trf_set_device_layer_buffer(trf_device_layer *layer, const void *buffer, uint64_t buffer_bytes);

/* Reads the head of such a buffer, which lies on the device, and does not look at it. Errors: TRF_ERR_TRUNCATED, those
 * of a download. */
trf_status trf_read_layout_head(const trf_context *context, const void *buffer, uint64_t buffer_bytes, void *head,
                                size_t head_bytes, trf_error *err);

/* Makes info and header of a layer that comes of scaled FP8 and is not coded those of its elements, BF16: other layouts
 * keep nothing of codes and scales. */
void trf_forget_scaled_fp8(trf_device_layer *layer);

/* Whether the shard begins or ends within a tile's rows, or within its columns. */
static inline int trf_shard_cuts_rows(const trf_device_layer *layer) { return layer->shard.rows != layer->view.rows; }
static inline int trf_shard_cuts_cols(const trf_device_layer *layer) { return layer->shard.cols != layer->view.cols; }

/* These two are the checks of all calls that decode a layer: first of `as`, then of the device memory for so many
 * decoded rows. `alignment` is what weights needs. */
trf_status trf_check_decode_as(const trf_device_layer *layer, trf_decode_as as, trf_error *err);
trf_status trf_check_decode_target(const trf_layer_info *info, trf_decode_as as, uint64_t rows, const void *weights,
                                   uint64_t weights_bytes, uint64_t alignment, trf_error *err);
uint64_t trf_decoded_weight_bytes_of_info(const trf_layer_info *info, trf_decode_as as);

#endif
