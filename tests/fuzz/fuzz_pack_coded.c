/* SPDX-License-Identifier: Apache-2.0 */
/* Takes any bytes as the blob of a coded BF16 layer, and packs it as kernels do, straight from its slabs in emulated
 * warps. Whatever its rANS streams hold, nothing beside the packed layer is written; a bad slab is a fault; and a good
 * layer becomes what the reference packs, unless lines are left to other kernels. */
#include "fuzz_layer.h"
#include "fuzz_mutate_blob.h"
#include "trf_pack.h"
#include "warp/warp_pack_coded.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void compare(const trf_pack_input *input, const trf_packed_head *head, const uint8_t *packed) {
    uint8_t *reference = aligned_alloc(TRF_PACKED_ALIGNMENT, head->common.buffer_bytes);
    if (!reference)
        return;
    if (trf_pack(input, head, reference, NULL) != TRF_OK ||
        memcmp(reference + head->lines_offset, packed + head->lines_offset, head->num_lines * TRF_PACKED_LINE_BYTES) !=
            0 ||
        memcmp(reference + head->tiles_offset, packed + head->tiles_offset, head->num_tiles * TRF_PACKED_TILE_BYTES) !=
            0)
        abort();
    free(reference);
}

static void pack(fuzz_layer *layer, uint32_t order) {
    const trf_pack_input input = {
        .weights = layer->elements, .stride = layer->view.cols, .rows = layer->view.rows, .cols = layer->view.cols};
    const trf_packed_window window = trf_pack_window(&input);
    trf_packed_head reference, head;
    const trf_status status = trf_pack_head(&input, window, &reference, NULL);
    if (trf_size_packed(input.rows, input.cols, 0, 0, &head, NULL) != TRF_OK)
        return;
    trf_packed_head_set_window(&head, window);
    uint8_t *memory = aligned_alloc(TRF_PACKED_ALIGNMENT, head.common.buffer_bytes);
    void *scratch = malloc(warp_pack_coded_scratch_bytes(input.rows, input.cols));
    if (memory && scratch) {
        const trf_packed_view view = trf_packed_view_of(&head, memory);
        trf_pack_coded_counts counts = {0, 0};
        trf_pack_state state = {0, 0, 0};
        const warp_coded_packing packing = {
            &layer->view, layer->traits.max_rans_bytes, &view, 0, {scratch, &counts, &state}, 1 + order % 4};
        const warp_grid grid = {1 + order / 4 % 3, order};
        warp_pack_coded(&packing, grid);
        if (fuzz_layer_is_good(layer) == (layer->fault.set != 0))
            abort();
        if (fuzz_layer_is_good(layer) && status == TRF_OK && counts.num_left == 0) {
            if (state.inexact || counts.num_records != reference.num_records || reference.num_stored != 0)
                abort();
            compare(&input, &reference, memory);
        }
    }
    free(memory);
    free(scratch);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    fuzz_layer layer;
    if (fuzz_layer_make(&layer, data, size)) {
        if (fuzz_layer_can_pack(&layer, TRF_PACKED_TILE_ROWS)) /* as trf_can_pack_coded */
            pack(&layer, (uint32_t)size / TRF_TILE_ALIGNMENT);
        fuzz_layer_free(&layer);
    }
    return 0;
}

size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t max_size, unsigned int seed) {
    return fuzz_mutate_blob_input(data, size, max_size, seed);
}
