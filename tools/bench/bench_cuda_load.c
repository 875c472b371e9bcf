/* transfuse bench --device cuda --mode load: a checkpoint to the device, checked on the way, against copies of the same
 * bytes that are page-locked already.
 *
 * The checkpoint is a temporary file (in $TMPDIR, or /tmp), the weights of each shape written under several names; it
 * is in the page cache when it is loaded. It goes away whatever happens: signals ask the load under way to stop. */
#include "bench_cuda_load.h"

#include "bench_cuda_modes.h"
#include "cli_cuda.h"
#include "cli_report.h"

#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const cli_shape kShapes[] = {{14336, 4096}, {4096, 14336}, {4096, 4096}}, kTable = {32768, 4096};
static const uint64_t kCheckpointBytes = 3ull << 30; /* at least, without --layers */

enum {
    FEW_COPIES = 4 /* of each of --layers */
};

/* What is timed, in turns. */
typedef enum load_way {
    WAY_PINNED,
    WAY_LOAD,
    WAY_TWO_LOADS,
    WAY_ONE_THREAD,
    WAY_PAGEABLE,
    NUM_WAYS
} load_way;

static const struct {
    const char *name, *against;
} kWays[NUM_WAYS] = {
    [WAY_PINNED] = {"copy, page-locked", ""},
    [WAY_LOAD] = {"load", "copy, page-locked"},
    [WAY_TWO_LOADS] = {"load, 2 layers at once", "copy, page-locked"},
    [WAY_ONE_THREAD] = {"load, 1 thread", "copy, page-locked"},
    [WAY_PAGEABLE] = {"copy, pageable", "copy, page-locked"},
};

typedef struct load_blob {
    void *bytes;
    uint64_t size;
} load_blob;

typedef struct load_bench {
    bench_cuda *cuda;
    const cli_options *options;
    trf_encode_options encode;
    cli_shape shapes[CLI_MAX_LIST], table;
    int num_shapes;
    float *drawn; /* of scale 1, as many as the largest shape has */
    uint64_t num_drawn;
    load_blob blobs[CLI_MAX_LIST];
    uint64_t largest, total; /* bytes: of a blob, of all layers */
    int copies, num_layers;  /* of each shape; of all */
    char *directory, *path;
    trf_checkpoint *checkpoint;
    trf_device_layer **loaded; /* [num_layers], NULL where there is none */
    void *pinned, *pageable, *device;
    cli_progress progress;
} load_bench;

/* ---- the weights ---- */

static int fail_memory(void) {
    cli_fail(TRF_ERR_MEMORY, "bench: out of memory");
    return -1;
}

static uint64_t weights_of(cli_shape shape) { return (uint64_t)shape.rows * shape.cols; }

static void choose_shapes(load_bench *b) {
    const cli_options *options = b->options;
    b->num_shapes = options->num_layers ? options->num_layers : (int)(sizeof kShapes / sizeof kShapes[0]);
    memcpy(b->shapes, options->num_layers ? options->layers : kShapes, (size_t)b->num_shapes * sizeof *b->shapes);
    b->table = options->num_layers ? options->layers[0] : kTable;
    trf_encode_options_init(&b->encode);
    b->encode.threads = options->threads;
    b->encode.verify = 0;
    if (options->has_favor)
        b->encode.favor = options->favor;
}

/* BF16 weights of any number, malloc'd: those that were drawn, over and over. */
static uint16_t *make_weights(const load_bench *b, uint64_t weights) {
    const double sigma = b->options->sigmas.count ? b->options->sigmas.values[0] : 0.02;
    const uint64_t first = weights < b->num_drawn ? weights : b->num_drawn;
    uint16_t *made = malloc(weights * sizeof *made);
    if (!made) {
        fail_memory();
        return NULL;
    }
    bench_make_source(b->drawn, (cli_shape){1, (uint32_t)first}, sigma, TRF_DTYPE_BF16, made);
    for (uint64_t at = first, copied; at < weights; at += copied) {
        copied = weights - at < first ? weights - at : first;
        memcpy(made + at, made, copied * sizeof *made);
    }
    return made;
}

static int encode_shape(load_bench *b, int shape) {
    trf_error err = {0};
    const cli_shape s = b->shapes[shape];
    uint16_t *weights = make_weights(b, weights_of(s));
    if (!weights)
        return -1;
    trf_status status = trf_encode_layer(weights, TRF_DTYPE_BF16, s.rows, s.cols, &b->encode, &b->blobs[shape].bytes,
                                         &b->blobs[shape].size, NULL, &err);
    free(weights);
    if (status != TRF_OK)
        return cli_report_error(&err), -1;
    return 0;
}

static int encode_all(load_bench *b) {
    for (int i = 0; i < b->num_shapes; i++)
        if (weights_of(b->shapes[i]) > b->num_drawn)
            b->num_drawn = weights_of(b->shapes[i]);
    b->drawn = malloc(b->num_drawn * sizeof *b->drawn);
    if (!b->drawn)
        return fail_memory();
    bench_draw(b->drawn, b->num_drawn, b->options->student_t);
    uint64_t sum = 0;
    for (int i = 0; i < b->num_shapes; i++) {
        if (encode_shape(b, i))
            return -1;
        sum += b->blobs[i].size;
        b->largest = b->blobs[i].size > b->largest ? b->blobs[i].size : b->largest;
    }
    b->copies = b->options->num_layers ? FEW_COPIES : (int)((kCheckpointBytes + sum - 1) / sum);
    b->num_layers = b->copies * b->num_shapes;
    b->total = sum * (uint64_t)b->copies;
    return 0;
}

/* ---- the checkpoint ---- */

static int fail_file(const load_bench *b, const char *doing) {
    cli_fail(TRF_ERR_IO, "bench: %s: %s: %s", b->path ? b->path : "a temporary folder", doing, strerror(errno));
    return -1;
}

/* @return whether a signal asks to stop, after a message. */
static int is_stopped(load_bench *b) {
    if (!cli_progress_step(&b->progress, NULL, 0, 0))
        return 0;
    cli_fail(TRF_ERR_CANCELLED, "bench: stopped");
    return 1;
}

static void name_layer(int layer, char name[32]) { snprintf(name, 32, "layers.%d.weight", layer); }

/* The safetensors header: every blob as a U8 tensor. Padded so that data begins at a multiple of 16. @return malloc'd
 * text, or NULL after a message. */
static char *make_header(const load_bench *b, size_t *bytes) {
    char *text = NULL, name[32];
    FILE *file = open_memstream(&text, bytes);
    uint64_t at = 0;
    for (int i = 0; file && i < b->num_layers; i++) {
        const uint64_t size = b->blobs[i % b->num_shapes].size;
        name_layer(i, name);
        fprintf(file,
                "%s\"%s_trf\":{\"dtype\":\"U8\",\"shape\":[%" PRIu64 "],\"data_offsets\":[%" PRIu64 ",%" PRIu64 "]}",
                i ? "," : "{", name, size, at, at + size);
        at += size;
    }
    if (file) {
        fputc('}', file);
        fflush(file);
        for (size_t left = (16 - (8 + *bytes) % 16) % 16; left > 0; left--)
            fputc(' ', file);
    }
    if (!file || fclose(file)) {
        free(text);
        fail_memory();
        return NULL;
    }
    return text;
}

static int write_layers(load_bench *b, FILE *file) {
    size_t header_bytes;
    char *header = make_header(b, &header_bytes);
    if (!header)
        return -1;
    const uint64_t length = header_bytes; /* little-endian, as all that the library reads and writes */
    int failed = fwrite(&length, sizeof length, 1, file) != 1 || fwrite(header, header_bytes, 1, file) != 1;
    free(header);
    for (int i = 0; !failed && i < b->num_layers; i++) {
        const load_blob *blob = &b->blobs[i % b->num_shapes];
        if (is_stopped(b))
            return -1;
        failed = fwrite(blob->bytes, blob->size, 1, file) != 1;
    }
    return failed ? fail_file(b, "cannot write") : 0;
}

/* From here on signals are asked for, not obeyed at once. */
static int make_checkpoint(load_bench *b) {
    const char *parent = getenv("TMPDIR");
    parent = parent && *parent ? parent : "/tmp";
    trf_error err = {0};
    cli_progress_start(&b->progress, "loading");
    const size_t room = strlen(parent) + sizeof "/transfuse-bench-XXXXXX/model.safetensors";
    char *directory = malloc(room);
    b->path = malloc(room);
    if (!directory || !b->path) {
        free(directory);
        return fail_memory();
    }
    snprintf(directory, room, "%s/transfuse-bench-XXXXXX", parent);
    snprintf(b->path, room, "%s", directory);
    if (!mkdtemp(directory)) {
        free(directory);
        return fail_file(b, "cannot create");
    }
    b->directory = directory;
    snprintf(b->path, room, "%s/model.safetensors", directory);
    FILE *file = fopen(b->path, "wb");
    if (!file)
        return fail_file(b, "cannot create");
    int failed = write_layers(b, file);
    if (fclose(file) && !failed)
        failed = fail_file(b, "cannot write");
    if (!failed && trf_checkpoint_open(b->path, &b->checkpoint, &err))
        failed = (cli_report_error(&err), -1);
    return failed;
}

/* ---- timing ---- */

static void drop_layers(load_bench *b) {
    for (int i = 0; b->loaded && i < b->num_layers; i++) {
        trf_device_layer_destroy(b->loaded[i]);
        b->loaded[i] = NULL;
    }
}

/* Layers first, first + step ... . progress: or NULL. */
static int load_some(load_bench *b, int first, int step, int threads, cli_progress *progress) {
    trf_load_options options;
    trf_load_options_init(&options);
    options.threads = threads;
    options.progress = progress ? cli_progress_step : NULL;
    options.progress_context = progress;
    for (int i = first; i < b->num_layers; i += step) {
        char name[32];
        trf_error err = {0};
        name_layer(i, name);
        if (trf_device_layer_load(bench_cuda_context_of(b->cuda), b->checkpoint, name, &options, &b->loaded[i], &err))
            return cli_report_error(&err), -1;
    }
    return 0;
}

/* A thread's. @return NULL, or not after a failure. */
static void *load_odd(void *context) {
    load_bench *b = context;
    return load_some(b, 1, 2, b->options->threads, NULL) ? b : NULL;
}

static int load_two(load_bench *b) {
    pthread_t thread;
    void *odd_failed = NULL;
    if (pthread_create(&thread, NULL, load_odd, b))
        return fail_memory();
    const int failed = load_some(b, 0, 2, b->options->threads, &b->progress);
    pthread_join(thread, &odd_failed);
    return failed || odd_failed ? -1 : 0;
}

/* The layers' bytes to one place on the device, queued one behind the other. */
static int copy_all(load_bench *b, const void *from) {
    cudaStream_t stream = bench_cuda_stream_of(b->cuda);
    for (int i = 0; i < b->num_layers; i++) {
        const uint64_t bytes = b->blobs[i % b->num_shapes].size;
        const int failed =
            from == b->pinned
                ? cli_cuda_check(cudaMemcpyAsync(b->device, from, bytes, cudaMemcpyHostToDevice, stream),
                                 "bench: a copy")
                : cli_cuda_check(cudaMemcpy(b->device, from, bytes, cudaMemcpyHostToDevice), "bench: a copy");
        if (failed)
            return -1;
    }
    return cli_cuda_check(cudaDeviceSynchronize(), "bench: a copy");
}

static int load_or_copy(load_bench *b, load_way way) {
    switch (way) {
    case WAY_PINNED:
        return copy_all(b, b->pinned);
    case WAY_PAGEABLE:
        return copy_all(b, b->pageable);
    case WAY_TWO_LOADS:
        return load_two(b);
    default:
        return load_some(b, 0, 1, way == WAY_LOAD ? b->options->threads : 1, &b->progress);
    }
}

static int add_figures(load_bench *b, size_t *first) {
    char subject[80];
    snprintf(subject, sizeof subject, "%d layers, %.2f GB of bf16", b->num_layers, 1e-9 * (double)b->total);
    *first = bench_cuda_figures_of(b->cuda)->count;
    for (int way = 0; way < NUM_WAYS; way++) {
        bench_mode_figure *figure = bench_mode_add(b->cuda, subject, kWays[way].name, kWays[way].against, 0);
        if (!figure)
            return -1;
        figure->bytes = b->total;
        figure->times.seconds = calloc((size_t)b->options->repeats, sizeof *figure->times.seconds);
        if (!figure->times.seconds)
            return fail_memory();
    }
    return 0;
}

static int time_ways(load_bench *b) {
    size_t first;
    if (add_figures(b, &first))
        return -1;
    bench_mode_figure *figures = bench_cuda_figures_of(b->cuda)->list + first;
    for (int run = -1; run < b->options->repeats; run++)
        for (int way = 0; way < NUM_WAYS; way++) {
            if (is_stopped(b))
                return -1;
            const double start = cli_now();
            const int failed = load_or_copy(b, (load_way)way);
            const double seconds = cli_now() - start;
            drop_layers(b);
            if (failed)
                return -1;
            if (run >= 0)
                figures[way].times.seconds[figures[way].times.count++] = seconds;
        }
    cli_progress_end(&b->progress);
    bench_mode_print(b->cuda, first);
    return 0;
}

static int make_buffers(load_bench *b) {
    b->loaded = calloc((size_t)b->num_layers, sizeof *b->loaded);
    b->pageable = malloc(b->largest);
    b->device = cli_cuda_alloc(b->largest);
    if (!b->device)
        return -1;
    if (!b->loaded || !b->pageable)
        return fail_memory();
    if (cli_cuda_check(cudaMallocHost(&b->pinned, b->largest), "bench: page-locked memory"))
        return -1;
    memset(b->pageable, 1, b->largest);
    memset(b->pinned, 1, b->largest);
    return 0;
}

/* ---- the mode ---- */

static int run_rows(load_bench *b) {
    uint16_t *weights = make_weights(b, weights_of(b->table));
    const int failed = weights ? bench_cuda_rows_run(b->cuda, b->table, weights, &b->encode) : -1;
    free(weights);
    return failed;
}

static void remove_checkpoint(load_bench *b) {
    trf_checkpoint_close(b->checkpoint);
    if (b->directory) {
        unlink(b->path);
        rmdir(b->directory);
    }
    free(b->directory);
    free(b->path);
    b->checkpoint = NULL;
    b->directory = b->path = NULL;
}

int bench_load_run(bench_cuda *cuda) {
    load_bench b = {.cuda = cuda, .options = bench_cuda_log_of(cuda)->options};
    choose_shapes(&b);
    int failed = encode_all(&b) || make_buffers(&b) || make_checkpoint(&b) || time_ways(&b);
    remove_checkpoint(&b);
    drop_layers(&b);
    failed = failed || run_rows(&b);
    for (int i = 0; i < b.num_shapes; i++)
        trf_free(b.blobs[i].bytes);
    cudaFree(b.device);
    cudaFreeHost(b.pinned);
    free(b.pageable);
    free(b.loaded);
    free(b.drawn);
    return failed ? -1 : 0;
}
