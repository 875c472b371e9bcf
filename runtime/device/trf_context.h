/* SPDX-License-Identifier: Apache-2.0 */
/* The inside of trf_context: a device, which is the CPU or a GPU, and the operations that it has. */
#ifndef TRF_CONTEXT_H
#define TRF_CONTEXT_H

#include "transfuse/device_memory.h"
#include "transfuse/tuning.h"
#include "trf_device_limits.h"
#include "trf_error.h"
#include "trf_layout.h"
#include "trf_product.h"

/* Describes a copy of rows of `width` bytes within device memory. */
typedef struct trf_row_copy {
    void *to;
    uint64_t to_pitch;
    const void *from; /* NULL: zeros */
    uint64_t from_pitch, width, rows;
} trf_row_copy;

/* A product to be timed, and device memory of twice the context's cache_bytes for copies of its layer. */
typedef struct trf_timed_product {
    const trf_plan *plan;
    const trf_operands *operands;
    void *workspace, *copies;
    /* Computes the product. It is trf_linear, which the device's operations do not know. */
    trf_status (*multiply)(const trf_plan *plan, const trf_operands *operands, void *workspace, trf_stream stream,
                           trf_error *err);
} trf_timed_product;

#define TRF_MAX_TIMED_REPEATS 32

/* What a device does. What its layouts do is in trf_layout_ops. The public functions have already checked the arguments
 * and read the structs that callers fill. */
typedef struct trf_device_ops {
    void (*destroy)(trf_context *context);
    uint32_t alignment; /* of buffers and directories in the device's memory */
    /* Opens the feed of a blob in the device's memory, which has this alignment. The blob must have been written. */
    trf_status (*open_device_blob)(const trf_context *context, const void *blob, uint64_t blob_bytes,
                                   const trf_load_options *options, struct trf_layer_feed *feed, trf_error *err);
    const trf_layout_ops *const *layouts; /* the device's layouts; NULL follows the last one */
    /* Applies the epilogue to the sums and rounds them to y. */
    trf_status (*round_sums)(const trf_context *context, const trf_sums *sums, const trf_epilogue *epilogue,
                             trf_stream stream, trf_error *err);
    /* Times `repeats` calls of a product, or of several in a row, and gives the microseconds of one call. On a GPU no
     * cache holds the weights. */
    trf_status (*time)(const trf_timed_product *product, uint32_t repeats, double *microseconds, trf_error *err);
    uint32_t timed_repeats; /* how often a tuning wants a product timed, TRF_MAX_TIMED_REPEATS at most */
    /* Device memory: *memory is 256-byte aligned. Copies are complete when they return. */
    trf_status (*allocate)(const trf_context *context, uint64_t bytes, void **memory, trf_error *err);
    void (*release)(const trf_context *context, void *memory);
    trf_status (*upload)(const trf_context *context, void *to, const void *from_host, uint64_t bytes, trf_error *err);
    trf_status (*download)(const trf_context *context, void *to_host, const void *from, uint64_t bytes, trf_error *err);
    trf_status (*copy_rows)(const trf_context *context, const trf_row_copy *copy, trf_stream stream, trf_error *err);
    /* Adds the checksum of what follows the head of a layout's buffer to the zeros that the head has for it
     * (trf_data_checksum.h). buffer: in the device's memory, complete but for that. The checksum is there when the call
     * returns. */
    trf_status (*add_data_checksum)(const trf_context *context, void *buffer, uint64_t buffer_bytes, trf_error *err);
    const struct trf_stack_ops *stack; /* trf_stack.h */
    /* Groups (trf_layer_group.h). NULL means that their layers run one after another, as each would alone. */
    const struct trf_group_ops *groups;
} trf_device_ops;

struct trf_context {
    const trf_device_ops *ops;
    int device; /* CUDA ordinal, or TRF_DEVICE_CPU */
    char name[256];
    int threads;              /* CPU: the argument of trf_thread_count */
    trf_tuning *tuning;       /* the context's copy, or NULL */
    uint64_t cache_bytes;     /* of a GPU's L2 cache; 0 on the CPU */
    trf_device_limits limits; /* of a GPU, as all that follows */
    struct trf_gemm *gemm;
    struct trf_staging *staging;               /* layers are loaded through it ... */
    struct trf_cuda_copier *copier;            /* ... and this copies them */
    struct trf_load_scratches *load_scratches; /* of loads and conversions to other layouts */
};

#endif
