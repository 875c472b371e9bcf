/* SPDX-License-Identifier: Apache-2.0 */
/* Gate and up in one matrix, with 8 rows of each in turns (TRF_GATE_UP_INTERLEAVED_8). */
#ifndef TRF_GATE_UP_H
#define TRF_GATE_UP_H

#include "trf_context.h"

enum {
    TRF_GATE_UP_TURN = 8 /* rows of gate or of up that follow each other */
};

/* Copies dense BF16 weights, all rows of gate and then all rows of up, to `to`, [rows][cols], with rows in turns. The
 * number of rows is a multiple of 16. It only enqueues work on `stream`. */
trf_status trf_interleave_gate_up(const trf_context *context, const trf_device_matrix *matrix, void *to,
                                  trf_stream stream, trf_error *err);

/* Checks that so many rows, those of gate and of up in all, can take turns. Errors: TRF_ERR_UNSUPPORTED. */
trf_status trf_check_gate_up_rows(uint64_t rows, trf_error *err);

#endif
