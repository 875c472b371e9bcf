/* SPDX-License-Identifier: Apache-2.0 */
/* Mixtures of experts: layers of one shape, each of which has its own rows of x. They are for programs in which only
 * the device knows how many tokens each expert has, so that the host could not launch one product for each. transfuse.h
 * has the conventions. */
#ifndef TRANSFUSE_EXPERTS_H
#define TRANSFUSE_EXPERTS_H

#include "device_memory.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct trf_experts trf_experts;

/* Makes experts of layers in an array [count] in host memory. They have one context, shape, codec and layout, which is
 * coded, packed or packed8; coded ones are no shards of parts of tiles. They must outlive the experts. On a GPU an
 * expert takes up to 208 bytes of device memory. Errors: TRF_ERR_ARGUMENT for several contexts, shapes, codecs or
 * layouts; TRF_ERR_UNSUPPORTED for such a shard, plain layers, and on a GPU for packed layers that keep row offsets,
 * more than 512 of them, or a compute capability other than 9.0. */
TRF_API trf_status trf_experts_create(trf_device_layer *const *layers, uint32_t count, trf_experts **experts,
                                      trf_error *err);

/* Loads all experts of a 3-D tensor, which then belong to *experts. tensor, options and errors are those of
 * trf_device_layer_load; progress counts each expert by itself. It is TRF_ERR_ARGUMENT, too, if the tensor has no
 * experts, and for options->memory: load "name[0]", "name[1]" ... and make experts of them. It is TRF_ERR_UNSUPPORTED,
 * as in trf_experts_create, for layout PLAIN. Of layout PACKED, FP8 experts are packed FP8 if all of them fit, and else
 * all packed BF16, and trf_device_layer_get_layout_reason says why. */
TRF_API trf_status trf_experts_load(trf_context *context, trf_checkpoint *checkpoint, const char *tensor,
                                    const trf_load_options *options, trf_experts **experts, trf_error *err);
TRF_API void trf_experts_destroy(trf_experts *experts); /* waits for the device */
TRF_API uint32_t trf_experts_count(const trf_experts *experts);
TRF_API trf_device_layer *trf_experts_layer(const trf_experts *experts, uint32_t index); /* the experts' own */

/* A prepared product of so many tokens at most. It never changes. The experts must outlive it. */
typedef struct trf_experts_plan trf_experts_plan;

/* Prepares products, and does not touch the device. max_tokens, 1 to 2^26, is how many rows of x and y calls have at
 * most; the types are as in trf_plan_options. Errors: TRF_ERR_UNSUPPORTED on a GPU if a coded expert is one that groups
 * do not share launches for, or differs from the others in class bits, raw bits or width of slabs; the message says
 * which and why. Packed experts take x in BF16, and up to some 2^24 tokens. */
TRF_API trf_status trf_experts_plan_create(const trf_experts *experts, uint32_t max_tokens, trf_dtype x_dtype,
                                           trf_dtype y_dtype, trf_experts_plan **plan, trf_error *err);
TRF_API void trf_experts_plan_destroy(trf_experts_plan *plan);                   /* waits for nothing */
TRF_API uint64_t trf_experts_plan_workspace_bytes(const trf_experts_plan *plan); /* that trf_experts_linear needs */

/* Computes y[t] = x[t] . W(e)^T for each token t, where expert e has the tokens offsets[e] to offsets[e + 1] - 1, so
 * that x is sorted by expert. All of these are in device memory. offsets, [count + 1], is 4-byte aligned and does not
 * decrease, and its last number is max_tokens at most. Work ordered before the call may write it, and a graph's
 * replays take what it holds then, but it must not change while the call's work runs. x is [offsets[count]][cols] and
 * y [offsets[count]][rows]; they are aligned to their elements and do not overlap. Rows of y before offsets[0] and
 * from offsets[count] on are left alone. Offsets that break these rules lead to a y that is unspecified, but never
 * beyond max_tokens rows of x and y. Of coded experts only those with tokens are decoded, once for each 8 of their
 * tokens. workspace and stream are those of trf_linear. Every run with the same offsets and one alignment of x gives
 * the same bits; a token's bits may depend on the other experts' counts. A corrupt slab makes its rows of y NaN for
 * the tokens of its expert. On the CPU it makes all rows NaN, and the call returns TRF_ERR_RANS after the other
 * experts are done (trf_experts_check). */
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

/* ---- packing experts ---- */

/* In which order the rows of gate and up lie that are one matrix. */
typedef enum trf_gate_up_order {
    TRF_GATE_UP_HALVES = 0,       /* first all rows of gate, then all rows of up */
    TRF_GATE_UP_INTERLEAVED_8 = 1 /* 8 rows of gate, the same 8 rows of up, the next 8 rows of gate ... */
} trf_gate_up_order;

typedef struct trf_expert_pack_options {
    size_t struct_bytes;
    /* The order in which rows are packed. TRF_GATE_UP_HALVES packs them as they are; TRF_GATE_UP_INTERLEAVED_8 takes
     * matrices in halves, of 16 rows or a multiple, and packs them for trf_moe_create. */
    trf_gate_up_order gate_up_order;
    trf_stream stream; /* packing begins when the work that this stream has been given is done */
    int packed_bf16;   /* all become packed BF16, FP8 as well, and nobody looks for it */
} trf_expert_pack_options;

TRF_API void trf_expert_pack_options_init(trf_expert_pack_options *options);

/* Makes packed experts of dense ones, which are in device memory and only read. matrices is an array [count] in host
 * memory, of one shape. The layers belong to *experts, in memory of the library's. options may be NULL for the
 * defaults. Interleaving takes device memory for one dense expert while the call lasts. Errors: those of
 * trf_device_layer_pack, whose message names the expert; TRF_ERR_ARGUMENT for several shapes; TRF_ERR_UNSUPPORTED for
 * rows that do not interleave, and those of trf_experts_create. Experts that were FP8 become packed FP8, by
 * trf_gate_up_pack where rows take turns, if all are that and fit; if some are not, all become packed BF16, and
 * trf_device_layer_get_layout_reason says which one is not, and why. */
TRF_API trf_status trf_experts_pack(trf_context *context, const trf_device_matrix *matrices, uint32_t count,
                                    const trf_expert_pack_options *options, trf_experts **experts, trf_error *err);

/* Makes packed experts of others of BF16 weights, coded or packed, such as trf_experts_load gave. Coded FP8 with scales
 * becomes packed FP8 (TRF_LAYOUT_PACKED8), by trf_gate_up_convert where rows take turns; if one expert does not fit, or
 * gate and up do not take turns, all become packed BF16, and trf_device_layer_get_layout_reason says why. With up,
 * `experts` are gates, and each new expert has the rows of a gate and then those of its up projection, before
 * options->gate_up_order applies; up is NULL where one matrix has both already, and for other weights. The old experts
 * stay as they are. It takes device memory for two dense experts, and waits. Errors: those of trf_experts_pack;
 * TRF_ERR_RANS for a corrupt tile; TRF_ERR_ARGUMENT for up that does not fit, and for experts whose rows take turns
 * already. */
TRF_API trf_status trf_experts_convert(const trf_experts *experts, const trf_experts *up,
                                       const trf_expert_pack_options *options, trf_experts **packed, trf_error *err);

/* Makes one expert's gate and up, coded FP8 layers with scales, a packed FP8 layer in the order
 * TRF_GATE_UP_INTERLEAVED_8, in which rows of gate and of up keep their own scales. up: of the same context and shape;
 * NULL if gate has both, in halves, of 16 rows or a multiple in all. The old layers stay as they are. memory: as for
 * trf_device_layer_convert; it may be NULL. It takes device memory for the dense weights twice, and waits. Errors:
 * TRF_ERR_UNSUPPORTED, with the reason in the message, if the layers are no such FP8 or do not fit: 32 rows x 128
 * columns of gate, and of up, have one scale, 0 or from 2^-100 to 2^7, and of 64 packed rows x 1,024 columns at most 15
 * weights are no code times the scale; TRF_ERR_RANS for a corrupt tile; else those of trf_device_layer_convert. */
TRF_API trf_status trf_gate_up_convert(const trf_device_layer *gate, const trf_device_layer *up,
                                       const trf_layer_memory *memory, trf_device_layer **converted, trf_error *err);
/* Does the same with dense BF16 weights that were FP8: gate and up, one half of the matrix's rows each, which are in
 * device memory, written by work on `stream`, and only read. Of each half scale blocks of 128x128 are looked for as
 * trf_device_layer_pack does. memory: of the packed layer's size, or NULL. It takes device memory for the dense weights
 * once, and waits. Errors: as trf_gate_up_convert; TRF_ERR_MISMATCH if the weights are no such FP8, which a GPU of
 * another compute capability than 9.0 does not look for. */
TRF_API trf_status trf_gate_up_pack(trf_context *context, const trf_device_matrix *matrix, trf_stream stream,
                                    const trf_layer_memory *memory, trf_device_layer **packed, trf_error *err);
/* Says what memory trf_gate_up_convert's layer takes. Errors: those of it that need no weights. */
TRF_API trf_status trf_gate_up_get_converted_size(const trf_device_layer *gate, const trf_device_layer *up,
                                                  trf_layer_size *size, trf_error *err);

/* ---- mixtures: routes, gate and up, activation, down, and the sum over a token's experts, in one call ---- */

typedef struct trf_moe trf_moe;

typedef struct trf_moe_options {
    size_t struct_bytes;
    uint32_t max_tokens; /* rows of x and y, at most: 1 to 2^20 */
    uint32_t top_k;      /* experts of a token: 1 to 32 */
    uint32_t num_ids;    /* experts on all devices, which ids count; 0: those here */
    /* The order of gate_up's rows. Packed experts must have TRF_GATE_UP_INTERLEAVED_8: what trf_experts_pack was asked
     * for, or what the caller has made sure of. Coded ones may have either, and with `up` TRF_GATE_UP_HALVES. */
    trf_gate_up_order gate_up_order;
    trf_activation activation; /* of the gate: TRF_ACTIVATION_SILU (the default) or TRF_ACTIVATION_GELU_TANH */
    /* Coded experts of the up projections, where gate_up has the gates alone: as many, of the same shape; they must
     * outlive the mixture. NULL: gate_up has both. */
    const trf_experts *up;
} trf_moe_options;

TRF_API void trf_moe_options_init(trf_moe_options *options);

/* Prepares a mixture. gate_up has experts of [2 * inner][hidden], down as many of [hidden][inner], packed both or coded
 * both; both must outlive the mixture. Errors: TRF_ERR_ARGUMENT for experts that do not fit each other, and for an
 * order of gate_up's rows that is not one of those above, or not the one in which trf_experts_pack packed them;
 * TRF_ERR_UNSUPPORTED for other codecs than BF16, of which packed FP8 with scales is, for other activations, and for
 * sizes that are no multiples of 8.
 *
 * With packed experts, and on the CPU, it does not touch the device. Coded experts on a GPU are for many tokens an
 * expert, for which packing them in each call takes less time than decoding them. They are packed once here, some at a
 * time, to see that they can be: that waits, and takes device memory for one dense expert and some 64 MiB while the
 * call lasts. TRF_ERR_UNSUPPORTED, whose message names an expert and the reason, says that they cannot: the GPU does
 * not multiply by so many packed experts (trf_experts_create); down has rows that are no multiple of 64, gate_up of 64
 * or, with `up`, of 32; columns are no multiple of 64; blobs of one tensor were encoded by different options, or with
 * row offsets, or have stored tiles; or too many weights of an expert have exponents outside of 16. */
TRF_API trf_status trf_moe_create(const trf_experts *gate_up, const trf_experts *down, const trf_moe_options *options,
                                  trf_moe **moe, trf_error *err);
TRF_API void trf_moe_destroy(trf_moe *moe); /* waits for nothing */

/* Sets *bytes to the workspace that trf_moe_forward needs for so many tokens; more tokens never need less. That of
 * coded experts on a GPU includes the packed experts of gate and up, or those of down if they are more: 12.6 bits a
 * weight. */
TRF_API trf_status trf_moe_get_workspace(const trf_moe *moe, uint32_t tokens, uint64_t *bytes, trf_error *err);

/* All pointers are to device memory, aligned to their elements, x and y to 16 bytes. */
typedef struct trf_moe_operands {
    size_t struct_bytes;
    uint32_t tokens;
    const void *x; /* BF16 [tokens][hidden] */
    /* The experts of each token, signed numbers of id_bytes (4 or 8), [tokens][top_k], and their weights. */
    const void *ids;
    uint32_t id_bytes;
    const float *weights; /* [tokens][top_k] */
    /* [num_ids]: which of the experts here an id means, or -1 for one that is on another device. NULL: ids are those
     * here. */
    const int32_t *expert_map;
    /* BF16 [experts][2 * inner], in the order TRF_GATE_UP_INTERLEAVED_8 however gate_up's rows lie, or NULL. */
    const void *gate_up_bias;
    const void *down_bias; /* BF16 [experts][hidden], or NULL */
    void *y;               /* BF16 [tokens][hidden], apart from all others */
} trf_moe_operands;

TRF_API void trf_moe_operands_init(trf_moe_operands *operands);

/* Computes y[t] = sum over i of weights[t][i] * down_e(activation(gate_e(x[t])) * up_e(x[t])), where e is the expert
 * ids[t][i], in the order of i. What the activation gives is rounded to BF16. Ids that are out of range, and those that
 * the map gives no expert here, add nothing, so that a token may get zeros. Ids may be written by work that is ordered
 * before the call, and a graph's replays take what they are then. The call only enqueues work: it neither allocates nor
 * waits, and may be captured. workspace is 256-byte aligned device memory that the call alone uses. Every run with the
 * same operands gives the same bits; a token's bits may depend on which experts the other tokens have. On a GPU coded
 * experts give the bits of packed ones, all of them are packed in each call, and with a corrupt slab y is unspecified
 * (trf_experts_check tells). Errors: TRF_ERR_ARGUMENT; TRF_ERR_RANS on the CPU for a corrupt tile; TRF_ERR_CUDA. */
TRF_API trf_status trf_moe_forward(const trf_moe *moe, const trf_moe_operands *operands, void *workspace,
                                   trf_stream stream, trf_error *err);

#ifdef __cplusplus
}
#endif
#endif
