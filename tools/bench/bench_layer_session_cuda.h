/* SPDX-License-Identifier: Apache-2.0 */
/* One layer and codec on the device, with all that the cases of --mode layers need: copies of the weights in every
 * form, x, y, and the product in F64. */
#ifndef BENCH_LAYER_SESSION_CUDA_H
#define BENCH_LAYER_SESSION_CUDA_H

#include "bench_device_cuda.h"
#include "bench_layer_inputs.h"
#include "bench_weights.h"

enum {
    BENCH_SAMPLE_ROWS = 256, /* of W, and ... */
    BENCH_SAMPLE_BATCH = 64, /* rows of x that the F64 product is computed for */
    BENCH_MAX_COMPRESSED = 2 /* one for each favor */
};
static const uint64_t kBenchCopyBytes = 1ull << 30;

/* Equal device buffers that calls use in turn. */
typedef struct bench_ring {
    void **buffers;
    uint32_t count;
    uint64_t bytes; /* of each */
} bench_ring;

/* A compressed layer, on the host and on the device. */
typedef struct bench_compressed {
    trf_favor favor;
    bench_blob blob;
    uint64_t read_bytes; /* bytes of weights that a call reads: the blob's, or all of a layer that is not coded */
    trf_device_layer **copies;
    uint32_t num_copies;
    void *decoded;     /* on the host, in the source's dtype */
    double *reference; /* [sample batch][sample rows]: x . W^T of the decoded weights */
} bench_compressed;

typedef struct bench_layer_session {
    const cli_options *options;
    const bench_device *device;
    const bench_layer_input *input;
    uint64_t num_weights;
    trf_dtype x_dtype; /* of dense weights, too */
    uint32_t max_batch;

    bench_compressed compressed[BENCH_MAX_COMPRESSED];
    int num_compressed;
    bench_ring dense;        /* W in x's type */
    bench_ring decoded;      /* what decoding writes */
    bench_ring raw8_weights; /* 8 bits a weight; count 0 where the codec has none */
    trf_dtype raw8_dtype;
    float *scales; /* device, [rows], or NULL */
    void *x, *y;   /* device; y has room for F32 */
    void *workspace;
    uint64_t workspace_bytes;
    void *copy_from, *copy_to;
    double *x_host; /* [min(max batch, sample batch)][cols], as x */
    uint32_t *rows; /* the sample's */
    uint32_t num_rows;
} bench_layer_session;

/* All that return an int: 0, or -1 after a message. */

/* Makes x, y and the buffers that are copied. session: zeros but for options, device and input. Release with
 * bench_layer_session_close in either case. */
int bench_layer_session_open(bench_layer_session *session);
void bench_layer_session_close(bench_layer_session *session);

/* @return how many copies of so many bytes make four times the L2 cache, so that a copy has left it when its turn comes
 * again. */
uint32_t bench_count_copies(const bench_layer_session *session, uint64_t bytes);
int bench_ring_make(const bench_layer_session *session, bench_ring *ring, uint64_t bytes);

/* Copies the first buffer to all others. */
int bench_ring_spread(const bench_ring *ring);

/* Makes the workspace large enough. */
int bench_need_workspace(bench_layer_session *session, uint64_t bytes);

/* Reads the relative error of session->y, which a product of `batch` rows has written, against the reference of a
 * compressed layer. */
int bench_read_error(const bench_layer_session *session, int compressed, uint32_t batch, trf_dtype y_dtype,
                     double *error);

/* Fails if any call has met a corrupt tile, since its time would mean nothing. */
int bench_check_faults(const bench_layer_session *session);

#endif
