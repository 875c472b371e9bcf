/* transfuse bench --mode load: what its two parts share. */
#ifndef BENCH_CUDA_LOAD_H
#define BENCH_CUDA_LOAD_H

#include "bench_cuda.h"

/* Times the look-up of single rows in a compressed table against a gather from the plain one. weights: the table's,
 * BF16 [shape.rows][shape.cols]. @return 0, or -1 after a message. */
int bench_cuda_rows_run(bench_cuda *cuda, cli_shape shape, const void *weights, const trf_encode_options *encode);

#endif
