/* What stands behind trf_context: a device: the CPU or a GPU. */
#ifndef TRF_CONTEXT_H
#define TRF_CONTEXT_H

#include "trf_epilogue.h"
#include "trf_fused_launch.h"
#include "trf_gemm.h"

enum {
    TRF_DEVICE_ALIGNMENT = 256 /* of device memory, and of what is laid out in one allocation */
};

static inline uint64_t trf_device_align(uint64_t bytes) {
    return (bytes + TRF_DEVICE_ALIGNMENT - 1) & ~(uint64_t)(TRF_DEVICE_ALIGNMENT - 1);
}

struct trf_blob_view;
struct trf_layer_source;
struct trf_row_request;

/* A product to be timed: arguments of trf_linear, and device memory for copies of the layer, of twice the context's
 * cache_bytes. */
typedef struct trf_timed_product {
    const trf_device_layer *layer;
    const trf_linear_plan *plan;
    const void *x;
    void *y, *workspace, *copies;
} trf_timed_product;

#define TRF_MAX_TIMED_REPEATS 32

/* What a device does; runtime/trf_device.c has checked the arguments. */
typedef struct trf_device_ops {
    void (*destroy)(trf_context *context);
    /* Opens the source of a blob in the device's memory, 256-byte aligned, once that is written. */
    trf_status (*open_device_blob)(const trf_context *context, const void *blob, uint64_t blob_bytes,
                                   const trf_load_options *options, struct trf_layer_source *source, trf_error *err);
    /* What memory a layer takes. Errors: TRF_ERR_UNSUPPORTED. */
    trf_status (*measure_layer)(const struct trf_blob_view *view, trf_layer_size *size, trf_error *err);
    /* Fills a layer whose context, serial and info are set. memory: the caller's, large enough, whose blob may be the
     * source's own; NULL for what the library is to allocate: both parts, or the directory. */
    trf_status (*fill_layer)(trf_device_layer *made, struct trf_layer_source *source, const trf_layer_memory *memory,
                             trf_error *err);
    void (*destroy_layer)(trf_device_layer *layer);
    trf_status (*check_layer)(const trf_device_layer *layer, trf_error *err);
    trf_status (*decode)(const trf_device_layer *layer, trf_decode_as as, void *weights, trf_stream stream,
                         trf_error *err);
    trf_status (*decode_rows)(const trf_device_layer *layer, const struct trf_row_request *request, trf_stream stream,
                              trf_error *err);
    /* Sets all of the plan but m and types, which are set. path: what was asked for. The choice does not depend on y's
     * type: a shard's product with an epilogue repeats without it, to F32, in epilogue_workspace_bytes. */
    trf_status (*plan)(const trf_device_layer *layer, trf_path path, trf_linear_plan *plan, trf_error *err);
    /* epilogue: NULL, or with something in it. plan->choice[TRF_TWO_STEP_DECODED]: whether decode_ahead has been
     * called. plan->workspace_bytes: what there is, with an epilogue plan->epilogue_workspace_bytes at least. */
    trf_status (*linear)(const trf_device_layer *layer, const trf_linear_plan *plan, const void *x, void *y,
                         const trf_epilogue *epilogue, void *workspace, trf_stream stream, trf_error *err);
    /* The first step of a TWO_STEP product; does nothing for others. NULL: there are no others. */
    trf_status (*decode_ahead)(const trf_device_layer *layer, const trf_linear_plan *plan, void *workspace,
                               trf_stream stream, trf_error *err);
    /* y = the sums with an epilogue, rounded. */
    trf_status (*apply_epilogue)(const trf_context *context, const trf_sums *sums, trf_dtype y_dtype, void *y,
                                 const trf_epilogue *epilogue, trf_stream stream, trf_error *err);
    /* Times `repeats` calls of trf_linear or of several in a row, in microseconds of one; on a GPU the weights are in
     * no cache. */
    trf_status (*time)(const trf_timed_product *product, uint32_t repeats, double *microseconds, trf_error *err);
    uint32_t timed_repeats; /* that a tuning wants, TRF_MAX_TIMED_REPEATS at most */
    /* Device memory: *memory is 256-byte aligned. Copies are complete when they return. */
    trf_status (*allocate)(const trf_context *context, uint64_t bytes, void **memory, trf_error *err);
    void (*release)(const trf_context *context, void *memory);
    trf_status (*upload)(const trf_context *context, void *to, const void *from_host, uint64_t bytes, trf_error *err);
    trf_status (*download)(const trf_context *context, void *to_host, const void *from, uint64_t bytes, trf_error *err);
    /* Rows of `width` bytes within device memory, ordered on `stream`; from NULL: zeros. */
    trf_status (*copy_rows)(const trf_context *context, void *to, uint64_t to_pitch, const void *from,
                            uint64_t from_pitch, uint64_t width, uint64_t rows, trf_stream stream, trf_error *err);
    const struct trf_stack_ops *stack; /* trf_offload.h */
    /* Groups and experts (trf_layer_group.h). NULL where layers run one after another, as they would alone. */
    const struct trf_group_ops *groups;
} trf_device_ops;

struct trf_context {
    const trf_device_ops *ops;
    int device; /* CUDA ordinal, or TRF_DEVICE_CPU */
    char name[256];
    int threads;              /* CPU: as trf_thread_count takes it */
    trf_tuning *tuning;       /* the context's copy, or NULL */
    uint64_t cache_bytes;     /* of a GPU's L2 cache; 0 on the CPU */
    trf_device_limits limits; /* CUDA, as what follows */
    trf_gemm *gemm;
    struct trf_staging *staging;    /* through which layers are loaded ... */
    struct trf_cuda_copier *copier; /* ... and what copies them */
};

#endif
