/* Launchers of the two-step decoder's kernels. C and CUDA; each returns the launch's cudaError_t as an int, 0 for
 * success, and only enqueues work on `stream`. */
#ifndef TRF_DECODE_LAUNCH_H
#define TRF_DECODE_LAUNCH_H

#include "trf_device_layer.h"

#ifdef __cplusplus
extern "C" {
#endif

/* A slab is *regular* if it has 32 rows and whole chunks: 64, 128, 192 or 256 columns. All else of a layer (other
 * slabs, slivers, stored tiles) are its *edges*. */
TRF_HD int trf_slab_is_regular(uint32_t blocks, uint32_t steps) { return blocks == 2 && steps % 4 == 0; }

/* As trf_device_layer_decode, arguments checked. */
trf_status trf_cuda_decode(const trf_device_layer *layer, trf_decode_as as, void *weights, trf_stream stream,
                           trf_error *err);

/* Both parts. weights: device, as trf_device_layer_decode. */
int trf_launch_decode(const trf_device_view *view, const trf_layer_traits *traits, trf_decode_as as, void *weights,
                      trf_stream stream);

/* Every weight of the regular slabs, and nothing else. */
int trf_launch_decode_slabs(const trf_device_view *view, const trf_layer_traits *traits, trf_decode_as as,
                            void *weights, trf_stream stream);

/* The same for every valid layer, slowly: what trf_launch_decode_slabs resorts to. */
int trf_launch_decode_slabs_general(const trf_device_view *view, trf_decode_as as, void *weights, trf_stream stream);

/* Every weight of the edges, and nothing else. */
int trf_launch_decode_edges(const trf_device_view *view, trf_decode_as as, void *weights, trf_stream stream);

#ifdef __cplusplus
}
#endif

#endif
