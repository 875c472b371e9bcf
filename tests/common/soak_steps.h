/* SPDX-License-Identifier: Apache-2.0 */
/* The steps that a soak's threads draw. Each notes what fails. */
#ifndef SOAK_STEPS_H
#define SOAK_STEPS_H

#include "soak_work.h"

/* 0 ... bound - 1, of the thread's own numbers. */
uint32_t soak_draw(soak_thread *thread, uint32_t bound);

soak_context *soak_take_context(soak_thread *thread);

/* A progress callback's: it stops at call number `at`, or never if that is 0. */
typedef struct soak_stop {
    int at, calls, is_wrong;
} soak_stop;

int soak_count_progress(void *context, const char *tensor, uint64_t done_bytes, uint64_t total_bytes);

/* ---- of layers on a device (soak_steps.c) ---- */

void soak_step_load(soak_thread *thread);
void soak_step_cancel(soak_thread *thread);
void soak_step_destroy_early(soak_thread *thread);
void soak_step_drop(soak_thread *thread);
void soak_step_product(soak_thread *thread);
void soak_step_weights(soak_thread *thread);
void soak_step_rows(soak_thread *thread);
void soak_step_verify(soak_thread *thread);
void soak_step_encode(soak_thread *thread);
void soak_step_convert(soak_thread *thread);
void soak_step_pack(soak_thread *thread);
void soak_step_experts(soak_thread *thread);
void soak_step_cancel_experts(soak_thread *thread);
void soak_step_group(soak_thread *thread);
void soak_step_stack(soak_thread *thread);

/* ---- of contexts, files and the host (soak_file_steps.c) ---- */

void soak_step_context(soak_thread *thread);
void soak_step_reopen(soak_thread *thread);
void soak_step_list(soak_thread *thread);
void soak_step_mistake(soak_thread *thread);
void soak_step_host_layer(soak_thread *thread);
void soak_step_encode_matrix(soak_thread *thread);
void soak_step_verify_files(soak_thread *thread);
void soak_step_compress(soak_thread *thread);
void soak_step_decompress(soak_thread *thread);

#endif
