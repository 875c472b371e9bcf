/* SPDX-License-Identifier: Apache-2.0 */
/* Makes a tuning that has layers of several layouts, codecs and paths, and kernels of packed layers. The caller frees
 * it. */
#ifndef MADE_TUNING_H
#define MADE_TUNING_H

#include "checkpoint_fixture.h"
#include "trf_packed_wgmma_sizes.h"
#include "trf_tuning.h"

static inline trf_tuning *make_tuning(void) {
    trf_tuning *made;
    trf_error err;
    const trf_card card = {"some device", 90, 100, 3000};
    fixture_check_status(trf_tuning_create(&card, 5, &made, &err), TRF_OK, &err);
    made->layers[0] = (trf_tuned_layer){{TRF_LAYOUT_CODED, TRF_CODEC_BF16, 2, 8, 0, 8192, 8192},
                                        3,
                                        {{.m = 32, .path = TRF_PATH_FUSED, .microseconds = {20, 0, 30.25}},
                                         {.m = 384, .path = TRF_PATH_WIDE, .microseconds = {0, 120, 100}},
                                         {.m = 8192, .path = TRF_PATH_TWO_STEP, .microseconds = {0, 900, 1000}}}};
    made->layers[1] = (trf_tuned_layer){
        {TRF_LAYOUT_CODED, TRF_CODEC_BF16, 2, 8, 0, 1024, 4096}, 1, {{.m = 64, .path = TRF_PATH_TWO_STEP}}};
    made->layers[3] = (trf_tuned_layer){
        {TRF_LAYOUT_PLAIN, TRF_CODEC_BF16, 2, 8, 0, 8192, 8192}, 1, {{.m = 64, .path = TRF_PATH_DENSE}}};
    made->layers[3].points[0].microseconds[TRF_PATH_DENSE - 1] = 21;
    made->layers[4] = (trf_tuned_layer){
        {TRF_LAYOUT_PACKED, TRF_CODEC_BF16, 2, 8, 0, 4096, 4096},
        3,
        {{.m = 16, .path = TRF_PATH_PACKED, .has_packed = 1, .packed = {TRF_PACKED_BULK_256, TRF_PACKED_STREAM_K}},
         {.m = 64, .path = TRF_PATH_PACKED},
         {.m = 128, .path = TRF_PATH_PACKED, .has_packed = 1, .packed = {TRF_PACKED_WGMMA_128, 2}}}};
    made->layers[2] = (trf_tuned_layer){{TRF_LAYOUT_CODED, TRF_CODEC_INT, 4, 3, 1, 1024, 4096},
                                        1,
                                        {{.m = 16, .path = TRF_PATH_FUSED, .microseconds = {1, 2, 3}}}};
    return made;
}

#endif
