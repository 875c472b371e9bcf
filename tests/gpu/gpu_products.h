/* SPDX-License-Identifier: Apache-2.0 */
/* Products for the GPU tests: inputs, calls with guarded memory, and the product in F64 that they are compared with. */
#ifndef GPU_PRODUCTS_H
#define GPU_PRODUCTS_H

#include "gpu_layers.h"

/* x[m][cols] of values that BF16 and F16 both hold, so that one product in F64 serves both. */
typedef struct gpu_input {
    uint32_t m, cols;
    double *values;
    gpu_memory bf16, f16;
} gpu_input;

gpu_input gpu_input_normal(test_rng *rng, uint32_t m, uint32_t cols);

/* Makes an x whose row i is 1 in column first + i (if there is one) and 0 elsewhere. */
gpu_input gpu_input_one_hot(uint32_t m, uint32_t cols, uint32_t first);
void gpu_input_free(gpu_input *input);
const void *gpu_input_on_device(const gpu_input *input, trf_dtype dtype);

/* A prepared product with memory of its own. */
typedef struct gpu_product {
    const gpu_layer *layer;
    trf_plan *plan;
    trf_plan_info info; /* of plan */
    gpu_memory y, workspace;
    char name[256];
} gpu_product;

/* Prepares a product. m, types and path are as in trf_plan_options. @return TRF_OK or, if path is FUSED or WIDE,
 * TRF_ERR_UNSUPPORTED with nothing to free; any other status ends the test. */
trf_status gpu_product_make(gpu_product *product, const gpu_layer *layer, uint32_t m, trf_dtype x_dtype,
                            trf_dtype y_dtype, trf_path path);

/* The same with all options that a plan can have. y has options->y_stride elements a row, if that is not 0. */
trf_status gpu_product_make_as(gpu_product *product, const gpu_layer *layer, const trf_plan_options *options);
void gpu_product_free(gpu_product *product);

/* Computes to poisoned memory, with a poisoned workspace, and reads y, an array of info.y_dtype. */
void gpu_product_run(gpu_product *product, const gpu_input *input, void *y);

/* The same, but leaves the workspace as it is. */
void gpu_product_run_on(gpu_product *product, const gpu_input *input, void *y);

/* Only queues the call. */
void gpu_product_queue(const gpu_product *product, const gpu_input *input, trf_stream stream);

/* @return the product's workspace; NULL if the plan needs none. */
void *gpu_product_workspace(const gpu_product *product);

/* Expects the same bits on every one of 1,000 runs, or of 20 if TRF_TEST_QUICK is set. busy: another stream copies, and
 * multiplies by the same layer. */
void gpu_check_same_bits(const gpu_product *product, const gpu_input *input, int busy);

/* Captures two products with a decoding between them once and replays them; expects the bits of direct calls. */
void gpu_check_graph(gpu_product *product, const gpu_input *input);

/* @return whether the codec multiplies x of this type. */
int gpu_takes(const gpu_layer *layer, trf_dtype x_dtype);

/* ---- the product in F64, of some rows of the layer ---- */

typedef struct gpu_reference {
    uint32_t m, num_rows;
    uint32_t *rows;
    double *sums, *magnitudes; /* [num_rows][m]: sum of w x, and of |w x| */
} gpu_reference;

/* weights_as: the type to which weights are rounded before they are multiplied (TWO_STEP), or NONE. The rows are all
 * rows if there are at most max_rows, else the first and last ones and some random ones. */
gpu_reference gpu_reference_make(test_rng *rng, const gpu_layer *layer, const gpu_input *input, trf_dtype weights_as,
                                 uint32_t max_rows);
void gpu_reference_free(gpu_reference *reference);

/* Expects that every y of these rows is near its F64 value, and is NaN or infinite where that is. */
void gpu_check_product(const gpu_product *product, const gpu_reference *reference, const void *y);

/* The error that an F32 sum over so many columns may have, where magnitude is its sum of |w x|; and the error that
 * rounding to y's type adds (the former allows for rounding to F32). */
double gpu_bound_of_sum(double magnitude, uint32_t cols);
double gpu_bound_of_rounding(double y, trf_dtype dtype);

#endif
