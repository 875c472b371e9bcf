/* SPDX-License-Identifier: Apache-2.0 */
/* How far a mixture's y, and cuBLAS's, are from F64. The dense weights are read from the device. */
#ifndef BENCH_MIXTURE_ERROR_CUDA_H
#define BENCH_MIXTURE_ERROR_CUDA_H

#include "bench_matrix_cuda.h"
#include "bench_mixture_session_cuda.h"

/* Both: @return 0, or -1 after a message. */

/* Adds the error of the mixture's y, which the session's last call has written, for the first and the last token and a
 * sample of y's columns. What the activation gives is rounded to BF16 in F64's way, too. */
int bench_mixture_add_error(const bench_mixture_session *session, bench_error *error);

/* Adds the error of cuBLAS's product of one side for the first and the last row of x, and a sample of y's columns. */
int bench_mixture_add_product_error(const bench_mixture_session *session, const bench_mixture_side *side,
                                    bench_error *error);

#endif
