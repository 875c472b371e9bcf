/* SPDX-License-Identifier: Apache-2.0 */
/* The look-up of rows in a compressed table: the second half of bench --mode load. */
#ifndef BENCH_LOAD_ROWS_CUDA_H
#define BENCH_LOAD_ROWS_CUDA_H

#include "bench_device_cuda.h"

/* Writes what the names of subjects have last, the codec and the layout, unless that is coded: "bf16, packed". */
void bench_load_name_weights(const cli_options *options, char text[32]);

/* Times the look-up of single rows in a compressed table, in the layout that is asked for, against a gather from the
 * uncompressed table. weights: the table's, BF16 [shape.rows][shape.cols]. @return 0, or -1 after a message. */
int bench_measure_rows(const bench_request *request, const bench_device *device, cli_shape shape,
                       const uint16_t *weights, const trf_encode_options *encode);

#endif
