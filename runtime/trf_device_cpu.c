/* The CPU as a device: device memory is the process's, streams are ignored, and every call is done when it returns. */
#include "trf_convert.h"
#include "trf_decode_rows.h"
#include "trf_device.h"
#include "trf_device_value.h"
#include "trf_layer_source.h"
#include "trf_matmul.h"
#include "trf_offload.h"
#include "trf_row_decode.h"
#include "trf_slab_directory.h"
#include "trf_threads.h"

#include <pthread.h>
#include <stdlib.h>
#include <time.h>

enum {
    PLAN_WORKERS = 0 /* word of a plan's choice */
};

/* The first corrupt tile that a call met. */
struct trf_cpu_fault {
    pthread_mutex_t lock;
    trf_error error;
};

static void cpu_destroy(trf_context *context) { (void)context; }

/* ---- memory ---- */

static trf_status cpu_allocate(const trf_context *context, uint64_t bytes, void **memory, trf_error *err) {
    (void)context;
    *memory =
        bytes <= SIZE_MAX - TRF_DEVICE_ALIGNMENT ? aligned_alloc(TRF_DEVICE_ALIGNMENT, trf_device_align(bytes)) : NULL;
    if (!*memory)
        return trf_fail(err, TRF_ERR_MEMORY, TRF_NO_OFFSET, "cannot allocate %llu bytes", (unsigned long long)bytes);
    return TRF_OK;
}

static void cpu_release(const trf_context *context, void *memory) {
    (void)context;
    free(memory);
}

static trf_status cpu_copy(const trf_context *context, void *to, const void *from, uint64_t bytes, trf_error *err) {
    (void)context, (void)err;
    memcpy(to, from, bytes);
    return TRF_OK;
}

static trf_status cpu_copy_rows(const trf_context *context, void *to, uint64_t to_pitch, const void *from,
                                uint64_t from_pitch, uint64_t width, uint64_t rows, trf_stream stream, trf_error *err) {
    (void)context, (void)stream, (void)err;
    for (uint64_t r = 0; r < rows; r++)
        if (from)
            memcpy((uint8_t *)to + r * to_pitch, (const uint8_t *)from + r * from_pitch, width);
        else
            memset((uint8_t *)to + r * to_pitch, 0, width);
    return TRF_OK;
}

/* ---- layers ---- */

/* A layer of its own, with the same blob. */
static trf_status copy_layer(const trf_layer *layer, trf_layer **copy, trf_error *err) {
    const uint64_t bytes = layer->view.header.blob_bytes;
    void *memory;
    trf_status status = cpu_allocate(NULL, bytes, &memory, err);
    if (status != TRF_OK)
        return status;
    memcpy(memory, layer->blob, bytes);
    status = trf_layer_from_memory(memory, bytes, copy, err);
    if (status != TRF_OK)
        free(memory);
    else
        (*copy)->memory = memory;
    return status;
}

static trf_status cpu_fill_layer(trf_device_layer *made, const trf_layer_source *source, trf_error *err) {
    struct trf_cpu_fault *fault = calloc(1, sizeof *fault);
    if (!fault)
        return trf_fail(err, TRF_ERR_MEMORY, TRF_NO_OFFSET, "cannot allocate a layer");
    if (source->owned) {
        made->host = *source->layer;
        *source->layer = NULL;
    } else {
        trf_status status = copy_layer(*source->layer, &made->host, err);
        if (status != TRF_OK) {
            free(fault);
            return status;
        }
    }
    pthread_mutex_init(&fault->lock, NULL);
    made->fault = fault;
    made->view = trf_device_view_of(&made->host->view, made->host->blob);
    made->view.slots = made->host->table.slots;
    made->memory_bytes = made->host->view.header.blob_bytes + sizeof *made->host;
    return TRF_OK;
}

static void cpu_destroy_layer(trf_device_layer *layer) {
    pthread_mutex_destroy(&layer->fault->lock);
    free(layer->fault);
    trf_layer_free(layer->host);
}

static trf_status cpu_check_layer(const trf_device_layer *layer, trf_error *err) {
    pthread_mutex_lock(&layer->fault->lock);
    const trf_error fault = layer->fault->error;
    pthread_mutex_unlock(&layer->fault->lock);
    return fault.status == TRF_OK ? TRF_OK : trf_fail(err, fault.status, fault.offset, "%s", fault.message);
}

/* Keeps the first failure that is the data's. @return status, with err filled. */
static trf_status note_fault(const trf_device_layer *layer, trf_status status, const trf_error *failure,
                             trf_error *err) {
    if (status == TRF_OK)
        return TRF_OK;
    if (status == TRF_ERR_RANS) {
        pthread_mutex_lock(&layer->fault->lock);
        if (layer->fault->error.status == TRF_OK)
            layer->fault->error = *failure;
        pthread_mutex_unlock(&layer->fault->lock);
    }
    if (err)
        *err = *failure;
    return status;
}

/* ---- decoding ---- */

typedef struct trf_cpu_decoding {
    const trf_device_layer *layer;
    trf_decode_as as;
    void *weights;
    trf_decode_tile_fn *decode;
    uint16_t (*elements)[TRF_TILE_SIZE * TRF_TILE_SIZE]; /* for each worker */
} trf_cpu_decoding;

static trf_status cpu_decode_tile(void *context, uint64_t tile, int worker, trf_error *err) {
    const trf_cpu_decoding *work = context;
    const trf_layer *host = work->layer->host;
    const trf_device_view *view = &work->layer->view;
    const trf_tile_shape shape = trf_tile_shape_of(&host->view.header, tile, host->view.tiles[tile].coding);
    uint16_t *elements = work->elements[worker];
    trf_status status =
        work->decode(&host->view, &host->table, tile, trf_layer_tile(host, tile), elements, TRF_TILE_SIZE, err);
    if (status != TRF_OK)
        return status;
    const uint32_t bytes = trf_device_value_bytes(view, work->as);
    for (uint32_t r = 0; r < shape.rows; r++)
        for (uint32_t c = 0; c < shape.cols; c++) {
            const uint32_t row = shape.row + r, col = shape.col + c;
            trf_device_value_store(work->weights, bytes, (uint64_t)row * view->cols + col,
                                   trf_device_value(view, work->as, elements[r * TRF_TILE_SIZE + c], row, col));
        }
    return TRF_OK;
}

static trf_status cpu_decode(const trf_device_layer *layer, trf_decode_as as, void *weights, trf_stream stream,
                             trf_error *err) {
    (void)stream;
    trf_error failure = {0};
    if (as == TRF_DECODE_SOURCE) {
        const uint64_t bytes = (uint64_t)layer->info.rows * layer->info.cols * trf_dtype_bytes(layer->info.dtype);
        return note_fault(layer, trf_layer_decode(layer->host, weights, bytes, layer->context->threads, &failure),
                          &failure, err);
    }
    const uint64_t tiles = layer->host->view.num_tiles;
    const int most = trf_thread_count(layer->context->threads), workers = (uint64_t)most > tiles ? (int)tiles : most;
    trf_cpu_decoding work = {layer, as, weights, trf_decode_tile_best(), NULL};
    work.elements = malloc((size_t)workers * sizeof *work.elements);
    if (!work.elements)
        return trf_fail(err, TRF_ERR_MEMORY, TRF_NO_OFFSET, "cannot allocate buffers for %d workers", workers);
    trf_status status = trf_parallel_for(workers, tiles, cpu_decode_tile, &work, &failure);
    free(work.elements);
    return note_fault(layer, status, &failure, err);
}

/* ---- rows ---- */

enum {
    ROW_WORKER_WEIGHTS = 1 << 16 /* a thread's start takes about as long as decoding these */
};

typedef struct trf_cpu_row_work {
    const trf_device_layer *layer;
    const trf_row_request *request;
} trf_cpu_row_work;

/* As trf_row_segment_at, with the tile's own slab table in place of the directory. */
static trf_row_segment cpu_row_piece(const trf_device_layer *layer, uint32_t row, uint32_t slab_col) {
    const trf_layer *host = layer->host;
    const trf_header *header = &host->view.header;
    const uint64_t tile =
        (uint64_t)(row / TRF_TILE_SIZE) * header->num_tile_cols + slab_col / (TRF_TILE_SIZE / header->slab_cols);
    const trf_tile_meta *meta = &host->view.tiles[tile];
    const trf_tile_shape shape = trf_tile_shape_of(header, tile, meta->coding);
    const uint8_t *bytes = trf_layer_tile(host, tile);
    trf_row_segment segment = trf_row_segment_of(&layer->view, shape, row, slab_col);
    if (segment.coded_cols) {
        const uint32_t slab = segment.row / TRF_SLAB_ROWS * shape.slabs_per_band + segment.col / header->slab_cols;
        const trf_slab_location location = trf_locate_slab(&shape, bytes, slab, header->raw_bits);
        segment.raw = meta->data_offset + location.raw;
        segment.rans_streams = meta->data_offset + location.rans_streams;
        segment.rans_bytes = location.end - location.rans_streams;
    }
    segment.stored = meta->data_offset;
    if (segment.coded_cols < segment.cols && shape.slabs)
        segment.stored += trf_locate_slab(&shape, bytes, shape.slabs - 1, header->raw_bits).end;
    return segment;
}

/* A trf_parallel_fn; index: of a row id. */
static trf_status cpu_decode_row(void *context, uint64_t index, int worker, trf_error *err) {
    const trf_cpu_row_work *work = context;
    const trf_device_layer *layer = work->layer;
    const trf_device_view *view = &layer->view;
    const int64_t id = trf_row_id(work->request->ids, work->request->id_bytes, index);
    trf_row_target target = {.col = layer->shard.col, .cols = layer->shard.cols, .as = work->request->as};
    (void)worker;
    target.value_bytes = trf_device_value_bytes(view, target.as);
    target.to = (uint8_t *)work->request->rows + index * target.cols * target.value_bytes;
    target.aligned = (uintptr_t)target.to % (4 * target.value_bytes) == 0;
    for (uint32_t slab_col = 0; slab_col < view->num_slab_cols; slab_col++) {
        if (id < 0 || id >= layer->shard.rows) {
            for (uint32_t quarter = 0; quarter < TRF_ROW_LANES; quarter++)
                trf_row_fill(view, slab_col, quarter, &target);
            continue;
        }
        const trf_row_segment segment = cpu_row_piece(layer, layer->shard.row + (uint32_t)id, slab_col);
        for (uint32_t quarter = 0; quarter < TRF_ROW_LANES; quarter++)
            if (!trf_row_decode(view, view->slots, view->class_value, &segment, quarter, &target))
                return trf_fail(err, TRF_ERR_RANS, layer->host->view.tiles[segment.index].data_offset,
                                "tile %llu: a lane's stream does not end where it must",
                                (unsigned long long)segment.index);
    }
    return TRF_OK;
}

static trf_status cpu_decode_rows(const trf_device_layer *layer, const trf_row_request *request, trf_stream stream,
                                  trf_error *err) {
    (void)stream;
    trf_error failure = {0};
    trf_cpu_row_work work = {layer, request};
    const uint64_t most = 1 + (uint64_t)request->count * layer->shard.cols / ROW_WORKER_WEIGHTS;
    const int threads = trf_thread_count(layer->context->threads);
    trf_status status = trf_parallel_for((uint64_t)threads < most ? threads : (int)most, request->count, cpu_decode_row,
                                         &work, &failure);
    return note_fault(layer, status, &failure, err);
}

/* ---- products ----
 * The workspace: x as F32 | y as F32, if that is not its type or an epilogue follows | what the workers need. Each part
 * begins at a multiple of 256 bytes. */

typedef struct trf_cpu_workspace {
    uint64_t y, scratch, bytes; /* x is at 0; y = scratch if there is none */
} trf_cpu_workspace;

static trf_cpu_workspace workspace_of(const trf_device_layer *layer, const trf_linear_plan *plan, int has_epilogue) {
    const int wide = plan->y_dtype != TRF_DTYPE_F32 || has_epilogue;
    trf_cpu_workspace offsets;
    offsets.y = trf_device_align(4ull * plan->m * layer->view.cols);
    offsets.scratch = offsets.y + (wide ? trf_device_align(4ull * plan->m * layer->view.rows) : 0);
    offsets.bytes = offsets.scratch + trf_matmul_scratch_bytes((int)plan->choice[PLAN_WORKERS]);
    return offsets;
}

static trf_status cpu_plan(const trf_device_layer *layer, trf_path path, trf_linear_plan *plan, trf_error *err) {
    if (path == TRF_PATH_TWO_STEP || path == TRF_PATH_WIDE)
        return trf_fail(err, TRF_ERR_UNSUPPORTED, TRF_NO_OFFSET, "the CPU has no %s path", trf_path_name(path));
    plan->path = TRF_PATH_FUSED;
    plan->choice[PLAN_WORKERS] = (uint32_t)trf_matmul_workers(layer->host, layer->context->threads);
    plan->workspace_bytes = workspace_of(layer, plan, 0).bytes;
    plan->epilogue_workspace_bytes = workspace_of(layer, plan, 1).bytes;
    return TRF_OK;
}

static void widen(const uint16_t *from, trf_dtype dtype, uint64_t count, float *to) {
    if (dtype == TRF_DTYPE_BF16)
        for (uint64_t i = 0; i < count; i++)
            to[i] = trf_bf16_to_f32(from[i]);
    else
        for (uint64_t i = 0; i < count; i++)
            to[i] = trf_f16_to_f32(from[i]);
}

static void narrow_words(const float *from, trf_dtype dtype, uint64_t count, uint16_t *to) {
    if (dtype == TRF_DTYPE_BF16)
        for (uint64_t i = 0; i < count; i++)
            to[i] = (uint16_t)trf_f32_to_bf16(from[i]);
    else
        for (uint64_t i = 0; i < count; i++)
            to[i] = (uint16_t)trf_f32_to_f16(from[i]);
}

static trf_status cpu_apply_epilogue(const trf_context *context, const trf_sums *sums, trf_dtype y_dtype, void *y,
                                     const trf_epilogue *epilogue, trf_stream stream, trf_error *err) {
    (void)context, (void)stream, (void)err;
    for (uint32_t n = 0; n < sums->m; n++)
        for (uint32_t row = 0; row < sums->rows; row++) {
            const uint64_t at = (uint64_t)n * sums->rows + row;
            const trf_operands operands = trf_operands_of(epilogue, y_dtype, at, row);
            trf_store_rounded(
                y, y_dtype, at,
                trf_apply_epilogue(epilogue->activation, &operands, y_dtype, sums->at[n * sums->stride + row]));
        }
    return TRF_OK;
}

static trf_status cpu_linear(const trf_device_layer *layer, const trf_linear_plan *plan, const void *x, void *y,
                             const trf_epilogue *epilogue, void *workspace, trf_stream stream, trf_error *err) {
    const trf_cpu_workspace offsets = workspace_of(layer, plan, epilogue != NULL);
    const uint64_t y_count = (uint64_t)plan->m * layer->view.rows;
    uint8_t *const base = workspace;
    float *const wide_x = (float *)base, *const wide_y = offsets.y == offsets.scratch ? y : (float *)(base + offsets.y);
    const trf_sums sums = {wide_y, layer->view.rows, plan->m, layer->view.rows};
    trf_error failure = {0};
    widen(x, plan->x_dtype, (uint64_t)plan->m * layer->view.cols, wide_x);
    trf_status status = trf_multiply_layer(layer->host, wide_x, plan->m, wide_y, (int)plan->choice[PLAN_WORKERS],
                                           base + offsets.scratch, &failure);
    for (uint64_t i = 0; status != TRF_OK && i < y_count; i++)
        wide_y[i] = trf_f32_from_bits(0x7FC00000u);
    if (epilogue)
        cpu_apply_epilogue(layer->context, &sums, plan->y_dtype, y, epilogue, stream, NULL);
    else if (wide_y != y)
        narrow_words(wide_y, plan->y_dtype, y_count, y);
    return note_fault(layer, status, &failure, err);
}

static trf_status cpu_time(const trf_timed_product *p, uint32_t repeats, double *microseconds, trf_error *err) {
    for (uint32_t repeat = 0; repeat < repeats; repeat++) {
        struct timespec begin, end;
        clock_gettime(CLOCK_MONOTONIC, &begin);
        trf_status status = trf_linear(p->layer, p->plan, p->x, p->y, p->workspace, NULL, err);
        clock_gettime(CLOCK_MONOTONIC, &end);
        if (status != TRF_OK)
            return status;
        microseconds[repeat] = 1e6 * (double)(end.tv_sec - begin.tv_sec) + 1e-3 * (double)(end.tv_nsec - begin.tv_nsec);
    }
    return TRF_OK;
}

/* ---- the device's operations ---- */

static const trf_device_ops trf_cpu_device_ops = {
    .destroy = cpu_destroy,
    .fill_layer = cpu_fill_layer,
    .destroy_layer = cpu_destroy_layer,
    .check_layer = cpu_check_layer,
    .decode = cpu_decode,
    .decode_rows = cpu_decode_rows,
    .plan = cpu_plan,
    .linear = cpu_linear,
    .apply_epilogue = cpu_apply_epilogue,
    .time = cpu_time,
    .timed_repeats = 3, /* of one path */
    .allocate = cpu_allocate,
    .release = cpu_release,
    .upload = cpu_copy,
    .download = cpu_copy,
    .copy_rows = cpu_copy_rows,
    .stack = &trf_cpu_stack_ops,
};

trf_status trf_cpu_context_create(trf_context **context, trf_error *err) {
    trf_context *made = calloc(1, sizeof *made);
    if (!made)
        return trf_fail(err, TRF_ERR_MEMORY, TRF_NO_OFFSET, "cannot allocate a context");
    made->ops = &trf_cpu_device_ops;
    made->device = TRF_DEVICE_CPU;
    memcpy(made->name, "CPU", sizeof "CPU");
    *context = made;
    return TRF_OK;
}
