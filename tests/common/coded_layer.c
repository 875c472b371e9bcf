/* SPDX-License-Identifier: Apache-2.0 */
#include "coded_layer.h"

#include "checkpoint_fixture.h"
#include "test_calls.h"
#include "trf_smem_layout.h"

coded_layer coded_layer_encode(const uint16_t *weights, uint32_t rows, uint32_t cols, trf_favor favor,
                               uint32_t slab_cols) {
    const trf_matrix matrix = test_matrix(weights, TRF_DTYPE_BF16, rows, cols);
    coded_layer coded = {0};
    uint64_t bytes;
    trf_error err;
    trf_encode_options options;
    trf_encode_options_init(&options);
    options.favor = favor;
    options.slab_cols = slab_cols;
    fixture_check_status(trf_encode_layer(&matrix, &options, &coded.blob, &bytes, NULL, &err), TRF_OK, &err);
    fixture_check_status(trf_layer_from_memory(coded.blob, bytes, &coded.layer, &err), TRF_OK, &err);
    coded.host = host_view_make(&coded.layer->view, coded.blob, bytes);
    const trf_device_view *view = &coded.host->view;
    for (uint32_t s = 0; s < view->num_bands * view->num_panels; s++)
        if (16u * view->slabs[s].rans_size_16 > coded.max_rans_bytes)
            coded.max_rans_bytes = 16u * view->slabs[s].rans_size_16;
    return coded;
}

int coded_layer_is_packable(const coded_layer *coded) {
    trf_layer_info info;
    uint32_t max_frequency = 0;
    trf_layer_get_info(coded->layer, &info);
    for (uint32_t s = 0; s < TRF_ALPHABET; s++)
        if (coded->layer->view.frequency[s] > max_frequency)
            max_frequency = coded->layer->view.frequency[s];
    return info.stored_tiles == 0 && !coded->host->view.row_offsets &&
           trf_has_default_p(&coded->host->view, max_frequency);
}

void coded_layer_free(coded_layer *coded) {
    host_view_free(coded->host);
    trf_layer_free(coded->layer);
    trf_free(coded->blob);
}
