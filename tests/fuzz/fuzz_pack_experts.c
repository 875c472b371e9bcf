/* SPDX-License-Identifier: Apache-2.0 */
/* Takes any bytes as the blob of a coded BF16 expert, of which a mixture has several, and packs them as kernels do for
 * the products of many tokens, in emulated warps: rows as they are, and gate and up in turns. Nothing beside the packed
 * experts is written, and no block hangs; a bad slab is a fault; and what is packed of good ones is the same for each
 * expert. */
#include "fuzz_layer.h"
#include "fuzz_mutate_blob.h"
#include "trf_decode_choice.h"
#include "trf_pack.h"
#include "warp/warp_pack_coded.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum {
    MOST_EXPERTS = 3,
    ORDERS = 3
};

/* What a layer's rows are a multiple of, by trf_pack_coded_experts_refusal, which asks for memory besides. */
static uint32_t row_unit(uint32_t order) {
    return order == TRF_PACK_ROWS_OF_TWO ? (uint32_t)TRF_SLAB_ROWS : (uint32_t)TRF_PACKED_TILE_ROWS;
}

/* Packs `count` experts that are all this layer. */
static void pack(fuzz_layer *layer, trf_pack_rows order, uint32_t count, uint32_t number) {
    const trf_pack_input input = {
        .weights = layer->elements, .stride = layer->view.cols, .rows = layer->view.rows, .cols = layer->view.cols};
    const uint32_t rows = order == TRF_PACK_ROWS_OF_TWO ? 2 * layer->view.rows : layer->view.rows,
                   cols = layer->view.cols;
    trf_expert experts[MOST_EXPERTS];
    uint16_t windows[MOST_EXPERTS];
    trf_pack_expert_result results[MOST_EXPERTS];
    for (uint32_t e = 0; e < count; e++) {
        experts[e] = (trf_expert){.view = layer->view};
        windows[e] = trf_pack_window_word(trf_pack_window(&input));
    }
    memset(results, 0, sizeof results);
    const uint64_t bytes = warp_pack_coded_experts_bytes(count, rows, cols);
    uint8_t *memory = aligned_alloc(TRF_PACKED_ALIGNMENT, bytes);
    if (!memory)
        return;
    const trf_experts_to_pack request = {.view = &layer->view,
                                         .max_rans_bytes = layer->traits.max_rans_bytes,
                                         .count = count,
                                         .rows = order,
                                         .experts_dev = experts,
                                         .up_dev = order == TRF_PACK_ROWS_OF_TWO ? experts : NULL,
                                         .windows = windows,
                                         .memory = memory,
                                         .results = number & 1 ? results : NULL};
    warp_pack_coded_experts(&request, 1 + number / 2 % 4, (warp_grid){1 + number / 8 % 3, number});
    if (fuzz_layer_is_good(layer) == (layer->fault.set != 0))
        abort();
    const trf_packed_view *const views = (const trf_packed_view *)memory;
    for (uint32_t e = 1; e < count && fuzz_layer_is_good(layer) && results[0].counts.num_left == 0; e++) {
        const uint64_t tile_bytes = (uint64_t)views[0].bands * views[0].tiles_per_band * TRF_PACKED_TILE_BYTES;
        if (memcmp(views[0].tiles, views[e].tiles, tile_bytes) != 0 ||
            memcmp(&results[0], &results[e], sizeof results[0]) != 0)
            abort();
    }
    free(memory);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    fuzz_layer layer;
    if (fuzz_layer_make(&layer, data, size)) {
        const uint32_t number = (uint32_t)size / TRF_TILE_ALIGNMENT;
        for (uint32_t order = 0; order < ORDERS; order++)
            if (fuzz_layer_can_pack(&layer, row_unit(order))) {
                layer.fault.set = 0;
                pack(&layer, (trf_pack_rows)order, 1 + (number + order) % MOST_EXPERTS, number + order);
            }
        fuzz_layer_free(&layer);
    }
    return 0;
}

size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t max_size, unsigned int seed) {
    return fuzz_mutate_blob_input(data, size, max_size, seed);
}
