/* SPDX-License-Identifier: Apache-2.0 */
/* The steps of a soak that use contexts, files, and layers in host memory. */
#include "soak_steps.h"

#include "transfuse/cpu.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- what threads share ---- */

/* Replaces a context, which goes when its last layer goes. */
void soak_step_context(soak_thread *thread) {
    soak_context *made = soak_make_context(thread, 1 + (int)soak_draw(thread, 3));
    if (made)
        soak_put(thread->soak, &thread->soak->contexts[soak_draw(thread, SOAK_CONTEXTS)], &made->shared);
}

/* Replaces a checkpoint, from which others may be loading. */
void soak_step_reopen(soak_thread *thread) {
    const soak_file file = (soak_file)soak_draw(thread, SOAK_DAMAGED);
    soak_checkpoint *made = soak_open(thread, file);
    if (made)
        soak_put(thread->soak, &thread->soak->checkpoints[file], &made->shared);
}

void soak_step_list(soak_thread *thread) {
    soak_checkpoint *checkpoint = soak_open(thread, SOAK_FOLDER);
    uint32_t matrices = 0;
    if (!checkpoint)
        return;
    for (uint64_t i = 0; i < trf_checkpoint_num_tensors(checkpoint->checkpoint); i++) {
        trf_tensor_info info;
        if (!soak_expect(thread, trf_checkpoint_tensor(checkpoint->checkpoint, i, &info, &thread->err), TRF_OK, "info"))
            break;
        matrices += (uint32_t)info.blobs;
    }
    if (matrices != 6 + 2 * SOAK_NUM_EXPERTS)
        soak_fail(thread, "the folder has %u matrices", matrices);
    soak_let_go(&checkpoint->shared);
}

/* The error has to be that of this thread's call, word for word. */
void soak_step_mistake(soak_thread *thread) {
    const uint32_t kind = soak_draw(thread, SOAK_MISTAKES);
    const soak_mistake *due = &thread->soak->mistakes[kind];
    soak_context *context = soak_take_context(thread);
    char text[64];
    if (!context)
        return;
    const trf_status status = soak_make_mistake(thread, context->context, kind, text);
    soak_let_go(&context->shared);
    if (!soak_expect(thread, status, due->status, "a mistake"))
        return;
    if (text[0] ? !strstr(thread->err.message, text)
                : strcmp(thread->err.message, due->err.message) != 0 || thread->err.offset != due->err.offset)
        soak_fail(thread, "mistake %u: %s, not %s", kind, thread->err.message, text[0] ? text : due->err.message);
}

/* ---- layers in host memory ---- */

void soak_step_host_layer(soak_thread *thread) {
    const soak *soak = thread->soak;
    const uint64_t bytes = 2ull * soak->pair_rows * soak->pair_cols;
    trf_layer *layer = NULL;
    uint8_t *weights = malloc(bytes);
    float *x = calloc(soak->pair_cols, sizeof *x), *y = calloc(soak->pair_rows, sizeof *y),
          *again = calloc(soak->pair_rows, sizeof *y);
    if (weights && x && y && again &&
        soak_expect(thread, trf_layer_from_memory(soak->pair_matrix.at, soak->pair_matrix.size, &layer, &thread->err),
                    TRF_OK, "a layer in memory")) {
        for (uint32_t i = 0; i < soak->pair_cols; i++)
            x[i] = (float)(i % 17) - 8;
        soak_expect(thread, trf_layer_decode(layer, weights, bytes, 1 + (int)soak_draw(thread, 3), &thread->err),
                    TRF_OK, "decoding");
        if (memcmp(weights, soak->pair_weights, bytes) != 0)
            soak_fail(thread, "weights that the host has decoded differ");
        soak_expect(thread, trf_layer_matmul_cpu(layer, x, 1, y, 1, &thread->err), TRF_OK, "a product");
        soak_expect(thread, trf_layer_matmul_cpu(layer, x, 1, again, 3, &thread->err), TRF_OK, "a product");
        if (memcmp(y, again, soak->pair_rows * sizeof *y) != 0)
            soak_fail(thread, "products of one and of three threads differ");
    }
    trf_layer_free(layer);
    layer = NULL;
    soak_expect(thread, trf_layer_open(soak->paths[SOAK_INT], &layer, &thread->err), TRF_OK, "a mapped layer");
    trf_layer_free(layer);
    free(weights);
    free(x);
    free(y);
    free(again);
}

void soak_step_encode_matrix(soak_thread *thread) {
    const soak *soak = thread->soak;
    const trf_matrix matrix = test_matrix(soak->pair_weights, TRF_DTYPE_BF16, soak->pair_rows, soak->pair_cols);
    trf_encode_options options;
    void *blob = NULL;
    uint64_t bytes = 0;
    trf_encode_options_init(&options);
    options.threads = 1 + (int)soak_draw(thread, 3);
    if (soak_expect(thread, trf_encode_layer(&matrix, &options, &blob, &bytes, NULL, &thread->err), TRF_OK,
                    "encoding") &&
        (bytes != soak->pair_matrix.size || memcmp(blob, soak->pair_matrix.at, bytes) != 0))
        soak_fail(thread, "a blob differs from the one in the file");
    trf_free(blob);
}

/* ---- whole checkpoints ---- */

/* Half of the calls are stopped at some call of progress. */
static trf_checkpoint_options draw_options(soak_thread *thread, soak_stop *stop) {
    trf_checkpoint_options options;
    trf_checkpoint_options_init(&options);
    options.encode.threads = 1 + (int)soak_draw(thread, 2);
    options.progress = soak_count_progress;
    options.progress_context = stop;
    stop->at = soak_draw(thread, 2) ? 1 + (int)soak_draw(thread, 12) : 0;
    return options;
}

static void check_status(soak_thread *thread, trf_status status, const soak_stop *stop, const char *what) {
    soak_expect(thread, status, stop->at && stop->calls >= stop->at ? TRF_ERR_CANCELLED : TRF_OK, what);
    if (stop->is_wrong)
        soak_fail(thread, "%s: progress is told more bytes than there are", what);
}

void soak_step_verify_files(soak_thread *thread) {
    const soak *soak = thread->soak;
    soak_stop stop = {0};
    const trf_checkpoint_options options = draw_options(thread, &stop);
    const int against = (int)soak_draw(thread, 2);
    const trf_status status =
        trf_verify_checkpoint(soak->paths[SOAK_PAIR], against ? soak->source_pair : NULL, &options, NULL, &thread->err);
    check_status(thread, status, &stop, "verifying a file");
}

static int file_has(const char *path, const soak_bytes *bytes) {
    FILE *file = fopen(path, "rb");
    uint8_t *found = malloc(bytes->size + 1);
    const int same = file && found && fread(found, 1, bytes->size + 1, file) == bytes->size &&
                     memcmp(found, bytes->at, bytes->size) == 0;
    if (file)
        fclose(file);
    free(found);
    return same;
}

/* The output is there, whole, if and only if the call succeeded. */
static void check_output(soak_thread *thread, trf_status status, const soak_stop *stop, const char *path,
                         const soak_bytes *due) {
    check_status(thread, status, stop, path);
    if (status == TRF_OK ? !file_has(path, due) : access(path, F_OK) == 0)
        soak_fail(thread, "%s: %s", path, status == TRF_OK ? "wrong bytes" : "a stopped call has left an output");
    if (status == TRF_OK)
        remove(path);
}

/* Lets `rewrite`, which compresses or decompresses, write a file of the thread's own. */
static void rewrite_file(soak_thread *thread, const char *in_path, const char *kind, const soak_bytes *due,
                         trf_status rewrite(const char *, const char *, const trf_checkpoint_options *,
                                            trf_checkpoint_report *, trf_error *)) {
    soak_stop stop = {0};
    const trf_checkpoint_options options = draw_options(thread, &stop);
    char path[512];
    snprintf(path, sizeof path, "%s.%s.%d.safetensors", thread->soak->output, kind, thread->number);
    check_output(thread, rewrite(in_path, path, &options, NULL, &thread->err), &stop, path, due);
}

void soak_step_compress(soak_thread *thread) {
    const soak *soak = thread->soak;
    rewrite_file(thread, soak->source_pair, "compressed", &soak->pair, trf_compress_checkpoint);
}

void soak_step_decompress(soak_thread *thread) {
    const soak *soak = thread->soak;
    rewrite_file(thread, soak->paths[SOAK_PAIR], "source", &soak->pair_source, trf_decompress_checkpoint);
}
