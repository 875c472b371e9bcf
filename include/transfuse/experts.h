/* SPDX-License-Identifier: Apache-2.0 */
/* Mixtures of experts: layers of one shape, each of which has its own rows of x. They are for programs in which only
 * the device knows how many tokens each expert has, so that the host could not launch one product for each. transfuse.h
 * has the conventions. */
#ifndef TRANSFUSE_EXPERTS_H
#define TRANSFUSE_EXPERTS_H

#include "../transfuse.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct trf_experts trf_experts;

/* Makes experts of layers in an array [count] in host memory. They have one context, shape and codec, are no shards of
 * parts of tiles, and must outlive the experts. On a GPU an expert takes 208 bytes of device memory. Errors:
 * TRF_ERR_ARGUMENT for several contexts, shapes or codecs, TRF_ERR_UNSUPPORTED for such a shard. */
TRF_API trf_status trf_experts_create(trf_device_layer *const *layers, uint32_t count, trf_experts **experts,
                                      trf_error *err);

/* Loads all experts of a 3-D tensor, which then belong to *experts. tensor, options and errors are those of
 * trf_device_layer_load; progress counts each expert by itself. It is TRF_ERR_ARGUMENT, too, if the tensor has no
 * experts, and for options->memory: load "name[0]", "name[1]" ... and make experts of them. It is TRF_ERR_UNSUPPORTED,
 * as in trf_experts_create, for a layout other than CODED. */
TRF_API trf_status trf_experts_load(trf_context *context, trf_checkpoint *checkpoint, const char *tensor,
                                    const trf_load_options *options, trf_experts **experts, trf_error *err);
TRF_API void trf_experts_destroy(trf_experts *experts); /* waits for the device */
TRF_API uint32_t trf_experts_count(const trf_experts *experts);
TRF_API trf_device_layer *trf_experts_layer(const trf_experts *experts, uint32_t index); /* the experts' own */

/* A prepared product of so many tokens at most. It never changes. The experts must outlive it. */
typedef struct trf_experts_plan trf_experts_plan;

/* Prepares products, and does not touch the device. max_tokens, 1 to 2^26, is how many rows of x and y calls have at
 * most; the types are as in trf_plan_options. Errors: TRF_ERR_UNSUPPORTED on a GPU if an expert is one that groups do
 * not share launches for, or differs from the others in class bits, raw bits or width of slabs; the message says which
 * and why. */
TRF_API trf_status trf_experts_plan_create(const trf_experts *experts, uint32_t max_tokens, trf_dtype x_dtype,
                                           trf_dtype y_dtype, trf_experts_plan **plan, trf_error *err);
TRF_API void trf_experts_plan_destroy(trf_experts_plan *plan);                   /* waits for nothing */
TRF_API uint64_t trf_experts_plan_workspace_bytes(const trf_experts_plan *plan); /* that trf_experts_linear needs */

/* Computes y[t] = x[t] . W(e)^T for each token t, where expert e has the tokens offsets[e] to offsets[e + 1] - 1, so
 * that x is sorted by expert. All of these are in device memory. offsets, [count + 1], is 4-byte aligned and does not
 * decrease, and its last number is max_tokens at most. Work ordered before the call may write it, and a graph's replays
 * take what it holds then, but it must not change while the call's work runs. x is [offsets[count]][cols] and y
 * [offsets[count]][rows]; they are aligned to their elements and do not overlap. Rows of y before offsets[0] and from
 * offsets[count] on are left alone. Offsets that break these rules lead to a y that is unspecified, but never beyond
 * max_tokens rows of x and y. Only experts with tokens are decoded, once for each 8 of their tokens. workspace and
 * stream are those of trf_linear. Every run with the same offsets and one alignment of x gives the same bits; a token's
 * bits may depend on the other experts' counts. A corrupt slab makes its rows of y NaN for the tokens of its expert. On
 * the CPU it makes all rows NaN, and the call returns TRF_ERR_RANS after the other experts are done
 * (trf_experts_check). */
TRF_API trf_status trf_experts_linear(const trf_experts_plan *plan, const void *x, const uint32_t *offsets, void *y,
                                      void *workspace, trf_stream stream, trf_error *err);

/* Decodes all experts, to the bits that trf_device_layer_decode gives for each. weights is device memory of at least
 * weights_bytes, where expert e is at byte e * expert_stride, row-major [rows][cols]. Both are aligned to a weight,
 * expert_stride is not less than a matrix, and what lies between matrices is left alone. The call only enqueues work:
 * it neither allocates nor waits, and may be captured. On a GPU experts of a 16-bit float codec, decoded to 16 bits,
 * share one launch if they have class bits, raw bits, width of slabs and probability bits in common, those that the
 * encoder takes by itself; others take one each, and so do edges. It is the fastest with weights, a stride and rows at
 * multiples of 16 bytes. On the CPU corrupt slabs are TRF_ERR_RANS after the other experts are done. Errors: those of
 * trf_device_layer_decode; TRF_ERR_ARGUMENT for the stride; TRF_ERR_UNSUPPORTED for TRF_DECODE_SOURCE, too, if experts
 * differ in their source's type. */
TRF_API trf_status trf_experts_decode(const trf_experts *experts, trf_decode_as as, void *weights,
                                      uint64_t expert_stride, uint64_t weights_bytes, trf_stream stream,
                                      trf_error *err);

/* Does what trf_device_layer_check does for the first expert that met a corrupt tile; the message names it. */
TRF_API trf_status trf_experts_check(const trf_experts *experts, trf_error *err);

#ifdef __cplusplus
}
#endif
#endif
