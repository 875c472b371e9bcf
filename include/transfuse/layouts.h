/* SPDX-License-Identifier: Apache-2.0 */
/* Which layout each layer of a model should have: coded ones take the least memory, packed ones are mostly the fastest
 * for small batches, plain ones for large batches. From the layers, the device memory that they may take and the
 * batches to expect, a choice is made whose expected time is the least. It needs no device. Conventions: transfuse.h.
 *
 * The times are those that the library brings along, of an H100 and an H200, and those of a tuning. They are of
 * products one after the other, without early launches, so that they compare layouts; a model's step takes longer. */
#ifndef TRANSFUSE_LAYOUTS_H
#define TRANSFUSE_LAYOUTS_H

#include "tuning.h"

#ifdef __cplusplus
extern "C" {
#endif

enum {
    TRF_LAYOUTS = 3 /* how many there are to choose from: the values of trf_layout below it */
};

/* A layer, or the experts of a layer, which have one layout. */
typedef struct trf_layout_layer {
    size_t struct_bytes;
    const char *name; /* for people, and NULL is none; the caller's, or the trf_layout_set's */
    trf_codec codec;  /* that it has, or would have, when it is coded; default BF16 */
    uint32_t rows, cols;
    /* 0: no experts. Otherwise rows are those of all matrices of one expert together, and every token has `routed`
     * experts, at most `experts`; each expert is taken to be as likely as any other. */
    uint32_t experts, routed;
    int is_lookup;               /* an embedding that no product is made with: its time is 0 */
    unsigned layouts;            /* that it may have: bits 1 << trf_layout, at least one */
    uint64_t bytes[TRF_LAYOUTS]; /* of device memory that it takes in each layout; experts: all together */
    /* Device memory that all coded layers share for products of more than TRF_FUSED_MAX_M rows of x: the largest of
     * these numbers is set aside, once, if a layer becomes coded and a batch is above that. */
    uint64_t coded_workspace_bytes;
    int packed_is_fp8; /* the layout PACKED gives PACKED8, of all experts, whose bytes and times are meant then */
} trf_layout_layer;

TRF_API void trf_layout_layer_init(trf_layout_layer *layer);

/* What to choose for. The defaults are no memory, a batch of 1, and the times of an H200. */
typedef struct trf_layouts_options {
    size_t struct_bytes;
    uint64_t memory_bytes; /* that the layers, and what coded ones share, may take on one device */
    /* Rows of x, [num_batches], each 1 to 2^20; NULL: 1 alone. shares, [num_batches], are above 0: how often a step has
     * each of them, in any unit; NULL: equally often. Both are read during the call. */
    const uint32_t *batches;
    const double *shares;
    uint32_t num_batches;
    /* The GPU's name, as trf_context_info has it, or a part of it such as "H100". NULL is the tuning's, or the H200's.
     * A GPU of another name has the H200's times. */
    const char *card;
    /* Times that were measured on the GPU, or NULL; the name of the device that they were measured on has to be `card`,
     * or to have it as a part. A layer whose codec and layout it has takes those of the layer that is the nearest in
     * shape; layouts that it lacks take their time by the ratio of layouts on the card above. Experts take the card's
     * times. */
    const trf_tuning *tuning;
} trf_layouts_options;

TRF_API void trf_layouts_options_init(trf_layouts_options *options);

/* What a choice comes to. Times are microseconds of a step: the products of all layers, expected over the batches. */
typedef struct trf_layouts_choice {
    uint64_t memory_bytes; /* of the layers, and of what coded ones share: options->memory_bytes at most */
    double microseconds;
    double least_microseconds;  /* no choice within the memory takes less, by these times */
    double plain_microseconds;  /* of every layer in the layout PLAIN, whether it may have it, and fits, or not */
    double one_gb_microseconds; /* that 10^9 more bytes of memory would save: 0 or more */
    uint64_t least_bytes;       /* the smallest memory_bytes for which there is a choice */
    const char *card;           /* whose times were taken where no tuning has any, such as "NVIDIA H200"; static */
    int is_own_card;            /* whether that is the GPU that the options name; 1 if they name none */
} trf_layouts_choice;

/* Chooses a layout for each of the layers, an array [num_layers] whose elements have one struct_bytes. layouts: an
 * array [num_layers] for the result, which goes into trf_load_options.layout. choice may be NULL. By the times that are
 * known the choice is within 0.05 % of the least time, or as near as choice->least_microseconds says where a search
 * would be too long. It is a function of its arguments alone. Errors: TRF_ERR_ARGUMENT (a layer without rows, layouts
 * or bytes, layers of more than 2^62 bytes together, a share that is no positive number); TRF_ERR_DEVICE for a tuning
 * of another device than options->card; TRF_ERR_MEMORY if the layers do not fit in any layout: the message says how
 * much is missing. */
TRF_API trf_status trf_layouts_choose(const trf_layout_layer *layers, uint32_t num_layers,
                                      const trf_layouts_options *options, trf_layout *layouts,
                                      trf_layouts_choice *choice, trf_error *err);

/* Finds the expected time of a layer in a layout, which it need not be allowed: what trf_layouts_choose counts. Errors:
 * TRF_ERR_ARGUMENT, TRF_ERR_DEVICE, likewise. */
TRF_API trf_status trf_layouts_estimate(const trf_layout_layer *layer, trf_layout layout,
                                        const trf_layouts_options *options, double *microseconds, trf_error *err);

/* ---- the layers of a checkpoint ---- */

typedef struct trf_layout_set_options {
    size_t struct_bytes;
    uint32_t gpus; /* that share every layer by tensor parallelism, 1 to 1024; default 1 */
    /* Tokens of all requests together that the KV cache has to hold in BF16; 0: no cache is counted. Layers with a
     * window are counted as if they kept every token, so that the cache may be smaller than this says, never larger. */
    uint64_t context_tokens;
} trf_layout_set_options;

TRF_API void trf_layout_set_options_init(trf_layout_set_options *options);

/* The layers of a checkpoint that may have several layouts, or are coded, and the bytes of the rest. */
typedef struct trf_layout_set trf_layout_set;

typedef struct trf_layout_set_info {
    uint32_t num_layers;
    uint64_t tensors;     /* of the checkpoint that the layers are made of */
    uint64_t other_bytes; /* of all other tensors, on each GPU, as they lie in the checkpoint */
    uint64_t cache_bytes; /* of the KV cache on each GPU */
    int is_estimated;     /* the checkpoint is not compressed: what coded layers take is an estimate */
} trf_layout_set_info;

/* Reads which layers a checkpoint has. Compressed tensors are layers; where nothing is compressed, those that
 * trf_compress_checkpoint would compress by default and that are BF16, F16, or FP8 with scales. What these would take
 * when they are coded is estimated from samples of their weights, and counted 2 % larger; the samples also show BF16
 * that was FP8. All tensors below ".experts" of a layer are one trf_layout_layer, of which gate and up, and down, are
 * packed as FP8 if each matrix can be. Packed layers count as loading makes them; but FP8 layers that have too many
 * weights that are no codes times scales become packed BF16, which needs all weights to know. With several GPUs each
 * GPU has its part of each layer: of the columns where a name says that the layer is the second of two, such as o_proj
 * and down_proj, of the rows otherwise. options may be NULL for the defaults.
 * Errors: those of a malformed checkpoint; TRF_ERR_UNSUPPORTED (a pipeline of several models; config.json does not say,
 * or not in a way that is understood, what a KV cache keeps of a token, or how many experts a token has). */
TRF_API trf_status trf_layout_set_read(trf_checkpoint *checkpoint, const trf_layout_set_options *options,
                                       trf_layout_set **set, trf_error *err);
TRF_API void trf_layout_set_free(trf_layout_set *set);
TRF_API void trf_layout_set_get_info(const trf_layout_set *set, trf_layout_set_info *info);

/* @return the layers, [num_layers], which are the set's. */
TRF_API const trf_layout_layer *trf_layout_set_layers(const trf_layout_set *set);

/* @return the index of the layer that a tensor of the checkpoint belongs to, by its source's name; UINT32_MAX if it is
 * none's. */
TRF_API uint32_t trf_layout_set_find(const trf_layout_set *set, const char *tensor);

#ifdef __cplusplus
}
#endif
#endif
