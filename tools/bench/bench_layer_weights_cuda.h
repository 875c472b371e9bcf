/* SPDX-License-Identifier: Apache-2.0 */
/* The weights of a session of --mode layers: compressed, dense, and plain 8-bit ones. */
#ifndef BENCH_LAYER_WEIGHTS_CUDA_H
#define BENCH_LAYER_WEIGHTS_CUDA_H

#include "bench_layer_session_cuda.h"

/* All: @return 0, or -1 after a message. */

/* Encodes the input's weights, uploads copies of the layer, and compares what the device decodes with what the CPU
 * decodes. Sizes and the number of wrong weights become the figure's details. */
int bench_add_compressed(bench_layer_session *session, trf_favor favor, bench_figure *figure);

/* Makes dense weights, and plain 8-bit ones if the codec has them, from the first compressed layer and its source
 * weights. */
int bench_add_dense(bench_layer_session *session);

#endif
