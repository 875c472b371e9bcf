/* SPDX-License-Identifier: Apache-2.0 */
/* What the C snippets of docs/guide.md take from the program around them; check_installed.sh compiles each as a
 * function of its own after this header. Nothing here is defined, since nothing is linked. */
#ifndef GUIDE_SNIPPETS_H
#define GUIDE_SNIPPETS_H

#include <transfuse.h>
#include <transfuse/cpu.h>
#include <transfuse/device_memory.h>
#include <transfuse/experts.h>
#include <transfuse/groups.h>
#include <transfuse/layouts.h>
#include <transfuse/stacks.h>
#include <transfuse/tuning.h>

enum {
    LAYERS = 4
};

int fail(const char *message);
void *engine_allocate(uint64_t bytes);
int next_token(trf_operands *operands);

extern trf_error err;
extern trf_context *context;
extern trf_checkpoint *checkpoint;
extern trf_device_layer *layer, *layers[LAYERS], *gate, *table;
extern const char *names[LAYERS];
extern trf_load_options load;
extern trf_plan_options options;
extern trf_plan *plan, *gate_plan;
extern trf_operands operands;
extern trf_stream stream;
extern trf_device_matrix gate_up_matrices[], down_matrices[];
extern trf_expert_pack_options interleaved;
extern trf_experts *gate_up, *down;
extern trf_moe_options moe_options;
extern trf_moe_operands moe_operands;
extern trf_moe *moe;
extern void *workspace, *blob, *weights, *x, *y, *up_y, *yq, *yk, *yv, *token_ids, *offsets, *rows;
extern uint64_t blob_bytes;
extern uint32_t batch, rank, count, cols, max_tokens, q_rows, k_rows, v_rows;

#endif
