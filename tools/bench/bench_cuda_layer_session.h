/* One layer and codec on the device, with all that its cases need: copies of the weights in every form, x, y, and the
 * product in F64. */
#ifndef BENCH_CUDA_LAYER_SESSION_H
#define BENCH_CUDA_LAYER_SESSION_H

#include "bench_cuda.h"
#include "bench_cuda_cublaslt.h"
#include "bench_cuda_kernels.h"
#include "bench_cuda_timer.h"

enum {
    BENCH_CUDA_MIN_COPIES = 2,
    BENCH_CUDA_MAX_COPIES = 256,
    BENCH_CUDA_MIN_CALLS = 16,    /* in a graph, whose start is then a small part of its time */
    BENCH_CUDA_SAMPLE_ROWS = 256, /* of W, and ... */
    BENCH_CUDA_SAMPLE_BATCH = 64  /* rows of x that the F64 product is computed for */
};
static const uint64_t kBenchCopyBytes = 1ull << 30;

/* Equal device buffers that calls use in turn. */
typedef struct bench_cuda_ring {
    void **buffers;
    uint32_t count;
    uint64_t bytes; /* of each */
} bench_cuda_ring;

/* A compressed layer, on the host and on the device. */
typedef struct bench_cuda_compressed {
    void *blob;
    trf_layer *layer;
    trf_device_layer **copies;
    uint32_t num_copies;
    void *decoded;     /* on the host, in the source's dtype */
    double *reference; /* [sample batch][sample rows]: x . W^T of the decoded weights */
} bench_cuda_compressed;

typedef struct bench_layer_session {
    trf_context *context;
    bench_cublaslt *lt;
    const cli_options *options;
    cudaStream_t stream;
    uint64_t l2_bytes;
    bench_subject subject;
    uint64_t weights;
    trf_dtype x_dtype; /* of dense weights, too */
    uint32_t max_batch;

    bench_cuda_compressed compressed[2];
    int num_compressed;
    bench_cuda_ring dense;   /* W in x's type */
    bench_cuda_ring decoded; /* what decoding writes */
    bench_cuda_ring codes;   /* 8 bits a weight; count 0 where the codec has none */
    trf_dtype code_dtype;
    float *scales; /* device, [rows], or NULL */
    void *x, *y;   /* device; y has room for F32 */
    void *workspace;
    uint64_t workspace_bytes;
    void *copy_from, *copy_to;
    double *x_host; /* [min(max batch, sample batch)][cols], as x */
    uint32_t *rows; /* the sample's */
    uint32_t num_rows;
} bench_layer_session;

/* All: @return 0, or -1 after a message. */

/* context, lt, options, stream, l2_bytes and subject are set, all else is zero. Release with bench_layer_session_close
 * in either case. */
int bench_layer_session_open(bench_layer_session *session);
void bench_layer_session_close(bench_layer_session *session);

/* Encodes source, uploads copies of the layer, and compares what the device decodes with what the CPU decodes. */
int bench_cuda_add_compressed(bench_layer_session *session, const void *source, const trf_encode_options *encode,
                              bench_cuda_blob *blob);

/* Makes dense weights, and codes where there are any, from the first compressed layer and the source that it was made
 * of.
 * */
int bench_cuda_add_plain(bench_layer_session *session, const void *source, const trf_encode_options *encode);

/* Makes the workspace large enough. */
int bench_cuda_need_workspace(bench_layer_session *session, uint64_t bytes);

/* Relative error of session->y, which a product of `batch` rows has written, against the reference of a compressed
 * layer. */
int bench_cuda_error(bench_layer_session *session, int compressed, uint32_t batch, trf_dtype y_dtype, double *error);

#endif
