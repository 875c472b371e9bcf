/* SPDX-License-Identifier: Apache-2.0 */
/* Launchers of the kernels that decode to memory. C and CUDA; each returns the launch's cudaError_t as an int, 0 for
 * success, and only enqueues work on `stream`. */
#ifndef TRF_DECODE_LAUNCH_H
#define TRF_DECODE_LAUNCH_H

#include "trf_decode_choice.h"
#include "trf_device_view.h"
#include "trf_layer_traits.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Decodes every weight of the layer: regular slabs with one kernel, edges (trf_edges.h) with another. weights: device,
 * [rows][cols] of the type that `as` says. */
int trf_launch_decode_layer(const trf_device_view *view, const trf_layer_traits *traits, trf_decode_as as,
                            void *weights, trf_stream stream);

/* Decodes every weight of the regular slabs, and nothing else. */
int trf_launch_decode_slabs(const trf_device_view *view, const trf_layer_traits *traits, trf_decode_as as,
                            void *weights, trf_stream stream);

/* Experts to decode: the array of them that kernels read, and what the host knows about all of them. */
typedef struct trf_expert_decoding {
    const trf_device_view *view;   /* of any expert: they are alike (trf_decode_alike) */
    const trf_expert *experts_dev; /* [count] */
    uint32_t count;
    trf_decode_as as;
    void *weights; /* device; expert e's weights are at e times weights_stride bytes */
    uint64_t weights_stride;
} trf_expert_decoding;

/* Decodes every weight of the regular slabs of all experts with one kernel, as trf_choose_expert_decode has chosen. */
int trf_launch_decode_experts(const trf_expert_decoding *experts, const trf_expert_decode_choice *chosen,
                              trf_stream stream);

/* Does what trf_launch_decode_slabs does, with the kernel for edges: it takes every valid layer, but is slow.
 * trf_launch_decode_slabs falls back on it. */
int trf_launch_decode_slabs_as_edges(const trf_device_view *view, trf_decode_as as, void *weights, trf_stream stream);

/* Decodes every weight of the edges, and nothing else. */
int trf_launch_decode_edges(const trf_device_view *view, trf_decode_as as, void *weights, trf_stream stream);

#ifdef __cplusplus
}
#endif

#endif
