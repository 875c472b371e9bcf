/* SPDX-License-Identifier: Apache-2.0 */
/* Packed FP8 layers on the CPU. trf_packed_layer_cpu.c loads, converts and decodes them together with packed BF16
 * ones. */
#include "trf_block_scales.h"
#include "trf_device_cpu.h"
#include "trf_gate_up.h"
#include "trf_pack8.h"
#include "trf_packed8_form.h"
#include "trf_packed8_layer.h"
#include "trf_packed8_validate.h"
#include "trf_threads.h"

#include <stdlib.h>
#include <string.h>

enum {
    BLOCK_ROWS = TRF_PACKED_TILE_ROWS, /* what has the same constants */
    BLOCK_COLS = TRF_PACKED8_PAIR_COLS
};

/* The codes and scales of a layer while it is packed. */
typedef struct trf_codes_work {
    const trf_pack8_request *requests; /* one; in turns those of gate and of up */
    int in_turns;
    const uint16_t *elements; /* [rows][stride] */
    size_t stride;
    uint8_t *codes; /* likewise */
    float *scales;  /* [ceil(rows / 64)][across]; in turns twice, one after the other */
    uint32_t rows, across;
} trf_codes_work;

static uint32_t blocks_of(uint32_t count, uint32_t block) { return count / block + (count % block != 0); }

static float scale_of(const trf_pack8_request *request, uint32_t row, uint32_t col) {
    if (request->granularity == TRF_GRANULARITY_NONE)
        return 1.0f;
    return request->scales[trf_scale_table_index(request->granularity, request->scale_group_size, request->scale_cols,
                                                 (uint64_t)request->row + row, (uint64_t)request->col + col)];
}

/* turn: 1 for the scales of up. */
static float *scales_of_turn(const trf_codes_work *work, uint32_t turn) {
    return work->scales + (size_t)turn * blocks_of(work->rows, BLOCK_ROWS) * work->across;
}

/* A trf_parallel_fn; index: which 64 rows. Elements of E4M3 without scales are codes already. */
static trf_status find_codes(void *context, uint64_t index, int worker, trf_error *err) {
    const trf_codes_work *work = context;
    const trf_pack8_request *request = work->requests;
    const uint32_t first = (uint32_t)index * BLOCK_ROWS, left = work->rows - first,
                   end = first + (left < BLOCK_ROWS ? left : BLOCK_ROWS);
    const int are_codes = request->dtype == TRF_DTYPE_F8_E4M3;
    (void)worker, (void)err;
    for (int turn = 0; turn <= work->in_turns; turn++)
        for (uint32_t block = 0; block < work->across; block++)
            scales_of_turn(work, turn)[index * work->across + block] =
                scale_of(&request[turn], work->in_turns ? first / 2 : first, block * BLOCK_COLS);
    for (uint32_t row = first; row < end; row++)
        for (uint32_t col = 0; col < request->cols; col++) {
            const size_t at = row * work->stride + col;
            const float *scales = scales_of_turn(work, work->in_turns ? row / TRF_GATE_UP_TURN % 2 : 0);
            const float inverse = 1 / scales[index * work->across + col / BLOCK_COLS];
            work->codes[at] =
                (uint8_t)(are_codes ? work->elements[at] : trf_packed8_nearest_code(work->elements[at], inverse));
        }
    return TRF_OK;
}

/* Packs what find_codes has found. at: the caller's memory, or NULL for made->memory. */
static trf_status pack_codes(trf_device_layer *made, const trf_codes_work *work, uint8_t *at, trf_error *err) {
    const trf_pack8_request *request = work->requests;
    const trf_pack8_input from = {.codes = work->codes,
                                  .weights = request->dtype == TRF_DTYPE_F8_E4M3 ? NULL : work->elements,
                                  .stride = work->stride,
                                  .rows = work->rows,
                                  .cols = request->cols,
                                  .scales = work->scales,
                                  .second_scales = work->in_turns ? scales_of_turn(work, 1) : NULL,
                                  .block_rows = BLOCK_ROWS,
                                  .block_cols = BLOCK_COLS};
    trf_packed8_head head;
    trf_status status = trf_pack8_head(&from, &head, err);
    if (status == TRF_ERR_UNSUPPORTED) {
        if (err)
            err->offset = TRF_NO_OFFSET; /* it counts in scales that the caller does not have */
        return trf_prefix_error(err, status, "the layer cannot be packed as FP8");
    }
    if (status == TRF_OK)
        status = trf_pack8_check_like(request, head.flags, err);
    if (status == TRF_OK && !at) {
        status = trf_cpu_allocate(made->context, head.common.buffer_bytes, &made->memory, err);
        at = made->memory;
    }
    if (status != TRF_OK)
        return status;
    trf_packed8_head_set_coded(&head, &made->header, &made->info);
    status = trf_pack8(&from, &head, at, err);
    if (status == TRF_OK)
        status = trf_cpu_add_data_checksum(made->context, at, head.common.buffer_bytes, err);
    if (status == TRF_OK)
        status = trf_packed8_set_buffer(made, &head, at, err);
    if (status != TRF_OK) {
        free(made->memory);
        made->memory = NULL;
    }
    return status;
}

/* Finds codes, and packs them. work: all but codes, scales and across is set. at: as for pack_codes. */
static trf_status find_and_pack(trf_device_layer *made, trf_codes_work *work, uint8_t *at, trf_error *err) {
    const uint32_t bands = blocks_of(work->rows, BLOCK_ROWS), cols = work->requests->cols;
    trf_status status;
    work->across = blocks_of(cols, BLOCK_COLS);
    work->codes = malloc(work->rows * work->stride);
    work->scales = malloc(sizeof *work->scales * bands * work->across * (work->in_turns ? 2 : 1));
    if (work->codes && work->scales)
        status = trf_parallel_for(trf_thread_count(made->context->threads), bands, find_codes, work, err);
    else
        status = trf_fail(err, TRF_ERR_MEMORY, TRF_NO_OFFSET, "cannot allocate the codes of %ux%u weights", work->rows,
                          cols);
    if (status == TRF_OK)
        status = pack_codes(made, work, at, err);
    free(work->codes);
    free(work->scales);
    return status;
}

trf_status trf_cpu_pack8(trf_device_layer *made, const trf_pack8_request *request, const uint16_t *elements,
                         size_t stride, uint8_t *at, trf_error *err) {
    trf_codes_work work = {.requests = request, .elements = elements, .stride = stride, .rows = request->rows};
    trf_status status = trf_pack8_check(request, err);
    return status == TRF_OK ? find_and_pack(made, &work, at, err) : status;
}

trf_status trf_cpu_pack8_turns(trf_device_layer *made, const trf_pack8_request requests[2], const uint16_t *weights,
                               const trf_layer_memory *memory, trf_error *err) {
    trf_codes_work work = {.requests = requests,
                           .in_turns = 1,
                           .elements = weights,
                           .stride = requests[0].cols,
                           .rows = 2 * requests[0].rows};
    return find_and_pack(made, &work, memory->buffer, err);
}

/* ---- dense weights ---- */

typedef struct trf_scales_work {
    const trf_rows_to_pack *rows;
    float *scales;        /* [block rows][across] */
    trf_found_fp8 *found; /* of each worker */
    uint32_t across;
    int checks_all; /* as in trf_launch_find_fp8 */
} trf_scales_work;

/* A trf_parallel_fn; index: a row of scale blocks. Fails with TRF_ERR_MISMATCH where the weights are no FP8, so that
 * the rest is not looked at. */
static trf_status find_scales(void *context, uint64_t index, int worker, trf_error *err) {
    const trf_scales_work *work = context;
    float *const scales = work->scales + index * work->across;
    if (trf_find_block_scales(work->rows, index, work->checks_all, scales, &work->found[worker]))
        return TRF_OK;
    return trf_fail(err, TRF_ERR_MISMATCH, TRF_NO_OFFSET, "the weights are no FP8");
}

/* Looks at the weights. *found: the outcome. */
static trf_status search(const trf_scales_work *work, int threads, trf_found_fp8 *found, trf_error *err) {
    trf_error failure = {0};
    *found = (trf_found_fp8){0};
    memset(work->found, 0, sizeof *work->found * (size_t)threads);
    const trf_status status = trf_parallel_for(threads, blocks_of(work->rows->num_rows, TRF_FOUND_FP8_BLOCK),
                                               find_scales, (void *)work, &failure);
    for (int i = 0; i < threads; i++) {
        found->misfits += work->found[i].misfits;
        found->numbers += work->found[i].numbers;
        found->refused |= work->found[i].refused;
        found->has_low |= work->found[i].has_low;
    }
    if (status != TRF_OK && status != TRF_ERR_MISMATCH) {
        if (err)
            *err = failure;
        return status;
    }
    return TRF_OK;
}

trf_status trf_cpu_find_fp8(trf_context *context, const trf_rows_to_pack *rows, trf_stream stream, int checks_all,
                            float *scales, trf_found_fp8 *found, trf_error *err) {
    const int threads = trf_thread_count(context->threads);
    trf_scales_work work = {
        .rows = rows, .scales = scales, .across = blocks_of(rows->cols, TRF_FOUND_FP8_BLOCK), .checks_all = checks_all};
    (void)stream;
    work.found = calloc((size_t)threads, sizeof *work.found);
    if (!work.found)
        return trf_fail(err, TRF_ERR_MEMORY, TRF_NO_OFFSET, "cannot allocate the results of %d threads", threads);
    const trf_status status = search(&work, threads, found, err);
    free(work.found);
    return status;
}

/* Searches, and packs what was found, first by samples, as on a GPU (pack_fp8 in trf_packed_load_cuda.c). */
static trf_status search_and_pack(trf_device_layer *made, trf_scales_work *work, const trf_device_layer *like,
                                  uint8_t *at, int *done, trf_error *err) {
    const trf_rows_to_pack *rows = work->rows;
    const trf_pack8_request request = trf_pack8_request_of_dense(rows->num_rows, rows->cols, work->scales, like);
    trf_error failure = {0};
    trf_status packed = TRF_ERR_UNSUPPORTED;
    for (work->checks_all = 0; work->checks_all < 2 && packed == TRF_ERR_UNSUPPORTED; work->checks_all++) {
        trf_found_fp8 found;
        int is_fp8 = 0;
        trf_status status = search(work, trf_thread_count(made->context->threads), &found, err);
        if (status == TRF_OK)
            status = trf_pack8_judge_search(made, &found, &is_fp8, err);
        if (status != TRF_OK || !is_fp8)
            return status;
        packed = trf_cpu_pack8(made, &request, rows->weights, rows->stride, at, &failure);
    }
    *done = !trf_pack8_falls_back(made, packed, &failure);
    if (!*done)
        return TRF_OK;
    if (err)
        *err = failure;
    return packed;
}

trf_status trf_cpu_pack8_dense(trf_device_layer *made, const trf_rows_to_pack *rows, const trf_device_layer *like,
                               uint8_t *at, int *done, trf_error *err) {
    const int threads = trf_thread_count(made->context->threads);
    trf_scales_work work = {.rows = rows, .across = blocks_of(rows->cols, TRF_FOUND_FP8_BLOCK)};
    trf_status status;
    *done = 0;
    work.scales = malloc(sizeof *work.scales * trf_found_fp8_blocks(rows->num_rows, rows->cols));
    work.found = calloc((size_t)threads, sizeof *work.found);
    if (work.scales && work.found)
        status = search_and_pack(made, &work, like, at, done, err);
    else
        status = trf_fail(err, TRF_ERR_MEMORY, TRF_NO_OFFSET, "cannot allocate the scales of %ux%u weights",
                          rows->num_rows, rows->cols);
    free(work.scales);
    free(work.found);
    return status;
}

/* Checks all of the buffer, as trf_cpu_adopt_packed_layer does. */
trf_status trf_cpu_adopt_packed8_layer(trf_device_layer *made, const void *buffer, uint64_t buffer_bytes,
                                       trf_error *err) {
    trf_packed8_view view;
    trf_status status = trf_packed8_adopt(made, buffer, buffer_bytes, err);
    return status == TRF_OK ? trf_validate_packed8(buffer, buffer_bytes, &view, err) : status;
}
