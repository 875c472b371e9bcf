/* SPDX-License-Identifier: Apache-2.0 */
/* The layers, sigmas and codecs that --mode layers goes through, whichever device it measures. */
#ifndef BENCH_LAYER_INPUTS_H
#define BENCH_LAYER_INPUTS_H

#include "bench_figure.h"
#include "cli_options.h"

/* Weights of one layer that are drawn once, and rounded to one type after the other. */
typedef struct bench_drawn_layer bench_drawn_layer;

/* What one subject encodes. */
typedef struct bench_layer_input {
    cli_shape shape;
    double sigma;
    cli_bench_codec bench_codec;
    char codec[24];            /* "bf16" ... "int8", "bits:4.25" */
    trf_dtype dtype;           /* of the weights that the codec is given */
    trf_encode_options encode; /* all but favor */
    bench_drawn_layer *drawn;
} bench_layer_input;

/* @return the weights in a dtype, until the next call for the same layer. dtype: BF16 for scaled FP8. */
const void *bench_input_weights(const bench_layer_input *input, trf_dtype dtype);

/* Sets the number of weights, and adds the labels rows, cols, sigma, codec and source. */
void bench_label_input(bench_subject *subject, const bench_layer_input *input);

/* @return 0, or -1 after a message. */
typedef int bench_input_fn(void *context, const bench_layer_input *input);

/* Calls measure for each codec of each sigma of each layer that the options ask for. @return 0; -1 as soon as measure
 * returns that, or after a message. */
int bench_for_each_input(const cli_options *options, bench_input_fn *measure, void *context);

/* Sets the options that were not given. repeats: of each measurement. */
void bench_set_layer_defaults(cli_options *options, int repeats);

#endif
