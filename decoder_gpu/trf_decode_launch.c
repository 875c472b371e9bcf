/* SPDX-License-Identifier: Apache-2.0 */
#include "trf_decode_launch.h"

int trf_launch_decode_layer(const trf_device_view *view, const trf_layer_traits *traits, trf_decode_as as,
                            void *weights, trf_stream stream) {
    int error = traits->coded_slabs ? trf_launch_decode_slabs(view, traits, as, weights, stream) : 0;
    if (!error && traits->irregular_weights)
        error = trf_launch_decode_edges(view, as, weights, stream);
    return error;
}
