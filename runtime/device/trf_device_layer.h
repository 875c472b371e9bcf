/* SPDX-License-Identifier: Apache-2.0 */
/* A layer in a device's memory: the handle of that name in transfuse.h. */
#ifndef TRF_DEVICE_LAYER_H
#define TRF_DEVICE_LAYER_H

#include "transfuse.h"
#include "trf_device_view.h"
#include "trf_error.h"
#include "trf_layer_traits.h"
#include "trf_layout.h"
#include "trf_packed.h"
#include "trf_shard_range.h"

#include <stdatomic.h>

struct trf_device_layer {
    trf_context *context;
    int device;          /* the context's */
    trf_layer_info info; /* rows and cols: the shard's */
    trf_header header;   /* of the blob that it was made of, or of what was loaded of it */
    const trf_layout_ops *layout;
    trf_shard_range shard;
    uint64_t memory_bytes; /* of device memory */
    void *memory;          /* what the library has allocated of it; NULL: all is the caller's, or the stack's */
    atomic_uint num_plans; /* that there are of it */
    /* On the CPU without slabs and fault. Of a layout with a head (trf_layout_head.h) buffer and buffer_bytes are
     * there; rows, cols, codec and source_dtype, and nothing else. */
    trf_device_view view;
    trf_packed_view packed; /* of a packed layer */
    /* A GPU's. */
    trf_layer_traits traits;
    int is_of_stack;          /* its blob need not be there */
    uint64_t directory_bytes; /* its blob is at view.buffer, its directory at view.slabs; 0: of a stack, or not coded */
    /* A coded layer's on the CPU; an offloaded layer's on a GPU: where its blob lies in host memory. */
    trf_layer *host;
    struct trf_cpu_fault *fault;
};

/* A layer as `adopt` wants it (trf_layout_ops); free() undoes it. Errors: TRF_ERR_MEMORY. */
trf_status trf_begin_device_layer(trf_context *context, const trf_layout_ops *layout, trf_device_layer **layer,
                                  trf_error *err);

/* What a layer is made of, in memory: a blob, or the buffer of another layout; of a checkpoint's tensor nothing. */
typedef struct trf_given_buffer {
    const void *at;
    uint64_t bytes;
} trf_given_buffer;

/* Whether the caller's memory for a layer is enough, and in nobody's way. alignment: the device's; in_place:
 * memory->buffer is the given one. Errors: TRF_ERR_ARGUMENT. */
trf_status trf_check_layer_memory(const trf_layer_memory *memory, const trf_layer_size *size,
                                  const trf_given_buffer *given, uint32_t alignment, int in_place, trf_error *err);

/* Sets info, header and shard of a layer of trf_begin_device_layer, as `fill` wants them. view, shard: of what will be
 * loaded. */
void trf_set_device_layer_info(const trf_blob_view *view, const trf_shard_range *shard, trf_device_layer *layer);

/* Whether a shard has tiles of which not all rows, or columns, are meant. */
static inline int trf_shard_cuts_rows(const trf_device_layer *layer) { return layer->shard.rows != layer->view.rows; }
static inline int trf_shard_cuts_cols(const trf_device_layer *layer) { return layer->shard.cols != layer->view.cols; }

/* What calls that decode a layer check: `as`; then memory of the device for so many rows. alignment: of weights. */
trf_status trf_check_decode_as(const trf_device_layer *layer, trf_decode_as as, trf_error *err);
trf_status trf_check_decode_target(const trf_layer_info *info, trf_decode_as as, uint64_t rows, const void *weights,
                                   uint64_t weights_bytes, uint64_t alignment, trf_error *err);
uint64_t trf_decoded_weight_bytes_of_info(const trf_layer_info *info, trf_decode_as as);

#endif
