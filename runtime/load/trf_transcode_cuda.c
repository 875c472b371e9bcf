/* SPDX-License-Identifier: Apache-2.0 */
/* Parts use two buffers in turns (trf_upload_in_parts). One buffer is filled on the copier's stream for copies while
 * the other one's part is taken on its work stream. That part is still there when the next part is taken, and may be
 * used again. The device memory is that of one load scratch, which the context keeps for the next layer. It holds, each
 * at a multiple of 256 bytes:
 *   head | slab directory, decode table | a fault for each part | two buffers
 * Events order the streams: the work on a part waits until its copies have arrived, and copies to its buffer wait until
 * that work is done. The host waits for neither: its threads go on reading. */
#include "trf_transcode_cuda.h"

#include "trf_cuda_call.h"
#include "trf_device_cuda.h"
#include "trf_layer_directory.h"
#include "trf_load_scratch_cuda.h"
#include "trf_staging_cuda.h"
#include "trf_upload_layer.h"

#include <cuda_runtime_api.h>
#include <stdlib.h>
#include <string.h>

enum {
    /* Four staging buffers, which take 320 us over PCIe 5. The dozen CUDA calls for a part are little beside that; each
     * of them takes a lock that all loads of a process share. */
    PART_BYTES = 16 << 20,
    BUFFERS = 2,
    EVENTS = 2 /* a load scratch's `taken`: for the part that is taken and for the one before */
};

typedef struct trf_transcoding {
    const trf_context *context;
    trf_layer_feed *feed;
    trf_layer_directory_offsets offsets; /* in the directory; fault_offset is that of the first part's fault */
    uint32_t tile_rows_each, num_parts;  /* rows of tiles of a part; the last one may have fewer */
    uint64_t directory_bytes;            /* faults included */
    uint64_t directory_offset, buffers_offset, buffer_bytes;
    trf_load_scratch *scratch;
    uint8_t *memory;    /* device: the load scratch's */
    uint8_t *directory; /* host */
    cudaStream_t copies, work;
    trf_take_part_fn *take;
    void *take_context;
} trf_transcoding;

/* ---- parts ---- */

/* The tiles [first, end) of what is loaded. */
typedef struct trf_tile_range {
    uint64_t first, end;
} trf_tile_range;

/* A part has as many rows of tiles as PART_BYTES hold if all have average size, but at least one; and fewer where that
 * does not change the number of parts. */
static uint32_t tile_rows_of_part(const trf_blob_view *view) {
    const uint32_t all = view->header.num_tile_rows;
    const uint64_t bytes = view->header.blob_bytes - view->extension.data_offset;
    const uint32_t fit = bytes > PART_BYTES ? (uint32_t)((uint64_t)all * PART_BYTES / bytes) : all;
    if (fit <= 1)
        return 1;
    const uint32_t parts = (all + fit - 1) / fit;
    return (all + parts - 1) / parts;
}

uint32_t trf_most_part_rows(const trf_blob_view *view) {
    const uint64_t rows = (uint64_t)tile_rows_of_part(view) * TRF_TILE_SIZE;
    return rows < view->header.rows ? (uint32_t)rows : view->header.rows;
}

static trf_tile_range tiles_of_part(const trf_transcoding *t, uint32_t part) {
    const trf_header *header = &t->feed->view->header;
    const uint64_t first = (uint64_t)part * t->tile_rows_each, behind = first + t->tile_rows_each;
    const uint64_t end = behind < header->num_tile_rows ? behind : header->num_tile_rows;
    return (trf_tile_range){first * header->num_tile_cols, end * header->num_tile_cols};
}

static uint64_t bytes_of_part(const trf_transcoding *t, uint32_t part) {
    const trf_tile_range tiles = tiles_of_part(t, part);
    const trf_tile_meta *first = &t->feed->view->tiles[tiles.first], *last = &t->feed->view->tiles[tiles.end - 1];
    return last->data_offset + last->data_size - first->data_offset;
}

/* Finds the part's entries in the slab directory. */
static void find_part_slabs(const trf_transcoding *t, const trf_device_view *part, uint32_t first_row, uint64_t *at,
                            uint64_t *bytes) {
    const uint64_t band_bytes = sizeof(trf_device_slab) * trf_count_panels(&t->feed->view->header);
    *at = first_row / TRF_SLAB_ROWS * band_bytes;
    *bytes = part->num_bands * band_bytes;
}

/* @return where the blob would begin if the part lay in it at its place: slabs and tiles have their offsets from
 * there. */
static const uint8_t *blob_around(const uint8_t *part_dev, uint64_t data_offset) {
    return (const uint8_t *)((uintptr_t)part_dev - (uintptr_t)data_offset);
}

static void view_part(const trf_transcoding *t, uint32_t number, trf_coded_part *part) {
    const trf_blob_view *blob = t->feed->view;
    const trf_header *header = &blob->header;
    const trf_tile_range tiles = tiles_of_part(t, number);
    uint8_t *const directory = t->memory + t->directory_offset;
    trf_device_view *view = &part->view;
    uint64_t slabs_offset, slabs_bytes;
    *view = trf_device_view_of_layer(blob, t->memory, directory,
                                     (trf_device_fault *)(directory + t->offsets.fault_offset) + number);
    part->first_row = number * t->tile_rows_each * TRF_TILE_SIZE;
    view->num_tile_rows = (uint32_t)((tiles.end - tiles.first) / header->num_tile_cols);
    const uint32_t left = header->rows - part->first_row;
    view->rows = left < view->num_tile_rows * TRF_TILE_SIZE ? left : view->num_tile_rows * TRF_TILE_SIZE;
    view->num_bands = (view->rows + TRF_SLAB_ROWS - 1) / TRF_SLAB_ROWS;
    find_part_slabs(t, view, part->first_row, &slabs_offset, &slabs_bytes);
    view->slabs = (const trf_device_slab *)(directory + slabs_offset);
    view->tiles += tiles.first;
    if (view->row_offsets)
        view->row_offsets += part->first_row;
    view->scale_row = part->first_row;
    view->buffer = blob_around(t->memory + t->buffers_offset + number % BUFFERS * t->buffer_bytes,
                               blob->tiles[tiles.first].data_offset);
}

/* ---- what the device and the host have meanwhile ---- */

static trf_status allocate(trf_transcoding *t, trf_error *err) {
    const trf_blob_view *view = t->feed->view;
    const trf_header *header = &view->header;
    t->offsets = trf_layer_directory_offsets_of(view);
    t->tile_rows_each = tile_rows_of_part(view);
    t->num_parts = (header->num_tile_rows + t->tile_rows_each - 1) / t->tile_rows_each;
    for (uint32_t part = 0; part < t->num_parts; part++) {
        const uint64_t bytes = trf_device_align(bytes_of_part(t, part));
        t->buffer_bytes = bytes > t->buffer_bytes ? bytes : t->buffer_bytes;
    }
    t->directory_bytes = t->offsets.fault_offset + t->num_parts * sizeof(trf_device_fault);
    t->directory_offset = trf_device_align(view->extension.data_offset);
    t->buffers_offset = t->directory_offset + trf_device_align(t->directory_bytes);
    t->directory = calloc(1, t->directory_bytes);
    if (!t->directory)
        return trf_fail(err, TRF_ERR_MEMORY, TRF_NO_OFFSET, "cannot allocate %llu bytes for a layer's slab directory",
                        (unsigned long long)t->directory_bytes);
    const uint32_t buffers = t->num_parts < BUFFERS ? t->num_parts : BUFFERS;
    trf_status status = trf_load_scratch_take(t->context->load_scratches, t->buffers_offset + buffers * t->buffer_bytes,
                                              &t->scratch, err);
    if (status == TRF_OK)
        t->memory = t->scratch->memory;
    return status;
}

static void release(trf_transcoding *t) {
    trf_load_scratch_give_back(t->context->load_scratches, t->scratch);
    free(t->directory);
}

/* Sends the head, and the part of the directory that does not depend on tiles. The head of a slice has no checksums
 * yet, but no kernel reads them. Both come from ordinary memory, which CUDA has copied when the call returns: staging
 * buffers would be taken for a few KiB while others wait for them. */
static trf_status send_head(trf_transcoding *t, trf_error *err) {
    const trf_blob_view *view = t->feed->view;
    trf_write_head_directory(view, t->directory);
    cudaError_t error =
        cudaMemcpyAsync(t->memory, view->head, view->extension.data_offset, cudaMemcpyHostToDevice, t->work);
    if (!error)
        error = cudaMemcpyAsync(t->memory + t->directory_offset + t->offsets.decode_table_offset,
                                t->directory + t->offsets.decode_table_offset,
                                t->directory_bytes - t->offsets.decode_table_offset, cudaMemcpyHostToDevice, t->work);
    return trf_check_cuda(error, "sending a layer's head", err);
}

/* ---- the way of a part ---- */

/* Makes the work on a part wait for its bytes, and sends its entries of the slab directory. They come from ordinary
 * memory, which CUDA has copied when the call returns. */
static cudaError_t begin_part(const trf_transcoding *t, const trf_coded_part *part) {
    uint64_t slabs_offset, slabs_bytes;
    find_part_slabs(t, &part->view, part->first_row, &slabs_offset, &slabs_bytes);
    cudaError_t error = cudaEventRecord(t->scratch->arrived, t->copies);
    if (!error)
        error = cudaStreamWaitEvent(t->work, t->scratch->arrived, 0);
    if (!error)
        error = cudaMemcpyAsync(t->memory + t->directory_offset + slabs_offset, t->directory + slabs_offset,
                                slabs_bytes, cudaMemcpyHostToDevice, t->work);
    return error;
}

/* Makes copies that begin from now on wait for the part before. They are the first ones that go to its buffer. */
static cudaError_t end_part(const trf_transcoding *t, uint32_t number) {
    void *const *taken = t->scratch->taken;
    cudaError_t error = cudaEventRecord(taken[number % EVENTS], t->work);
    if (!error && number > 0)
        error = cudaStreamWaitEvent(t->copies, taken[(number - 1) % EVENTS], 0);
    return error;
}

/* The member `take` of trf_part_buffers. */
static trf_status take_part(void *context, uint32_t number, const trf_layer_traits *traits, trf_error *err) {
    trf_transcoding *t = context;
    trf_coded_part part = {.traits = *traits};
    trf_device_scope scope;
    view_part(t, number, &part);
    trf_status status = trf_enter_device(t->context->device, &scope, err); /* any thread may call this */
    if (status != TRF_OK)
        return status;
    status = trf_check_cuda(begin_part(t, &part), "sending a part of a layer", err);
    if (status == TRF_OK)
        status = t->take(t->take_context, &part, t->work, err);
    if (status == TRF_OK)
        status = trf_check_cuda(end_part(t, number), "decoding a part of a layer", err);
    trf_leave_device(&scope);
    return status;
}

/* @return where the parts' faults go on the host. It is page-locked memory if they fit there, which a few hundred
 * do. */
static trf_device_fault *faults_on_host(const trf_transcoding *t) {
    const int fits = t->num_parts * sizeof(trf_device_fault) <= TRF_LOAD_SCRATCH_RESULT_BYTES;
    uint8_t *const at = fits ? t->scratch->results : t->directory + t->offsets.fault_offset;
    return (trf_device_fault *)at;
}

/* Waits until all work that was queued for the parts is done, and their faults are on the host. */
static trf_status await_parts(const trf_transcoding *t, trf_error *err) {
    cudaError_t error = cudaMemcpyAsync(faults_on_host(t), t->memory + t->directory_offset + t->offsets.fault_offset,
                                        t->num_parts * sizeof(trf_device_fault), cudaMemcpyDeviceToHost, t->work);
    if (!error)
        error = cudaEventRecord(t->scratch->arrived, t->work);
    if (!error)
        error = cudaEventSynchronize(t->scratch->arrived);
    return trf_check_cuda(error, "decoding a layer while it is loaded", err);
}

/* Reports the first tile that did not decode. All parts are done. */
static trf_status check_faults(const trf_transcoding *t, trf_error *err) {
    const trf_device_fault *faults = faults_on_host(t);
    trf_status status = TRF_OK;
    for (uint32_t part = 0; status == TRF_OK && part < t->num_parts; part++)
        if (faults[part].set)
            status = trf_layer_feed_fail_tile(
                t->feed,
                tiles_of_part(t, part).first + ((uint64_t)faults[part].tile_high << 32 | faults[part].tile_low), err);
    return status;
}

static trf_status run_parts(trf_transcoding *t, trf_error *err) {
    const trf_part_buffers buffers = {.tiles_each = (uint64_t)t->tile_rows_each * t->feed->view->header.num_tile_cols,
                                      .memory = t->memory + t->buffers_offset,
                                      .buffer_bytes = t->buffer_bytes,
                                      .buffers = BUFFERS,
                                      .take = take_part,
                                      .context = t};
    trf_status status = send_head(t, err);
    if (status == TRF_OK)
        status = trf_upload_in_parts(t->context->staging, t->feed, &buffers, (trf_device_slab *)t->directory, err);
    if (status == TRF_OK)
        status = await_parts(t, err);
    if (status == TRF_OK)
        status = check_faults(t, err);
    if (status == TRF_OK)
        status = t->take(t->take_context, NULL, t->work, err);
    if (status != TRF_OK) { /* the memory may be reused after this */
        trf_staging_drain(t->context->staging);
        trf_pass_over_cuda(cudaStreamSynchronize(t->work));
    }
    return status;
}

trf_status trf_cuda_transcode(const trf_context *of, trf_layer_feed *feed, trf_take_part_fn *take, void *context,
                              trf_error *err) {
    trf_transcoding t = {.context = of,
                         .feed = feed,
                         .copies = trf_cuda_copier_stream(of->copier),
                         .work = trf_cuda_copier_work_stream(of->copier),
                         .take = take,
                         .take_context = context};
    if (feed->view->header.blob_bytes > TRF_DEVICE_MAX_BLOB_BYTES)
        return trf_fail(err, TRF_ERR_UNSUPPORTED, TRF_NO_OFFSET, "a blob of %llu bytes; on a device %llu are the limit",
                        (unsigned long long)feed->view->header.blob_bytes,
                        (unsigned long long)TRF_DEVICE_MAX_BLOB_BYTES);
    trf_status status = trf_staging_open(of->staging, err);
    if (status == TRF_OK)
        status = allocate(&t, err);
    if (status == TRF_OK)
        status = run_parts(&t, err);
    release(&t);
    return status;
}
