/* SPDX-License-Identifier: Apache-2.0 */
#include "bench_layer_inputs.h"

#include "bench_memory.h"
#include "bench_weights.h"

#include <stdio.h>
#include <stdlib.h>

struct bench_drawn_layer {
    cli_shape shape;
    float *drawn;           /* of scale 1 */
    void *source;           /* room for F32 */
    trf_dtype source_dtype; /* what source holds now, NONE for nothing ... */
    int source_was_fp8;
    double source_sigma; /* ... and of which scale */
};

static const char *const kCodecNames[CLI_BENCH_COUNT] = {"bf16",       "fp16", "fp8_e4m3", "fp8_e5m2",
                                                         "scaled_fp8", "int8", "bits"};
static const trf_dtype kSources[CLI_BENCH_COUNT] = {TRF_DTYPE_BF16, TRF_DTYPE_F16, TRF_DTYPE_F8_E4M3, TRF_DTYPE_F8_E5M2,
                                                    TRF_DTYPE_BF16, TRF_DTYPE_F32, TRF_DTYPE_F32};

const void *bench_input_weights(const bench_layer_input *input, trf_dtype dtype) {
    bench_drawn_layer *layer = input->drawn;
    const int was_fp8 = input->bench_codec == CLI_BENCH_SCALED_FP8;
    if (layer->source_dtype != dtype || layer->source_was_fp8 != was_fp8 || layer->source_sigma != input->sigma) {
        if (was_fp8)
            bench_make_scaled_fp8(layer->drawn, layer->shape, input->sigma, layer->source);
        else
            bench_make_source(layer->drawn, layer->shape, input->sigma, dtype, layer->source);
    }
    layer->source_dtype = dtype;
    layer->source_was_fp8 = was_fp8;
    layer->source_sigma = input->sigma;
    return layer->source;
}

void bench_label_input(bench_subject *subject, const bench_layer_input *input) {
    bench_fields *labels = &subject->labels;
    subject->weights = (uint64_t)input->shape.rows * input->shape.cols;
    bench_add_integer(labels, "rows", input->shape.rows);
    bench_add_integer(labels, "cols", input->shape.cols);
    bench_add_real(labels, "sigma", input->sigma);
    bench_add_bare_text(labels, "codec", input->codec);
    bench_add_bare_text(labels, "source", trf_dtype_name(input->dtype));
}

/* bits: of CLI_BENCH_BITS, else 0. */
static bench_layer_input make_input(const cli_options *options, bench_drawn_layer *layer, double sigma,
                                    cli_bench_codec codec, double bits) {
    bench_layer_input input = {
        .shape = layer->shape, .sigma = sigma, .bench_codec = codec, .dtype = kSources[codec], .drawn = layer};
    trf_encode_options_init(&input.encode);
    input.encode.threads = options->threads;
    snprintf(input.codec, sizeof input.codec, "%s", kCodecNames[codec]);
    if (codec == CLI_BENCH_SCALED_FP8)
        input.encode.codec = TRF_CODEC_E4M3;
    if (codec == CLI_BENCH_BITS)
        snprintf(input.codec, sizeof input.codec, "bits:%g", bits);
    if (codec == CLI_BENCH_BITS || codec == CLI_BENCH_INT8) {
        input.encode.codec = TRF_CODEC_INT;
        input.encode.bits = bits;
        input.encode.granularity = options->granularity;
        input.encode.scale_group_size = options->scale_group_size;
    }
    return input;
}

static int for_each_codec(const cli_options *options, bench_drawn_layer *layer, double sigma, bench_input_fn *measure,
                          void *context) {
    for (int codec = 0; codec < CLI_BENCH_COUNT; codec++) {
        const int has_bits = codec == CLI_BENCH_BITS, count = has_bits ? options->bench_bits.count : 1;
        for (int i = 0; (options->bench_codecs & 1u << codec) && i < count; i++) {
            const bench_layer_input input =
                make_input(options, layer, sigma, (cli_bench_codec)codec, has_bits ? options->bench_bits.values[i] : 0);
            if (measure(context, &input))
                return -1;
        }
    }
    return 0;
}

static int for_each_of_layer(const cli_options *options, cli_shape shape, bench_input_fn *measure, void *context) {
    const uint64_t weights = (uint64_t)shape.rows * shape.cols;
    bench_drawn_layer layer = {.shape = shape};
    layer.drawn = bench_alloc(weights * sizeof *layer.drawn);
    layer.source = bench_alloc(weights * sizeof(float));
    int failed = !layer.drawn || !layer.source;
    if (!failed)
        bench_draw(layer.drawn, weights, options->student_t);
    for (int s = 0; !failed && s < options->sigmas.count; s++)
        failed = for_each_codec(options, &layer, options->sigmas.values[s], measure, context);
    free(layer.drawn);
    free(layer.source);
    return failed ? -1 : 0;
}

int bench_for_each_input(const cli_options *options, bench_input_fn *measure, void *context) {
    for (int i = 0; i < options->num_layers; i++)
        if (for_each_of_layer(options, options->layers[i], measure, context))
            return -1;
    return 0;
}

void bench_set_layer_defaults(cli_options *options, int repeats) {
    if (!options->num_layers) {
        options->layers[options->num_layers++] = (cli_shape){4096, 4096};
        options->layers[options->num_layers++] = (cli_shape){2048, 5632};
    }
    if (!options->num_batches) {
        options->batches[options->num_batches++] = 1;
        options->batches[options->num_batches++] = 8;
    }
    if (!options->bench_codecs)
        options->bench_codecs = options->bench_bits.count ? 0 : (1 << CLI_BENCH_COUNT) - 1;
    if (options->bench_bits.count)
        options->bench_codecs |= 1 << CLI_BENCH_BITS;
    else
        options->bench_bits.values[options->bench_bits.count++] = 4.25;
    if (!options->sigmas.count)
        options->sigmas.values[options->sigmas.count++] = 0.02;
    if (!options->repeats)
        options->repeats = repeats;
}
