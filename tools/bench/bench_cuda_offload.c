/* transfuse bench --mode offload: passes through the matrices of a transformer of 8 G parameters (or through --layers,
 * as one block of 32) that lie in pinned host memory, compressed (trf_stack) and plain (bench_cuda_offload_dense.h),
 * with no layer in device memory but those on their way, and with a budget. Weights are drawn once for each shape;
 * every layer has its own copy in host memory. */
#include "bench_cuda_modes.h"

#include "bench_cuda_cublaslt.h"
#include "bench_cuda_offload_dense.h"
#include "cli_cuda.h"
#include "cli_report.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum {
    BLOCKS = 32,
    MAX_MATRICES = CLI_MAX_LIST,
    TIMED_PASSES = 2, /* in a row, after one that is not timed: so a turn begins and ends with full buffers */
    ALIGNMENT = 256
};
static const cli_shape kBlock[] = {{4096, 4096},  {1024, 4096},  {1024, 4096}, {4096, 4096},
                                   {14336, 4096}, {14336, 4096}, {4096, 14336}};
static const double kSigma = 0.02;

/* One shape: its weights in every form, and what its products are without any copying. */
typedef struct offload_matrix {
    cli_shape shape;
    void *blob;
    trf_layer *host;
    trf_device_layer *device;
    void *dense; /* device */
    bench_cublaslt_product *product;
    void *y_compressed, *y_dense; /* host, [batch][rows] BF16 */
} offload_matrix;

typedef struct offload_bench {
    bench_cuda *cuda;
    cudaStream_t stream;
    uint32_t batch;
    offload_matrix matrices[MAX_MATRICES];
    uint32_t num_matrices, per_block, count;
    uint32_t block[CLI_MAX_LIST]; /* indices into matrices */
    void *pinned[BLOCKS];         /* dense weights of a block's layers, one behind the other */
    uint64_t block_bytes, weights;
    void **images; /* [count], into pinned */
    uint64_t *image_bytes;
    trf_linear_plan *plans; /* [count], of the stack's layers */
    uint64_t *y_offsets;
    uint64_t y_bytes, workspace_bytes;
    void *x, *y, *workspace; /* device */
    trf_stack *stack;
    offload_dense *dense;
    cudaEvent_t begin, end;
} offload_bench;

static int report(const trf_error *err) {
    cli_report_error(err);
    return -1;
}

static uint64_t align(uint64_t bytes) { return (bytes + ALIGNMENT - 1) & ~(uint64_t)(ALIGNMENT - 1); }

static offload_matrix *matrix_of(offload_bench *b, uint32_t layer) {
    return &b->matrices[b->block[layer % b->per_block]];
}

static uint64_t dense_bytes(const offload_matrix *matrix) { return 2ull * matrix->shape.rows * matrix->shape.cols; }

/* ---- weights ---- */

/* Lists the block's layers and their matrices. */
static void list_matrices(offload_bench *b, const cli_options *options) {
    const cli_shape *shapes = options->num_layers ? options->layers : kBlock;
    b->per_block = options->num_layers ? (uint32_t)options->num_layers : sizeof kBlock / sizeof kBlock[0];
    b->count = BLOCKS * b->per_block;
    for (uint32_t i = 0; i < b->per_block; i++) {
        uint32_t k = 0;
        while (k < b->num_matrices &&
               (b->matrices[k].shape.rows != shapes[i].rows || b->matrices[k].shape.cols != shapes[i].cols))
            k++;
        if (k == b->num_matrices)
            b->matrices[b->num_matrices++].shape = shapes[i];
        b->block[i] = k;
        b->block_bytes += align(dense_bytes(&b->matrices[k]));
        b->weights += (uint64_t)BLOCKS * shapes[i].rows * shapes[i].cols;
    }
}

static int make_matrix(offload_bench *b, offload_matrix *matrix, const float *drawn, void *source) {
    const cli_options *options = bench_cuda_log_of(b->cuda)->options;
    trf_encode_options encode;
    trf_error err = {0};
    uint64_t blob_bytes;
    trf_encode_options_init(&encode);
    encode.threads = options->threads;
    encode.favor = options->has_favor ? options->favor : TRF_FAVOR_SPEED;
    bench_make_source(drawn, matrix->shape, kSigma, TRF_DTYPE_BF16, source);
    if (trf_encode_layer(source, TRF_DTYPE_BF16, matrix->shape.rows, matrix->shape.cols, &encode, &matrix->blob,
                         &blob_bytes, NULL, &err) ||
        trf_layer_from_memory(matrix->blob, blob_bytes, &matrix->host, &err) ||
        trf_device_layer_create(bench_cuda_context_of(b->cuda), matrix->host, &matrix->device, &err))
        return report(&err);
    matrix->dense = cli_cuda_alloc(dense_bytes(matrix));
    matrix->product = bench_cublaslt_product_make(bench_cuda_lt_of(b->cuda), matrix->shape.rows, matrix->shape.cols,
                                                  b->batch, TRF_DTYPE_BF16, TRF_DTYPE_BF16);
    if (!matrix->dense || !matrix->product)
        return -1;
    return cli_cuda_check(cudaMemcpy(matrix->dense, source, dense_bytes(matrix), cudaMemcpyHostToDevice),
                          "bench: weights");
}

static int make_matrices(offload_bench *b) {
    uint64_t max_bytes = 0;
    for (uint32_t k = 0; k < b->num_matrices; k++)
        max_bytes = dense_bytes(&b->matrices[k]) > max_bytes ? dense_bytes(&b->matrices[k]) : max_bytes;
    float *drawn = malloc(2 * max_bytes);
    void *source = malloc(max_bytes);
    int failed = !drawn || !source;
    if (failed)
        cli_fail(TRF_ERR_MEMORY, "bench: out of memory for weights");
    else
        bench_draw(drawn, max_bytes / 2, 0);
    for (uint32_t k = 0; !failed && k < b->num_matrices; k++)
        failed = make_matrix(b, &b->matrices[k], drawn, source);
    free(drawn);
    free(source);
    return failed;
}

/* Every layer's own plain weights, in one pinned allocation for each block. */
static int pin_dense(offload_bench *b) {
    for (uint32_t i = 0; i < b->count; i++) {
        void **pinned_block = &b->pinned[i / b->per_block];
        if (i % b->per_block == 0 && cli_cuda_check(cudaHostAlloc(pinned_block, b->block_bytes, cudaHostAllocDefault),
                                                    "bench: pinning host memory"))
            return -1;
        const offload_matrix *matrix = matrix_of(b, i);
        b->image_bytes[i] = align(dense_bytes(matrix));
        b->images[i] = i % b->per_block ? (uint8_t *)b->images[i - 1] + b->image_bytes[i - 1] : *pinned_block;
        if (cli_cuda_check(
                cudaMemcpyAsync(b->images[i], matrix->dense, dense_bytes(matrix), cudaMemcpyDeviceToHost, b->stream),
                "bench: plain weights"))
            return -1;
    }
    return cli_cuda_check(cudaStreamSynchronize(b->stream), "bench: plain weights");
}

/* ---- x, y, and what y must be ---- */

static int make_vectors(offload_bench *b) {
    uint64_t cols = 0;
    for (uint32_t i = 0; i < b->count; i++) {
        const cli_shape shape = matrix_of(b, i)->shape;
        cols = shape.cols > cols ? shape.cols : cols;
        b->y_offsets[i] = b->y_bytes;
        b->y_bytes += align(2ull * b->batch * shape.rows);
    }
    const uint64_t n = b->batch * cols;
    float *drawn = malloc(n * sizeof *drawn);
    uint16_t *x = malloc(n * sizeof *x);
    int failed = !drawn || !x;
    if (failed) {
        cli_fail(TRF_ERR_MEMORY, "bench: out of memory for x");
    } else {
        bench_draw(drawn, n, 0);
        bench_make_source(drawn, (cli_shape){b->batch, (uint32_t)cols}, 1, TRF_DTYPE_BF16, x);
        b->x = cli_cuda_alloc(2 * n);
        b->y = cli_cuda_alloc(b->y_bytes);
        failed = !b->x || !b->y || cli_cuda_check(cudaMemcpy(b->x, x, 2 * n, cudaMemcpyHostToDevice), "bench: x");
    }
    free(drawn);
    free(x);
    return failed;
}

static int plan_layer(offload_bench *b, const trf_device_layer *layer, trf_linear_plan *plan) {
    trf_error err = {0};
    if (trf_linear_plan_init(layer, b->batch, TRF_DTYPE_BF16, TRF_DTYPE_BF16, TRF_PATH_AUTO, plan, &err))
        return report(&err);
    if (plan->workspace_bytes > b->workspace_bytes) {
        cudaFree(b->workspace);
        b->workspace_bytes = plan->workspace_bytes;
        b->workspace = cli_cuda_alloc(b->workspace_bytes);
        return b->workspace ? 0 : -1;
    }
    return 0;
}

static int queue_dense(const offload_bench *b, const offload_matrix *matrix, const void *w, void *y) {
    return bench_cublaslt_queue(matrix->product, 0, w, b->x, y, b->stream);
}

/* y of a matrix's weights that lie in device memory. */
static int make_references(offload_bench *b) {
    for (uint32_t k = 0; k < b->num_matrices; k++) {
        offload_matrix *matrix = &b->matrices[k];
        const uint64_t bytes = 2ull * b->batch * matrix->shape.rows;
        trf_linear_plan plan;
        trf_error err = {0};
        matrix->y_compressed = malloc(bytes);
        matrix->y_dense = malloc(bytes);
        if (!matrix->y_compressed || !matrix->y_dense)
            return cli_fail(TRF_ERR_MEMORY, "bench: out of memory for y"), -1;
        if (plan_layer(b, matrix->device, &plan))
            return -1;
        if (trf_linear(matrix->device, &plan, b->x, b->y, b->workspace, b->stream, &err))
            return report(&err);
        if (cli_cuda_check(cudaStreamSynchronize(b->stream), "bench: a product") ||
            cli_cuda_check(cudaMemcpy(matrix->y_compressed, b->y, bytes, cudaMemcpyDeviceToHost), "bench: y") ||
            queue_dense(b, matrix, matrix->dense, b->y) ||
            cli_cuda_check(cudaStreamSynchronize(b->stream), "bench: a product") ||
            cli_cuda_check(cudaMemcpy(matrix->y_dense, b->y, bytes, cudaMemcpyDeviceToHost), "bench: y"))
            return -1;
    }
    return 0;
}

/* ---- passes ---- */

typedef int pass_fn(offload_bench *b);

static void *y_of(const offload_bench *b, uint32_t layer) { return (uint8_t *)b->y + b->y_offsets[layer]; }

static int pass_compressed(offload_bench *b) {
    trf_error err = {0};
    for (uint32_t i = 0; i < b->count; i++)
        if (trf_stack_linear(b->stack, i, &b->plans[i], b->x, y_of(b, i), b->workspace, b->stream, &err))
            return report(&err);
    return 0;
}

static int pass_dense(offload_bench *b) {
    for (uint32_t i = 0; i < b->count; i++) {
        const void *w = offload_dense_begin(b->dense, i, b->stream);
        if (!w || queue_dense(b, matrix_of(b, i), w, y_of(b, i)) || offload_dense_end(b->dense, i, b->stream))
            return -1;
    }
    return 0;
}

/* The block's plain weights to device memory, which is what the link can do. */
static int pass_copy(offload_bench *b) {
    for (uint32_t i = 0; i < b->per_block; i++)
        if (cli_cuda_check(cudaMemcpyAsync(matrix_of(b, i)->dense, b->images[i], dense_bytes(matrix_of(b, i)),
                                           cudaMemcpyHostToDevice, b->stream),
                           "bench: copying to the device"))
            return -1;
    return 0;
}

/* Everything that was queued before, copies ahead included, is done first. */
static int time_passes(offload_bench *b, pass_fn *pass, double *seconds) {
    float milliseconds = 0;
    if (cli_cuda_check(cudaDeviceSynchronize(), "bench") || pass(b) ||
        cli_cuda_check(cudaEventRecord(b->begin, b->stream), "bench: an event"))
        return -1;
    for (int i = 0; i < TIMED_PASSES; i++)
        if (pass(b))
            return -1;
    if (cli_cuda_check(cudaEventRecord(b->end, b->stream), "bench: an event") ||
        cli_cuda_check(cudaDeviceSynchronize(), "bench: passes") ||
        cli_cuda_check(cudaEventElapsedTime(&milliseconds, b->begin, b->end), "bench: a time"))
        return -1;
    *seconds = 1e-3 * (double)milliseconds / TIMED_PASSES;
    return 0;
}

/* One more pass, and every layer's y. */
static int check_pass(offload_bench *b, pass_fn *pass) {
    uint8_t *y = malloc(b->y_bytes);
    if (!y)
        return cli_fail(TRF_ERR_MEMORY, "bench: out of memory for y"), -1;
    int failed = cli_cuda_check(cudaMemset(b->y, 0xFF, b->y_bytes), "bench: y") ||
                 cli_cuda_check(cudaDeviceSynchronize(), "bench: y") || pass(b) ||
                 cli_cuda_check(cudaDeviceSynchronize(), "bench: a pass") ||
                 cli_cuda_check(cudaMemcpy(y, b->y, b->y_bytes, cudaMemcpyDeviceToHost), "bench: y");
    for (uint32_t i = 0; !failed && i < b->count; i++) {
        const offload_matrix *matrix = matrix_of(b, i);
        if (memcmp(y + b->y_offsets[i], pass == pass_compressed ? matrix->y_compressed : matrix->y_dense,
                   2ull * b->batch * matrix->shape.rows)) {
            cli_fail(TRF_ERR_MISMATCH, "bench: y of layer %" PRIu32 " is not what the layer gives without copying", i);
            failed = 1;
        }
    }
    free(y);
    return failed;
}

/* ---- one budget ---- */

/* budget: 0: no layer stays. */
static int make_stacks(offload_bench *b, uint64_t budget) {
    trf_stack_info info;
    trf_error err = {0};
    if (trf_stack_create(bench_cuda_context_of(b->cuda), &b->stack, &err))
        return report(&err);
    for (uint32_t i = 0; i < b->count; i++)
        if (trf_stack_add(b->stack, matrix_of(b, i)->host, &err))
            return report(&err);
    trf_stack_get_info(b->stack, &info);
    if (trf_stack_prepare(b->stack, budget ? budget : info.least_bytes, &err))
        return report(&err);
    for (uint32_t i = 0; i < b->count; i++)
        if (plan_layer(b, trf_stack_layer(b->stack, i), &b->plans[i]))
            return -1;
    b->dense = offload_dense_make(b->images, b->image_bytes, b->count, budget);
    return b->dense ? 0 : -1;
}

static void free_stacks(offload_bench *b) {
    trf_stack_destroy(b->stack);
    offload_dense_free(b->dense);
    b->stack = NULL;
    b->dense = NULL;
}

static int measure(offload_bench *b, bench_times *const times[3]) {
    static pass_fn *const passes[3] = {pass_compressed, pass_dense, pass_copy};
    const int rounds = bench_cuda_log_of(b->cuda)->environment.repeats;
    for (int i = 0; i < 3; i++) {
        times[i]->seconds = calloc((size_t)rounds, sizeof *times[i]->seconds);
        if (!times[i]->seconds)
            return cli_fail(TRF_ERR_MEMORY, "bench: out of memory for times"), -1;
    }
    for (int round = 0; round < rounds; round++)
        for (int i = 0; i < 3; i++)
            if (time_passes(b, passes[i], &times[i]->seconds[times[i]->count++]))
                return -1;
    return check_pass(b, pass_compressed) || check_pass(b, pass_dense) ? -1 : 0;
}

static int run_budget(offload_bench *b, uint64_t budget) {
    char subject[80], what[3][48], stay[24] = "none stay";
    const size_t first = bench_cuda_figures_of(b->cuda)->count;
    bench_times times[3] = {{0}}, *const lists[3] = {&times[0], &times[1], &times[2]};
    trf_stack_info info = {0};
    if (budget)
        snprintf(stay, sizeof stay, "in %.3g GB", 1e-9 * (double)budget);
    snprintf(subject, sizeof subject, "%d x %" PRIu32 " layers, %.3g G weights", BLOCKS, b->per_block,
             1e-9 * (double)b->weights);
    snprintf(what[0], sizeof what[0], "packed, %s", stay);
    snprintf(what[1], sizeof what[1], "bf16, %s", stay);
    snprintf(what[2], sizeof what[2], "copying, beside %s", stay);
    int failed = make_stacks(b, budget) || measure(b, lists);
    if (!failed)
        trf_stack_get_info(b->stack, &info);
    const uint64_t bytes[3] = {info.offload_bytes, failed ? 0 : offload_dense_offload_bytes(b->dense), b->block_bytes};
    for (int i = 0; i < 3; i++) {
        bench_mode_figure *figure =
            failed ? NULL : bench_mode_add(b->cuda, subject, what[i], i == 0 ? what[1] : "", b->batch);
        if (!figure) {
            failed = 1;
            free(times[i].seconds);
            continue;
        }
        figure->bytes = bytes[i];
        figure->times = times[i];
    }
    if (!failed) {
        bench_mode_print(b->cuda, first);
        printf("    tokens a second: packed %.2f, %u of %u layers stay; bf16 %.2f, %u stay. y of every layer as "
               "without copying.\n",
               b->batch / bench_median(&times[0]), info.resident, info.layers, b->batch / bench_median(&times[1]),
               offload_dense_resident(b->dense));
        fflush(stdout);
    }
    free_stacks(b);
    return failed;
}

/* ---- the mode ---- */

static void close_bench(offload_bench *b) {
    for (uint32_t k = 0; k < b->num_matrices; k++) {
        offload_matrix *matrix = &b->matrices[k];
        bench_cublaslt_product_free(matrix->product);
        trf_device_layer_destroy(matrix->device);
        trf_layer_free(matrix->host);
        trf_free(matrix->blob);
        cudaFree(matrix->dense);
        free(matrix->y_compressed);
        free(matrix->y_dense);
    }
    for (int i = 0; i < BLOCKS; i++)
        cudaFreeHost(b->pinned[i]);
    if (b->begin)
        cudaEventDestroy(b->begin);
    if (b->end)
        cudaEventDestroy(b->end);
    cudaFree(b->x);
    cudaFree(b->y);
    cudaFree(b->workspace);
    free(b->images);
    free(b->image_bytes);
    free(b->plans);
    free(b->y_offsets);
}

static int open_bench(offload_bench *b) {
    list_matrices(b, bench_cuda_log_of(b->cuda)->options);
    b->images = calloc(b->count, sizeof *b->images);
    b->image_bytes = calloc(b->count, sizeof *b->image_bytes);
    b->plans = calloc(b->count, sizeof *b->plans);
    b->y_offsets = calloc(b->count, sizeof *b->y_offsets);
    if (!b->images || !b->image_bytes || !b->plans || !b->y_offsets)
        return cli_fail(TRF_ERR_MEMORY, "bench: out of memory"), -1;
    return cli_cuda_check(cudaEventCreate(&b->begin), "bench: an event") ||
                   cli_cuda_check(cudaEventCreate(&b->end), "bench: an event") || make_matrices(b) || pin_dense(b) ||
                   make_vectors(b) || make_references(b)
               ? -1
               : 0;
}

int bench_offload_run(bench_cuda *cuda) {
    const cli_options *options = bench_cuda_log_of(cuda)->options;
    const uint32_t one = 1, *batches = options->num_batches ? options->batches : &one;
    const int count = options->num_batches ? options->num_batches : 1;
    int failed = 0;
    for (int i = 0; !failed && i < count; i++) {
        offload_bench b = {.cuda = cuda, .stream = bench_cuda_stream_of(cuda), .batch = batches[i]};
        failed = open_bench(&b) || run_budget(&b, 0) || run_budget(&b, options->budget_bytes);
        close_bench(&b);
    }
    return failed ? -1 : 0;
}
