/* SPDX-License-Identifier: Apache-2.0 */
/* Loading to a device through staging buffers: layers of every size arrive complete, from any number of loads at once;
 * and a load that fails, or is stopped, leaves no memory behind. */
#include "gpu_layer_files.h"
#include "transfuse/device_memory.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

START_TEST(every_size) {
    static const gpu_shape shapes[] = {{1, 1}, {16, 16}, {300, 515}, {1, 5000}, {257, 256}, {1024, 2048}, {8192, 6144}};
    const int count = (int)(sizeof shapes / sizeof shapes[0]) - test_quick();
    fixture_begin();
    for (int s = 0; s < count; s++)
        for (int c = 0; c < GPU_RECIPES; c += s == 6 ? 5 : 3) {
            gpu_layer_file layer_file = gpu_write_layer_file("layer", &kGpuRecipes[c], shapes[s], (trf_favor)(c % 2));
            for (int threads = 0; threads <= 3; threads++)
                gpu_check_load(&layer_file, threads);
            free(layer_file.weights);
        }
    fixture_end();
}
END_TEST

/* Tile metadata of a .trf file: 32 bytes each from byte 832 on, the tile's place first. */
static uint64_t tile_offset(const uint8_t *file, uint64_t tile) {
    uint64_t offset;
    memcpy(&offset, file + 832 + 32 * tile, sizeof offset);
    return offset;
}

START_TEST(corrupt_tiles) {
    size_t bytes;
    fixture_begin();
    gpu_layer_file layer_file = gpu_write_large_file();
    gpu_check_load(&layer_file, 0); /* from here on there are buffers */
    uint8_t *file = fixture_read(layer_file.path, &bytes);
    const char *damaged = fixture_path("damaged.trf");
    const uint64_t before = gpu_free_bytes();
    for (int i = 0; i < 8; i++) {
        const uint64_t tile = layer_file.tiles * (uint64_t)i / 8, at = tile_offset(file, tile);
        char name[32];
        snprintf(name, sizeof name, "tile %llu:", (unsigned long long)tile);
        file[at + 77] ^= 1;
        fixture_write(damaged, file, bytes);
        file[at + 77] ^= 1;
        trf_load_options options = gpu_load_options(i % 4);
        trf_device_layer *layer = NULL;
        trf_error err = {0};
        gpu_check(gpu_load(gpu_context, damaged, &options, &layer, &err), TRF_ERR_CHECKSUM, &err, damaged);
        if (!strstr(err.message, name) || !strstr(err.message, "damaged.trf") || err.offset != at)
            ck_abort_msg("offset %llu, not %llu of %s %s", (unsigned long long)err.offset, (unsigned long long)at, name,
                         err.message);
        ck_assert_ptr_null(layer);
        ck_assert_uint_eq(gpu_free_bytes(), before);
    }
    gpu_check_load(&layer_file, 0);
    ck_assert_uint_eq(gpu_free_bytes(), before);
    free(file);
    free(layer_file.weights);
    fixture_end();
}
END_TEST

typedef struct stopping {
    int calls, stop_at;
    uint64_t done, total;
} stopping;

static int count(void *context, const char *tensor, uint64_t done, uint64_t total) {
    stopping *s = context;
    ck_assert_str_eq(tensor, "weight");
    ck_assert(done >= s->done && done <= total);
    s->done = done;
    s->total = total;
    return ++s->calls == s->stop_at;
}

START_TEST(cancelled_loads) {
    fixture_begin();
    gpu_layer_file layer_file = gpu_write_large_file();
    gpu_check_load(&layer_file, 0);
    const uint64_t before = gpu_free_bytes();
    for (int threads = 1; threads <= 2; threads++)
        for (int stop_at = 1;; stop_at++) {
            stopping s = {0, stop_at, 0, 0};
            trf_load_options options = gpu_load_options(threads);
            trf_device_layer *layer = NULL;
            trf_error err = {0};
            options.progress = count;
            options.progress_context = &s;
            const trf_status status = gpu_load(gpu_context, layer_file.path, &options, &layer, &err);
            if (status == TRF_OK) {
                ck_assert_uint_eq(s.done, s.total);
                EXPECT(stop_at > (threads == 1 ? 3 : 2)); /* with one thread, the caller is told in the middle */
                EXPECT(gpu_has_weights_of_file(layer, &layer_file));
                trf_device_layer_destroy(layer);
                break;
            }
            gpu_check(status, TRF_ERR_CANCELLED, &err, layer_file.path);
            ck_assert_uint_eq(gpu_free_bytes(), before);
        }
    free(layer_file.weights);
    fixture_end();
}
END_TEST

enum {
    LOADS = 12,
    FILES = 3
};

typedef struct loader {
    const gpu_layer_file *layer_files; /* [FILES] */
    int first, wrong;
} loader;

static void *load_some(void *context) {
    loader *l = context;
    for (int i = 0; i < 4; i++) {
        const gpu_layer_file *layer_file = &l->layer_files[(l->first + i) % FILES];
        trf_load_options options = gpu_load_options(1 + (l->first + i) % 3);
        trf_device_layer *layer;
        trf_error err = {0};
        if (gpu_load(gpu_context, layer_file->path, &options, &layer, &err) != TRF_OK) {
            l->wrong++;
            continue;
        }
        l->wrong += !gpu_has_weights_of_file(layer, layer_file);
        trf_device_layer_destroy(layer);
    }
    return NULL;
}

/* More than there are buffers. */
START_TEST(several_at_once) {
    static const gpu_shape small = {400, 900}, tiny = {48, 64};
    fixture_begin();
    gpu_layer_file layer_files[FILES] = {gpu_write_large_file(),
                                         gpu_write_layer_file("small", &kGpuRecipes[2], small, TRF_FAVOR_SIZE),
                                         gpu_write_layer_file("tiny", &kGpuRecipes[1], tiny, TRF_FAVOR_SPEED)};
    pthread_t threads[LOADS];
    loader loaders[LOADS];
    for (int i = 0; i < LOADS; i++) {
        loaders[i] = (loader){layer_files, i, 0};
        EXPECT(pthread_create(&threads[i], NULL, load_some, &loaders[i]) == 0);
    }
    for (int i = 0; i < LOADS; i++) {
        pthread_join(threads[i], NULL);
        ck_assert_int_eq(loaders[i].wrong, 0);
    }
    for (int i = 0; i < FILES; i++)
        free(layer_files[i].weights);
    fixture_end();
}
END_TEST

/* Compares shards of whole tiles with their rows and columns; damage outside a shard does not matter. */
START_TEST(shards) {
    fixture_begin();
    gpu_layer_file layer_file = gpu_write_large_file();
    gpu_check_load(&layer_file, 0);
    size_t bytes;
    uint8_t *file = fixture_read(layer_file.path, &bytes);
    file[bytes - 200] ^= 1; /* in the last tile */
    const char *damaged = fixture_path("damaged.trf");
    fixture_write(damaged, file, bytes);
    const uint32_t parts[][4] = {{0, 256, 0, 0}, {256, 512, 0, 0}, {0, 0, 0, 1024}, {512, 256, 256, 512}};
    const uint64_t before = gpu_free_bytes();
    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++) {
        const trf_load_options options = test_shard(parts[i]);
        trf_device_layer *layer;
        trf_error err = {0};
        gpu_check(gpu_load(gpu_context, damaged, &options, &layer, &err), TRF_OK, &err, damaged);
        const trf_layer_info info = test_layer_info(layer);
        gpu_memory memory = gpu_memory_make(2ull * info.rows * info.cols);
        uint16_t *found = gpu_malloc(memory.bytes);
        gpu_check(trf_device_layer_decode(layer, TRF_DECODE_SOURCE, memory.at, memory.bytes, NULL, &err), TRF_OK, &err,
                  damaged);
        gpu_memory_read(&memory, found);
        for (uint32_t r = 0; r < info.rows; r++)
            EXPECT(
                memcmp(found + (size_t)r * info.cols,
                       (const uint16_t *)layer_file.weights + (size_t)(parts[i][0] + r) * layer_file.cols + parts[i][2],
                       2 * info.cols) == 0);
        gpu_memory_free(&memory);
        free(found);
        trf_device_layer_destroy(layer);
    }
    trf_device_layer *layer = NULL;
    trf_error err = {0};
    gpu_check(gpu_load(gpu_context, damaged, NULL, &layer, &err), TRF_ERR_CHECKSUM, &err, damaged);
    ck_assert_uint_eq(gpu_free_bytes(), before);
    free(file);
    free(layer_file.weights);
    fixture_end();
}
END_TEST

/* Rows by number as part of a graph, whose ids change between launches. */
START_TEST(rows_in_a_graph) {
    enum {
        COUNT = 5
    };
    static const gpu_shape shape = {700, 1030};
    fixture_begin();
    gpu_layer_file layer_file = gpu_write_layer_file("table", &kGpuRecipes[0], shape, TRF_FAVOR_SPEED);
    trf_device_layer *layer;
    trf_error err = {0};
    cudaStream_t stream;
    cudaGraph_t graph;
    cudaGraphExec_t runs;
    int32_t ids[COUNT];
    uint16_t found[COUNT * 1030];
    gpu_check(gpu_load(gpu_context, layer_file.path, NULL, &layer, &err), TRF_OK, &err, layer_file.path);
    gpu_memory own_ids = gpu_memory_make(sizeof ids), rows = gpu_memory_make(sizeof found);
    CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    CUDA(cudaMemset(own_ids.at, 0, sizeof ids));
    CUDA(cudaDeviceSynchronize());
    const trf_row_request request = test_row_request(own_ids.at, 4, COUNT, TRF_DECODE_SOURCE, rows.at, rows.bytes);
    gpu_check(trf_decode_rows(layer, &request, stream, &err), TRF_OK, &err,
              "first"); /* what CUDA loads at a kernel's first call cannot be captured */
    CUDA(cudaStreamSynchronize(stream));
    CUDA(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
    gpu_check(trf_decode_rows(layer, &request, stream, &err), TRF_OK, &err, "captured");
    CUDA(cudaStreamEndCapture(stream, &graph));
    CUDA(cudaGraphInstantiate(&runs, graph, 0));
    for (int turn = 0; turn < 4; turn++) {
        for (int i = 0; i < COUNT; i++)
            ids[i] = (181 * i + 97 * turn) % (int)shape.rows;
        CUDA(cudaMemcpy(own_ids.at, ids, sizeof ids, cudaMemcpyHostToDevice));
        gpu_memory_poison(&rows);
        CUDA(cudaGraphLaunch(runs, stream));
        gpu_memory_read(&rows, found);
        for (int i = 0; i < COUNT; i++)
            EXPECT(memcmp(found + (size_t)i * shape.cols,
                          (const uint16_t *)layer_file.weights + (size_t)ids[i] * shape.cols, 2 * shape.cols) == 0);
    }
    CUDA(cudaGraphExecDestroy(runs));
    CUDA(cudaGraphDestroy(graph));
    CUDA(cudaStreamDestroy(stream));
    gpu_memory_free(&own_ids);
    gpu_memory_free(&rows);
    trf_device_layer_destroy(layer);
    free(layer_file.weights);
    fixture_end();
}
END_TEST

/* Loads a layer to memory of the test's own, which the caller frees. */
static trf_device_layer *load_to(const gpu_layer_file *layer_file, gpu_memory *blob, gpu_memory *directory) {
    trf_error err = {0};
    trf_checkpoint *checkpoint;
    trf_device_layer *layer;
    trf_layer_size size;
    trf_load_options options = gpu_load_options(0);
    gpu_check(trf_checkpoint_open(layer_file->path, &checkpoint, &err), TRF_OK, &err, layer_file->path);
    gpu_check(trf_device_layer_get_load_size(gpu_context, checkpoint, "weight", &options, &size, &err), TRF_OK, &err,
              layer_file->path);
    *blob = gpu_memory_make(size.buffer_bytes);
    *directory = gpu_memory_make(size.directory_bytes);
    options.memory = (trf_layer_memory){blob->at, blob->bytes, directory->at, directory->bytes};
    gpu_check(trf_device_layer_load(gpu_context, checkpoint, "weight", &options, &layer, &err), TRF_OK, &err,
              layer_file->path);
    trf_checkpoint_close(checkpoint);
    return layer;
}

/* To wait for the device while a stream captures would end the capture with an error. */
START_TEST(destroyed_during_a_capture) {
    fixture_begin();
    gpu_layer_file layer_file = gpu_write_large_file();
    gpu_memory blob, directory, weights = gpu_memory_make(layer_file.weights_bytes);
    trf_error err = {0};
    cudaStream_t stream;
    cudaGraph_t graph;
    cudaGraphExec_t runs;
    trf_device_layer *layer = load_to(&layer_file, &blob, &directory);
    void *found = gpu_malloc(layer_file.weights_bytes);
    ck_assert(gpu_has_weights_of_file(layer, &layer_file));
    CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    CUDA(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
    gpu_check(trf_device_layer_decode(layer, TRF_DECODE_SOURCE, weights.at, weights.bytes, stream, &err), TRF_OK, &err,
              "captured");
    trf_device_layer_destroy(layer);
    CUDA(cudaStreamEndCapture(stream, &graph));
    CUDA(cudaGraphInstantiate(&runs, graph, 0));
    CUDA(cudaGraphLaunch(runs, stream)); /* its memory is still there */
    gpu_memory_read(&weights, found);
    EXPECT(memcmp(found, layer_file.weights, layer_file.weights_bytes) == 0);
    CUDA(cudaGraphExecDestroy(runs));
    CUDA(cudaGraphDestroy(graph));
    CUDA(cudaStreamDestroy(stream));
    gpu_memory_free(&blob);
    gpu_memory_free(&directory);
    gpu_memory_free(&weights);
    free(found);
    free(layer_file.weights);
    fixture_end();
}
END_TEST

int main(void) {
    const gpu_test tests[] = {{every_size, 1},      {corrupt_tiles, 1},   {cancelled_loads, 1},           {shards, 1},
                              {several_at_once, 1}, {rows_in_a_graph, 1}, {destroyed_during_a_capture, 1}};
    return gpu_main("load", tests, sizeof tests / sizeof tests[0]);
}
