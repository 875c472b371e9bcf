/* SPDX-License-Identifier: Apache-2.0 */
/* Layers for the GPU tests, of every codec and granularity: on the host and, coded, on the device, with the elements
 * that the CPU decodes. */
#ifndef GPU_LAYERS_H
#define GPU_LAYERS_H

#include "common/test_calls.h"
#include "common/test_weights.h"
#include "gpu_fixture.h"
#include "trf_validate.h"

/* What to encode. */
typedef struct gpu_recipe {
    const char *name;
    trf_dtype dtype;
    trf_codec codec;
    trf_granularity granularity;
    uint32_t scale_group_size;
    double bits;
} gpu_recipe;

enum {
    GPU_RECIPES = 18,
    GPU_FLOAT_RECIPES = 5 /* the first ones */
};
extern const gpu_recipe kGpuRecipes[GPU_RECIPES];

enum {
    GPU_NUM_SLAB_COLS = 2
};
/* The widths that slabs may have. */
extern const uint32_t kGpuSlabCols[GPU_NUM_SLAB_COLS];

typedef struct gpu_shape {
    uint32_t rows, cols;
} gpu_shape;

/* A shape so large that decoding gathers BF16 and F16 weights (trf_decode_slabs.cu) on a GPU with 132 multiprocessors.
 * Each band has a narrow slab at its end. */
gpu_shape gpu_gathered_shape(uint32_t slab_cols);

typedef enum gpu_weight_kind {
    GPU_WEIGHTS_NORMAL,
    GPU_WEIGHTS_FINITE,    /* normal, but one in 50 has any finite bit pattern */
    GPU_WEIGHTS_NONFINITE, /* normal, but one in 5,000 is infinite or not a number (float sources) */
    GPU_WEIGHTS_PATTERNS   /* every bit pattern: exceptions everywhere */
} gpu_weight_kind;

typedef struct gpu_layer {
    char name[160]; /* for messages */
    void *blob;
    uint64_t blob_bytes;
    trf_layer *host;
    trf_device_layer *device;
    trf_layer_info info;
    trf_blob_view view; /* of blob */
    uint16_t *elements; /* [rows][cols], as the CPU decodes them */
} gpu_layer;

/* Makes weights of a recipe's dtype; malloc'd. */
void *gpu_make_weights(test_rng *rng, const gpu_recipe *recipe, gpu_shape shape, gpu_weight_kind kind);

/* Encodes weights of a recipe's dtype. slab_cols: as in trf_encode_options. name: for messages. @return the blob,
 * malloc'd. */
void *gpu_encode_weights(const void *weights, const gpu_recipe *recipe, trf_favor favor, uint32_t slab_cols,
                         gpu_shape shape, const char *name, uint64_t *blob_bytes);

/* Makes such weights and encodes them. */
void *gpu_encode(test_rng *rng, const gpu_recipe *recipe, trf_favor favor, uint32_t slab_cols, gpu_shape shape,
                 gpu_weight_kind kind, const char *name, uint64_t *blob_bytes);

/* The same, and uploads the layer. */
gpu_layer gpu_layer_make(test_rng *rng, const gpu_recipe *recipe, trf_favor favor, uint32_t slab_cols, gpu_shape shape,
                         gpu_weight_kind kind);

/* Makes a layer of a blob, 16-byte aligned and malloc'd, which it then owns. */
gpu_layer gpu_layer_of_blob(const char *name, void *blob, uint64_t blob_bytes);

/* Makes a layer of the golden file `name`. */
gpu_layer gpu_layer_of_golden(const char *name);
void gpu_layer_free(gpu_layer *layer);

/* The scale of a weight, 1 without scales. */
float gpu_layer_scale(const gpu_layer *layer, uint32_t row, uint32_t col);

/* The weight's value, scaled but not rounded. */
double gpu_layer_weight(const gpu_layer *layer, uint32_t row, uint32_t col);

/* Widens element `index` of an array of 16- or 32-bit floats. */
double gpu_to_double(const void *values, trf_dtype dtype, size_t index);
double gpu_round(double value, trf_dtype dtype);

#endif
