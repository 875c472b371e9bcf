/* SPDX-License-Identifier: Apache-2.0 */
#include "trf_dense_bands_cuda.h"

#include "trf_cuda_call.h"
#include "trf_decode_launch.h"
#include "trf_device_cuda.h"

#include <cuda_runtime_api.h>

/* Packs the complete packed bands among `count` rows of the shard, which begin at `rows`, and keeps the rest in front
 * of `part`. */
static int pack_rows(trf_dense_bands *bands, const uint16_t *rows, uint32_t count, uint16_t *part, trf_stream stream) {
    const trf_shard_range *shard = bands->shard;
    const uint64_t cols = bands->cols;
    const int is_last = bands->packed + count == shard->rows;
    const uint32_t now = is_last ? count : count / TRF_PACKED_TILE_ROWS * TRF_PACKED_TILE_ROWS;
    const trf_rows_to_pack range = {rows + shard->col, cols, bands->packed, now, shard->cols};
    int error = now ? bands->pack(bands->context, &range, stream) : 0;
    bands->packed += now;
    bands->left = count - now;
    if (!error && bands->left)
        error = cudaMemcpyAsync(part - bands->left * cols, rows + now * cols, 2 * bands->left * cols,
                                cudaMemcpyDeviceToDevice, stream);
    return error;
}

trf_status trf_dense_bands_take(trf_dense_bands *bands, const trf_coded_part *coded, trf_stream stream,
                                trf_error *err) {
    const trf_shard_range *shard = bands->shard;
    const uint64_t cols = bands->cols, dense_rows = (uint64_t)TRF_PACKED_TILE_ROWS + bands->part_rows;
    const uint32_t end = coded->first_row + coded->view.rows, shard_end = shard->row + shard->rows;
    const uint32_t skipped = coded->first_row < shard->row ? shard->row - coded->first_row : 0; /* left is 0 then */
    const uint32_t rows = (end < shard_end ? end : shard_end) - coded->first_row;
    trf_status status = TRF_OK;
    if (!bands->dense)
        status = trf_cuda_allocate_here(sizeof *bands->dense * dense_rows * cols, (void **)&bands->dense, err);
    if (status != TRF_OK)
        return status;
    uint16_t *const part = bands->dense + TRF_PACKED_TILE_ROWS * cols;
    int error = trf_launch_decode_layer(&coded->view, &coded->traits, bands->as, part, stream);
    if (!error && rows > skipped)
        error =
            pack_rows(bands, part + skipped * cols - bands->left * cols, rows - skipped + bands->left, part, stream);
    return trf_check_cuda(error, "packing a part of a layer", err);
}

void trf_dense_bands_release(trf_dense_bands *bands) {
    if (bands->dense)
        cudaFree(bands->dense);
    bands->dense = NULL;
}
