/* SPDX-License-Identifier: Apache-2.0 */
/* Takes any bytes as weights: what can be packed must be valid and unpack to them. It also writes any bytes over a
 * packed layer: if the head is valid, every reader must stay inside the layer, and the validator may accept only the
 * layer's own words.
 *
 * Byte 0 of an input says which of the two; then come rows, columns, the window and how weights are made. */
#include "common/packed_layer.h"
#include "fuzz_bytes.h"

#include "trf_packed_validate.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* Makes weights in a window, with weights from the input spread among them. */
static packed_layer make_layer(fuzz_bytes *bytes, trf_packed_window *window) {
    const uint32_t options = fuzz_take(bytes), rows = 1 + fuzz_take(bytes) % 130,
                   cols = 1 + fuzz_take_two(bytes) % 1100;
    packed_layer layer = packed_layer_make(rows, cols, options & 1);
    const size_t weights = (size_t)rows * cols;
    window->zeroing = options >> 1 & 1;
    window->base = 1 + fuzz_take(bytes) % TRF_PACKED_MAX_BASE;
    for (size_t i = 0; i < weights; i++)
        layer.weights[i] = (uint16_t)((i * 0x9E37 & 0x807F) | (window->base + 1 + i % 15) << 7);
    for (uint32_t row = 0; layer.row_offsets && row < rows; row += 7)
        layer.row_offsets[row] = (int8_t)fuzz_take(bytes);
    const uint32_t stride = 1 + fuzz_take(bytes); /* small ones make stored tiles */
    for (size_t i = fuzz_take(bytes); bytes->left && i < weights; i += stride)
        layer.weights[i] = (uint16_t)fuzz_take_two(bytes);
    return layer;
}

/* Writes bytes to places, both taken from the input, and corrects the head's checksum if the input asks for it. */
static void spoil(packed_layer *layer, fuzz_bytes *bytes) {
    const uint32_t how = fuzz_take(bytes);
    while (bytes->left >= 4) {
        const uint32_t at = fuzz_take_two(bytes) | fuzz_take(bytes) << 16;
        const uint64_t from = how & 1 ? layer->head.lines_offset : 0;
        layer->packed[from + at % (layer->head.common.buffer_bytes - from)] = (uint8_t)fuzz_take(bytes);
    }
    trf_packed_head *head = (trf_packed_head *)layer->packed;
    if (how & 2)
        head->common.checksum = trf_layout_head_checksum(&head->common);
}

static void read_spoiled(const packed_layer *layer) {
    trf_packed_view view;
    const uint64_t bytes = layer->head.common.buffer_bytes;
    const int valid = trf_validate_packed(layer->packed, bytes, &view, NULL) == TRF_OK;
    const int readable = trf_check_packed_head((const trf_packed_head *)layer->packed, bytes, NULL) == TRF_OK;
    if (valid && !readable)
        abort();
    if (readable)
        packed_layer_read_all(layer->packed);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    fuzz_bytes bytes = {data, size};
    const uint32_t mode = fuzz_take(&bytes);
    trf_packed_window window;
    packed_layer layer;
    if (mode % 2) { /* the first half of the bytes makes the layer, the rest spoils it */
        const size_t own = bytes.left / 2;
        fuzz_bytes first = {bytes.at, own};
        layer = make_layer(&first, &window);
        bytes.at += own;
        bytes.left -= own;
    } else {
        layer = make_layer(&bytes, &window);
    }
    const trf_status status = packed_layer_pack(&layer, mode & 2 ? &window : NULL, NULL);
    if (status == TRF_OK) {
        if (!packed_layer_is_right(&layer))
            abort();
        if (mode % 2) {
            spoil(&layer, &bytes);
            read_spoiled(&layer);
        }
    } else if (status != TRF_ERR_UNSUPPORTED) {
        abort();
    }
    packed_layer_free(&layer);
    return 0;
}
