/* SPDX-License-Identifier: Apache-2.0 */
/* The temporary checkpoint that bench --mode load loads: BF16 weights of each shape, under several names. With --codec
 * scaled_fp8 they were FP8. */
#ifndef BENCH_LOAD_CHECKPOINT_H
#define BENCH_LOAD_CHECKPOINT_H

#include "bench_weights.h"
#include "cli_messages.h"
#include "cli_progress.h"

typedef struct bench_checkpoint {
    const cli_options *options;
    trf_encode_options encode;
    cli_shape shapes[CLI_MAX_LIST], table; /* table: what rows are looked up in */
    int num_shapes, num_layers;            /* num_layers: of all shapes, in turns */
    float *drawn;                          /* of sigma 1, as many as the largest shape has */
    uint64_t num_drawn;
    bench_blob blobs[CLI_MAX_LIST]; /* of the shapes */
    uint64_t largest, total;        /* bytes: of a blob, of all layers */
    char *folder, *path;
    trf_checkpoint *opened;
} bench_checkpoint;

/* All: @return 0, or -1 after a message. */

/* Draws and encodes the weights. checkpoint: zeros but for options. Release with bench_checkpoint_free in either
 * case. */
int bench_checkpoint_encode(bench_checkpoint *checkpoint);

/* Writes the checkpoint to $TMPDIR, or /tmp, and opens it. From here on signals are only noted (cli_signals_catch), and
 * progress is shown. */
int bench_checkpoint_write(bench_checkpoint *checkpoint, cli_progress *progress);

/* Closes the checkpoint and removes its file. */
void bench_checkpoint_remove(bench_checkpoint *checkpoint);
void bench_checkpoint_free(bench_checkpoint *checkpoint);

/* @return whether a signal asks to stop; a message has then been printed. */
int bench_checkpoint_is_stopped(cli_progress *progress);

void bench_checkpoint_name_layer(int layer, char name[32]);
uint64_t bench_checkpoint_layer_bytes(const bench_checkpoint *checkpoint, int layer);

/* @return BF16 weights of a shape with no more columns than weights were drawn; its rows repeat where they are more. To
 * be released with free. NULL after a message. */
uint16_t *bench_checkpoint_weights(const bench_checkpoint *checkpoint, cli_shape shape);

#endif
