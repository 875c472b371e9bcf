/* SPDX-License-Identifier: Apache-2.0 */
#include "gpu_products.h"

#include "transfuse/tuning.h"
#include "trf_number_formats.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- inputs ---- */

static gpu_input upload_input(uint32_t m, uint32_t cols, double *values) {
    const size_t count = (size_t)m * cols;
    gpu_input input = {.m = m, .cols = cols, .values = values};
    uint16_t *bits = gpu_malloc(count * 2);
    for (size_t i = 0; i < count; i++)
        bits[i] = trf_f64_to_bf16(values[i]);
    input.bf16 = gpu_memory_copy_of(bits, count * 2);
    for (size_t i = 0; i < count; i++)
        bits[i] = trf_f64_to_f16(values[i]);
    input.f16 = gpu_memory_copy_of(bits, count * 2);
    free(bits);
    return input;
}

gpu_input gpu_input_normal(test_rng *rng, uint32_t m, uint32_t cols) {
    const size_t count = (size_t)m * cols;
    double *values = gpu_malloc(count * sizeof *values);
    for (size_t i = 0; i < count; i++) {
        double value = gpu_round(test_normal(rng), TRF_DTYPE_BF16);
        values[i] = fabs(value) < 0x1p-14 ? 0x1p-14 : value; /* down to there F16 has all of BF16's bits */
    }
    return upload_input(m, cols, values);
}

gpu_input gpu_input_one_hot(uint32_t m, uint32_t cols, uint32_t first) {
    double *values = gpu_malloc((size_t)m * cols * sizeof *values);
    for (size_t i = 0; i < (size_t)m * cols; i++)
        values[i] = i % cols == first + i / cols;
    return upload_input(m, cols, values);
}

void gpu_input_free(gpu_input *input) {
    gpu_memory_free(&input->bf16);
    gpu_memory_free(&input->f16);
    free(input->values);
}

const void *gpu_input_on_device(const gpu_input *input, trf_dtype dtype) {
    return dtype == TRF_DTYPE_BF16 ? input->bf16.at : input->f16.at;
}

/* ---- calls ---- */

void gpu_check_same_bits(const gpu_product *product, const gpu_input *input, int busy) {
    const int runs = test_quick() ? 20 : 1000;
    char *first = gpu_malloc(product->y.bytes), *again = gpu_malloc(product->y.bytes);
    gpu_disturbance other = gpu_disturbance_make();
    gpu_product beside;
    gpu_product_make(&beside, product->layer, product->info.m, product->info.x_dtype, TRF_DTYPE_F32, TRF_PATH_AUTO);
    for (int i = 0; i <= runs; i++) {
        gpu_memory_poison(&product->y);
        for (int k = 0; k < 3; k++) {
            if (k == 1) {
                gpu_product_queue(product, input, NULL);
            } else if (busy) {
                gpu_disturb(&other);
                gpu_product_queue(&beside, input, other.stream);
            }
        }
        gpu_memory_read(&product->y, i ? again : first);
        if (i && memcmp(first, again, product->y.bytes) != 0)
            ck_abort_msg("%s: run %d gives other bits", product->name, i);
    }
    gpu_product_free(&beside);
    gpu_disturbance_free(&other);
    free(first);
    free(again);
}

void gpu_check_graph(gpu_product *product, const gpu_input *input) {
    const gpu_layer *layer = product->layer;
    gpu_memory weights = gpu_memory_make((uint64_t)layer->info.rows * layer->info.cols * 2);
    char *decoded = gpu_malloc(weights.bytes), *direct = gpu_malloc(product->y.bytes),
         *replayed = gpu_malloc(product->y.bytes);
    cudaStream_t stream;
    cudaGraph_t graph;
    cudaGraphExec_t executable;
    trf_error err = {0};
    gpu_product_run(product, input, direct);
    CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    CUDA(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
    gpu_product_queue(product, input, stream);
    gpu_check(trf_device_layer_decode(layer->device, TRF_DECODE_SOURCE, weights.at, weights.bytes, stream, &err),
              TRF_OK, &err, layer->name);
    gpu_product_queue(product, input, stream);
    CUDA(cudaStreamEndCapture(stream, &graph));
    CUDA(cudaGraphInstantiate(&executable, graph, 0));
    for (int i = 0; i < 5; i++) {
        gpu_memory_poison(&product->y);
        gpu_memory_poison(&weights);
        CUDA(cudaGraphLaunch(executable, stream));
        gpu_memory_read(&product->y, replayed);
        gpu_memory_read(&weights, decoded);
        ck_assert_mem_eq(replayed, direct, product->y.bytes);
        ck_assert_mem_eq(decoded, layer->elements, weights.bytes);
    }
    CUDA(cudaGraphExecDestroy(executable));
    CUDA(cudaGraphDestroy(graph));
    CUDA(cudaStreamDestroy(stream));
    gpu_memory_free(&weights);
    free(decoded);
    free(direct);
    free(replayed);
}

int gpu_takes(const gpu_layer *layer, trf_dtype x_dtype) {
    return !(layer->info.codec == TRF_CODEC_BF16 && x_dtype == TRF_DTYPE_F16) &&
           !(layer->info.codec == TRF_CODEC_FP16 && x_dtype == TRF_DTYPE_BF16);
}

trf_status gpu_product_make(gpu_product *product, const gpu_layer *layer, uint32_t m, trf_dtype x_dtype,
                            trf_dtype y_dtype, trf_path path) {
    const trf_plan_options options = test_plan_options(m, x_dtype, y_dtype, path);
    return gpu_product_make_as(product, layer, &options);
}

trf_status gpu_product_make_as(gpu_product *product, const gpu_layer *layer, const trf_plan_options *options) {
    const trf_path path = options->path;
    const uint64_t y_stride = options->y_stride ? options->y_stride : layer->info.rows;
    trf_error err = {0};
    memset(product, 0, sizeof *product);
    product->layer = layer;
    snprintf(product->name, sizeof product->name, "%s: %s, m %u, x %s, y %s", layer->name, trf_path_name(path),
             options->m, trf_dtype_name(options->x_dtype), trf_dtype_name(options->y_dtype));
    trf_status status = trf_plan_create(layer->device, options, &product->plan, &err);
    if (status == TRF_ERR_UNSUPPORTED && (path == TRF_PATH_FUSED || path == TRF_PATH_WIDE))
        return status;
    gpu_check(status, TRF_OK, &err, product->name);
    product->info = test_plan_info(product->plan);
    const trf_plan_info *info = &product->info;
    if (info->m != options->m || info->x_dtype != options->x_dtype || info->y_dtype != options->y_dtype ||
        (path == TRF_PATH_AUTO ? info->path == TRF_PATH_AUTO : info->path != path) ||
        strcmp(info->path_name, trf_path_name(info->path)) != 0)
        ck_abort_msg("%s: the plan is for something else", product->name);
    if ((info->path == TRF_PATH_FUSED) != !info->reason)
        ck_abort_msg("%s: path %d, reason %s", product->name, (int)info->path, info->reason ? info->reason : "none");
    product->y = gpu_memory_make(options->m * y_stride * trf_dtype_bytes(options->y_dtype));
    product->workspace = gpu_memory_make(info->workspace_bytes);
    return TRF_OK;
}

void *gpu_product_workspace(const gpu_product *product) {
    return product->info.workspace_bytes ? product->workspace.at : NULL;
}

void gpu_product_free(gpu_product *product) {
    trf_plan_destroy(product->plan);
    gpu_memory_free(&product->y);
    gpu_memory_free(&product->workspace);
}

void gpu_product_queue(const gpu_product *product, const gpu_input *input, trf_stream stream) {
    trf_error err = {0};
    gpu_check(test_multiply(product->plan, gpu_input_on_device(input, product->info.x_dtype), product->y.at,
                            gpu_product_workspace(product), stream, &err),
              TRF_OK, &err, product->name);
}

/* Checks the workspace's guard without reading its contents. */
static void check_workspace_guard(const gpu_product *product) {
    gpu_memory tail = {(char *)product->workspace.at + product->workspace.bytes, 0, product->workspace.guard_bytes};
    char nothing;
    gpu_memory_read(&tail, &nothing);
}

void gpu_product_run(gpu_product *product, const gpu_input *input, void *y) {
    gpu_memory_poison(&product->workspace);
    gpu_product_run_on(product, input, y);
}

void gpu_product_run_on(gpu_product *product, const gpu_input *input, void *y) {
    gpu_memory_poison(&product->y);
    gpu_product_queue(product, input, NULL);
    gpu_memory_read(&product->y, y);
    check_workspace_guard(product);
}

/* ---- the product in F64 ---- */

static uint32_t *choose_rows(test_rng *rng, uint32_t rows, uint32_t max_rows, uint32_t *count) {
    *count = rows < max_rows ? rows : max_rows;
    uint32_t *list = gpu_malloc(*count * sizeof *list);
    for (uint32_t i = 0; i < *count; i++)
        list[i] = rows <= max_rows        ? i
                  : i < max_rows / 4      ? i
                  : i >= max_rows * 3 / 4 ? rows - (max_rows - i)
                                          : test_below(rng, rows);
    return list;
}

gpu_reference gpu_reference_make(test_rng *rng, const gpu_layer *layer, const gpu_input *input, trf_dtype weights_as,
                                 uint32_t max_rows) {
    const uint32_t m = input->m, cols = input->cols;
    gpu_reference r = {.m = m};
    r.rows = choose_rows(rng, layer->info.rows, max_rows, &r.num_rows);
    r.sums = gpu_malloc((size_t)r.num_rows * m * sizeof *r.sums);
    r.magnitudes = gpu_malloc((size_t)r.num_rows * m * sizeof *r.magnitudes);
    memset(r.sums, 0, (size_t)r.num_rows * m * sizeof *r.sums);
    memset(r.magnitudes, 0, (size_t)r.num_rows * m * sizeof *r.magnitudes);
    double *x = gpu_malloc((size_t)m * cols * sizeof *x); /* transposed: compilers vectorize over m */
    for (size_t i = 0; i < (size_t)m * cols; i++)
        x[i % cols * m + i / cols] = input->values[i];
    for (uint32_t n = 0; n < r.num_rows; n++) {
        double *sums = r.sums + (size_t)n * m, *magnitudes = r.magnitudes + (size_t)n * m;
        for (uint32_t k = 0; k < cols; k++) {
            double w = gpu_layer_weight(layer, r.rows[n], k), magnitude;
            w = weights_as == TRF_DTYPE_NONE ? w : gpu_round(w, weights_as);
            magnitude = fabs(w);
            const double *x_k = x + (size_t)k * m;
            for (uint32_t i = 0; i < m; i++) {
                sums[i] += w * x_k[i];
                magnitudes[i] += magnitude * fabs(x_k[i]);
            }
        }
    }
    free(x);
    return r;
}

void gpu_reference_free(gpu_reference *reference) {
    free(reference->rows);
    free(reference->sums);
    free(reference->magnitudes);
}

/* The error that F32 accumulation and the rounding of y may have. magnitude: S = sum |w x|.
 *
 * Every w x is exact in F32 (11 by 11 bits at most). A sum in any order rounds at most K times, each time by no more
 * than 2u of the partial sum, u = 2^-24; tensor cores truncate, hence the 2. For x of random sign a partial sum is
 * about S/sqrt(K), times 1.25 for normal x and w. If all roundings had one sign, they would come to 2u K 1.25 S/sqrt(K)
 * = 2.5 u sqrt(K) S, so 4 u sqrt(K) S is allowed for them. For short sums, one more rounding by a scale and the sum of
 * partial sums, 8 u S is added. A weight of average size, S/K, that is missing or wrong shows as long as K < 2^14. */
double gpu_bound_of_sum(double magnitude, uint32_t cols) { return 0x1p-24 * (8 + 4 * sqrt(cols)) * magnitude; }

double gpu_bound_of_rounding(double y, trf_dtype dtype) {
    if (dtype == TRF_DTYPE_BF16)
        return 0x1p-8 * fabs(y);
    return dtype == TRF_DTYPE_F16 ? 0x1p-11 * fabs(y) + 0x1p-25 : 0;
}

static double bound_of(double sum, double magnitude, uint32_t cols, trf_dtype y_dtype) {
    const double bound = gpu_bound_of_sum(magnitude, cols);
    return bound + gpu_bound_of_rounding(fabs(sum) + bound, y_dtype);
}

void gpu_check_product(const gpu_product *product, const gpu_reference *reference, const void *y) {
    const uint32_t rows = product->layer->info.rows, cols = product->layer->info.cols;
    for (uint32_t n = 0; n < reference->num_rows; n++)
        for (uint32_t i = 0; i < product->info.m; i++) {
            double sum = reference->sums[(size_t)n * reference->m + i];
            double magnitude = reference->magnitudes[(size_t)n * reference->m + i];
            double found = gpu_to_double(y, product->info.y_dtype, (size_t)i * rows + reference->rows[n]);
            int good = isnan(sum)   ? isnan(found)
                       : isinf(sum) ? found == sum
                                    : fabs(found - sum) <= bound_of(sum, magnitude, cols, product->info.y_dtype);
            if (!good)
                ck_abort_msg("%s: y[%u][%u] = %g, not %g; off by %g of the bound", product->name, i, reference->rows[n],
                             found, sum, fabs(found - sum) / bound_of(sum, magnitude, cols, product->info.y_dtype));
        }
}
