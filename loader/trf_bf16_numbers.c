/* SPDX-License-Identifier: Apache-2.0 */
#include "trf_bf16_numbers.h"

#include "trf_threads.h"

#include <stdlib.h>
#include <string.h>

enum {
    TRF_SAMPLE_WEIGHTS = 256,
    TRF_SAMPLES = 16, /* spread evenly */
    TRF_PIECE_BYTES = 1 << 20
};

/* @return whether the bits of all weights are those of BF16 numbers. */
static int are_bf16_numbers(const uint32_t *weights, size_t count) {
    uint32_t others = 0;
    for (size_t i = 0; i < count; i++) { /* without branches, so that it vectorizes */
        const uint32_t magnitude = weights[i] & 0x7FFFFFFFu;
        const uint32_t is_signaling = (magnitude > 0x7F800000u) & (magnitude < 0x7FC00000u);
        others |= (weights[i] & 0xFFFFu) | is_signaling;
    }
    return others == 0;
}

trf_status trf_may_be_bf16_numbers(const trf_file *file, uint64_t offset, uint64_t bytes, int *yes, trf_error *err) {
    uint32_t weights[TRF_SAMPLE_WEIGHTS];
    const uint64_t count = bytes / sizeof weights[0], part = count < TRF_SAMPLE_WEIGHTS ? count : TRF_SAMPLE_WEIGHTS;
    *yes = 1;
    for (uint64_t i = 0; i < TRF_SAMPLES && *yes && part; i++) {
        const uint64_t first = (count - part) / (TRF_SAMPLES - 1) * i;
        trf_status status =
            trf_file_read(file, offset + first * sizeof weights[0], weights, part * sizeof weights[0], err);
        if (status != TRF_OK)
            return status;
        *yes = are_bf16_numbers(weights, (size_t)part);
    }
    return TRF_OK;
}

/* Weights that several threads search. */
typedef struct trf_number_search {
    const trf_file *file;
    uint64_t offset, bytes;
    uint32_t **buffers; /* one for each worker */
} trf_number_search;

/* Searches one piece. Errors: also TRF_ERR_MISMATCH if a weight is another number, which ends the search. */
static trf_status look_through_piece(void *context, uint64_t index, int worker, trf_error *err) {
    const trf_number_search *search = context;
    const uint64_t begin = index * TRF_PIECE_BYTES, left = search->bytes - begin,
                   bytes = left < TRF_PIECE_BYTES ? left : TRF_PIECE_BYTES;
    uint32_t *buffer = search->buffers[worker];
    trf_status status = trf_file_read(search->file, search->offset + begin, buffer, bytes, err);
    if (status == TRF_OK && !are_bf16_numbers(buffer, bytes / sizeof *buffer))
        status = TRF_ERR_MISMATCH;
    return status;
}

static trf_status look_through_all(trf_job *job, trf_number_search *search, int *yes, trf_error *err) {
    const uint64_t pieces = (search->bytes + TRF_PIECE_BYTES - 1) / TRF_PIECE_BYTES;
    int workers = trf_thread_count(job->options.encode.threads);
    if ((uint64_t)workers > pieces)
        workers = (int)pieces;
    search->buffers = calloc((size_t)workers, sizeof *search->buffers);
    trf_status status = search->buffers ? TRF_OK : trf_fail_memory(err, (uint64_t)workers * sizeof *search->buffers);
    for (int i = 0; i < workers && status == TRF_OK; i++)
        if (!(search->buffers[i] = malloc(TRF_PIECE_BYTES)))
            status = trf_fail_memory(err, TRF_PIECE_BYTES);
    const uint64_t held = (uint64_t)workers * TRF_PIECE_BYTES;
    trf_job_count_buffer(job, held);
    if (status == TRF_OK) {
        trf_error failure = {0};
        status = trf_parallel_for(workers, pieces, look_through_piece, search, &failure);
        *yes = status == TRF_OK;
        if (status == TRF_ERR_MISMATCH)
            status = TRF_OK;
        else if (status != TRF_OK && err)
            *err = failure;
    }
    trf_job_uncount_buffer(job, held);
    for (int i = 0; search->buffers && i < workers; i++)
        free(search->buffers[i]);
    free(search->buffers);
    return status;
}

trf_status trf_are_bf16_numbers(trf_job *job, const trf_file *file, uint64_t offset, uint64_t bytes, int *yes,
                                trf_error *err) {
    trf_number_search search = {file, offset, bytes, NULL};
    trf_status status = trf_may_be_bf16_numbers(file, offset, bytes, yes, err);
    return status == TRF_OK && *yes && bytes ? look_through_all(job, &search, yes, err) : status;
}
