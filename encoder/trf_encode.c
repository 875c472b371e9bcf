/* SPDX-License-Identifier: Apache-2.0 */
/* Encodes a layer: checks the options, analyzes a sample, searches the step, writes the tiles and, last, the head. */
#include "trf_encode.h"

#include "trf_analyze.h"
#include "trf_encode_tiles.h"
#include "trf_find_fp8.h"
#include "trf_head.h"
#include "trf_log2.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum {
    MAX_TRIALS = 8,
    MAX_FULL_PASSES = 3,
    TRIAL_WEIGHTS = 1 << 22
};

/* Tolerances, as shares of the bits asked for: the search ends within the first; a finished blob that is off by more
 * than the second is encoded again. */
static const double kTrialTolerance = 0.001, kFinalTolerance = 0.006;

/* The share of the bits asked for that a matrix may take from its codes to pay for what large matrices hardly have
 * (small_matrix_bits). What is needed beyond that comes on top, since a matrix of a few thousand weights would have
 * nothing left for its codes. */
static const double kSmallMatrixShare = 0.05;

typedef struct encoding {
    const trf_source *source;
    const trf_encode_options *options;
    const trf_sink *sink;
    const trf_progress *progress;
    trf_quantizer *quantizer;
    trf_fp8_scales scales; /* of scaled FP8 */
    trf_element_source from;
    trf_tile_encoder encoder;
    trf_tile_meta *metas;
    uint64_t num_tiles;
    double entropy_bits;
} encoding;

trf_codec trf_lossless_codec(trf_dtype dtype) {
    static const trf_codec kLossless[] = {
        [TRF_DTYPE_F32] = TRF_CODEC_AUTO,     [TRF_DTYPE_F16] = TRF_CODEC_FP16,     [TRF_DTYPE_BF16] = TRF_CODEC_BF16,
        [TRF_DTYPE_F8_E4M3] = TRF_CODEC_E4M3, [TRF_DTYPE_F8_E5M2] = TRF_CODEC_E5M2, [TRF_DTYPE_I8] = TRF_CODEC_INT,
    };
    return (size_t)dtype < sizeof kLossless / sizeof *kLossless ? kLossless[dtype] : TRF_CODEC_AUTO;
}

static trf_status choose_codec(const trf_source *source, const trf_encode_options *options, trf_codec *codec,
                               trf_error *err) {
    int fits;
    if (source->dtype < TRF_DTYPE_F32 || source->dtype > TRF_DTYPE_I8)
        return trf_fail(err, TRF_ERR_ARGUMENT, TRF_NO_OFFSET, "dtype %d is none that a layer can have", source->dtype);
    *codec = options->codec == TRF_CODEC_AUTO ? trf_lossless_codec(source->dtype) : options->codec;
    switch (*codec) {
    case TRF_CODEC_AUTO:
        return trf_fail(err, TRF_ERR_ARGUMENT, TRF_NO_OFFSET, "%s has no lossless codec: choose bf16 or int",
                        trf_dtype_name(source->dtype));
    case TRF_CODEC_BF16:
        fits = source->dtype == TRF_DTYPE_BF16 || source->dtype == TRF_DTYPE_F32;
        break;
    case TRF_CODEC_INT:
        fits = source->dtype != TRF_DTYPE_F8_E4M3 && source->dtype != TRF_DTYPE_F8_E5M2;
        break;
    case TRF_CODEC_E4M3: /* BF16: if it has scales */
        fits = source->dtype == TRF_DTYPE_F8_E4M3 || source->dtype == TRF_DTYPE_BF16;
        break;
    default:
        fits = *codec == trf_lossless_codec(source->dtype);
        break;
    }
    if (!fits)
        return trf_fail(err, TRF_ERR_ARGUMENT, TRF_NO_OFFSET, "codec %s does not take %s weights",
                        trf_codec_name(*codec), trf_dtype_name(source->dtype));
    return TRF_OK;
}

trf_status trf_check_encode_options(const trf_encode_options *options, trf_error *err) {
    if (options->codec < TRF_CODEC_AUTO || options->codec > TRF_CODEC_INT)
        return trf_fail(err, TRF_ERR_ARGUMENT, TRF_NO_OFFSET, "there is no codec %d", (int)options->codec);
    if (options->granularity < TRF_GRANULARITY_NONE || options->granularity > TRF_GRANULARITY_SCALE_BLOCK)
        return trf_fail(err, TRF_ERR_ARGUMENT, TRF_NO_OFFSET, "%d is no granularity", (int)options->granularity);
    if (options->bits != 0 && !(options->bits >= 2 && options->bits <= 8))
        return trf_fail(err, TRF_ERR_ARGUMENT, TRF_NO_OFFSET, "%g bits a weight: must be 2 ... 8", options->bits);
    if (options->favor != TRF_FAVOR_SPEED && options->favor != TRF_FAVOR_SIZE)
        return trf_fail(err, TRF_ERR_ARGUMENT, TRF_NO_OFFSET, "favor is %d", options->favor);
    uint32_t p = options->probability_bits;
    if (p && (p < TRF_MIN_PROBABILITY_BITS || p > TRF_MAX_PROBABILITY_BITS))
        return trf_fail(err, TRF_ERR_ARGUMENT, TRF_NO_OFFSET, "probability_bits is %u: must be %d ... %d", p,
                        TRF_MIN_PROBABILITY_BITS, TRF_MAX_PROBABILITY_BITS);
    uint32_t slab_cols = options->slab_cols;
    if (slab_cols && slab_cols != TRF_MIN_SLAB_COLS && slab_cols != TRF_MAX_SLAB_COLS)
        return trf_fail(err, TRF_ERR_ARGUMENT, TRF_NO_OFFSET, "slab_cols is %u: must be %d or %d", slab_cols,
                        TRF_MIN_SLAB_COLS, TRF_MAX_SLAB_COLS);
    return TRF_OK;
}

static trf_status check_options(const trf_source *source, const trf_encode_options *options, trf_error *err) {
    if (source->rows < 1 || source->cols < 1 || source->rows > INT32_MAX || source->cols > INT32_MAX)
        return trf_fail(err, TRF_ERR_ARGUMENT, TRF_NO_OFFSET, "a layer of %u x %u weights: both must be 1 ... 2^31-1",
                        source->rows, source->cols);
    return trf_check_encode_options(options, err);
}

static int is_fp8(trf_codec codec) { return codec == TRF_CODEC_E4M3 || codec == TRF_CODEC_E5M2; }

/* The columns of a slab, if the options do not say. Narrow slabs give a GPU twice as many chains of states to hide
 * latency with, and cost 0.1 bit a weight. They are worth it with pairs, whose chains are twice as long, and for layers
 * with so few slabs that not every warp of a GPU gets one. They are not worth it with codes and pairs of FP8, where 0.1
 * bit is much and, if there is a rate to hold, costs precision. */
uint32_t trf_choose_slab_cols(trf_codec codec, uint32_t class_bits, uint32_t rows, uint32_t cols) {
    const uint64_t few_weights = 8u << 20;
    const int pairs = class_bits == 4, small = (uint64_t)rows * cols <= few_weights;
    const int narrow = is_fp8(codec) ? !pairs && small : pairs || (small && codec != TRF_CODEC_INT);
    return narrow ? TRF_MIN_SLAB_COLS : TRF_MAX_SLAB_COLS;
}

/* The bits that an exception counts as when classes and model are chosen. */
static double exception_cost(trf_codec codec, uint32_t class_bits) {
    if (class_bits == 4 && codec == TRF_CODEC_INT)
        return TRF_EXCEPTION_BITS;
    if (is_fp8(codec))
        return class_bits == 4 ? TRF_EXCEPTION_COST_FP8_PAIRS : TRF_EXCEPTION_COST_FP8_QUADS;
    return TRF_EXCEPTION_COST;
}

/* Fills in the parts of the header that only options and source decide. */
static void start_encoder(encoding *e, trf_codec codec) {
    trf_header *h = &e->encoder.header;
    trf_extension *x = &e->encoder.extension;
    h->codec = (uint8_t)codec;
    h->source_dtype = (uint8_t)e->source->dtype;
    h->class_bits = e->options->favor == TRF_FAVOR_SIZE ? 4 : 2;
    e->encoder.exception_cost = exception_cost(codec, h->class_bits);
    h->rows = e->source->rows;
    h->cols = e->source->cols;
    h->probability_bits = (uint8_t)(e->options->probability_bits ? e->options->probability_bits
                                    : h->class_bits == 2         ? TRF_QUADS_PROBABILITY_BITS
                                                                 : TRF_PAIRS_PROBABILITY_BITS);
    h->state_bits = h->probability_bits;
    h->slab_cols = (uint16_t)(e->options->slab_cols ? e->options->slab_cols
                                                    : trf_choose_slab_cols(codec, h->class_bits, h->rows, h->cols));
    int bytes = codec == TRF_CODEC_INT && (!e->quantizer || e->options->bits == 0);
    h->stored_element_bytes = (is_fp8(codec) && !e->scales.values) || bytes ? 1 : 2;
    if (e->quantizer) {
        x->granularity = (uint8_t)trf_quantizer_granularity(e->quantizer);
        x->scale_dtype = (uint8_t)trf_quantizer_scale_dtype(e->quantizer);
        x->scale_group_size = trf_quantizer_scale_group_size(e->quantizer);
    }
    if (e->scales.values) {
        e->encoder.scales = &e->scales;
        x->granularity = (uint8_t)e->scales.granularity;
        x->scale_dtype = TRF_SCALE_F32;
        x->scale_group_size = e->scales.scale_group_size;
    }
}

static void free_offsets(trf_tile_encoder *encoder) {
    free(encoder->row_offsets);
    free(encoder->col_offsets);
    encoder->row_offsets = encoder->col_offsets = NULL;
}

/* Analyzes the layer as the quantizer now stands. */
static trf_status analyze(encoding *e, int allow_predictor, trf_error *err) {
    trf_sample sample;
    trf_status status = trf_sample_read(&sample, &e->from, err);
    if (status != TRF_OK)
        return status;
    free_offsets(&e->encoder);
    status = trf_analyze(&e->encoder, &sample, &e->from, allow_predictor, &e->entropy_bits, err);
    trf_sample_free(&sample);
    return status;
}

/* The sections of the head that follow the tiles' metadata, as the encoder and the quantizer have them. */
static trf_head_sections head_sections(const encoding *e) {
    trf_head_sections sections = {.row_offsets = e->encoder.row_offsets, .col_offsets = e->encoder.col_offsets};
    if (e->quantizer)
        sections.scales = trf_quantizer_table(e->quantizer, &sections.scales_bytes);
    if (e->scales.values) {
        sections.scales = e->scales.values;
        sections.scales_bytes = e->scales.count * sizeof *e->scales.values;
    }
    return sections;
}

/* Sets the section offsets of the head. @return where tile data begins. */
static uint64_t lay_out_sections(encoding *e) {
    const trf_head_sections sections = head_sections(e);
    if (e->quantizer)
        e->encoder.extension.scale_exponent = trf_quantizer_scale_exponent(e->quantizer);
    return trf_lay_out_sections(&e->encoder.extension, &e->encoder.header, &sections);
}

static trf_status write_head(encoding *e, const trf_tile_pass *pass, uint64_t head_bytes, trf_error *err) {
    const trf_head_sections sections = head_sections(e);
    uint8_t *head = malloc(head_bytes);
    if (!head)
        return trf_fail(err, TRF_ERR_MEMORY, TRF_NO_OFFSET, "no memory for a head of %llu bytes",
                        (unsigned long long)head_bytes);
    e->encoder.header.blob_bytes = head_bytes + pass->data_bytes;
    e->encoder.extension.exception_count = pass->exceptions;
    trf_write_head(&e->encoder.header, &e->encoder.extension, e->encoder.model.frequency, e->metas, &sections, head);
    trf_status status = e->sink->write(e->sink->context, 0, head, head_bytes, err);
    free(head);
    return status;
}

static trf_tile_pass make_pass(encoding *e) {
    return (trf_tile_pass){.encoder = &e->encoder, .from = &e->from, .threads = e->options->threads, .span_stride = 1};
}

static double blob_bits(const encoding *e, uint64_t bytes) {
    return 8.0 * (double)bytes / ((double)e->source->rows * e->source->cols);
}

/* ---- rate control ---- */

/* The step at which the model (order-0 entropy of classes plus `overhead`) predicts the bits asked for. The cost falls
 * as the step grows. */
static double solve_step(const encoding *e, double overhead) {
    double low = trf_quantizer_min_step(e->quantizer), high = trf_quantizer_max_step(e->quantizer);
    for (int i = 0; i < 40; i++) {
        double counts[TRF_NUM_CODES], middle = sqrt(low * high);
        trf_classes classes;
        trf_quantizer_estimate(e->quantizer, middle, counts);
        trf_choose_int_classes(&classes, counts, e->encoder.header.class_bits, e->encoder.exception_cost);
        if (classes.bits + overhead > e->options->bits)
            low = middle;
        else
            high = middle;
    }
    return sqrt(low * high);
}

/* Measures the bits a weight that a step really gives, by encoding some spans of tiles spread over the layer. */
static trf_status try_step(encoding *e, double step, double *bits, trf_error *err) {
    trf_quantizer_set_step(e->quantizer, step);
    trf_status status = analyze(e, 0, err);
    if (status != TRF_OK)
        return status;
    uint64_t head_bytes, spans = trf_count_tile_spans(&e->encoder.header),
                         weights = (uint64_t)e->source->rows * e->source->cols;
    head_bytes = lay_out_sections(e);
    trf_tile_pass pass = make_pass(e);
    uint64_t stride = weights / TRIAL_WEIGHTS;
    pass.span_stride = (uint32_t)(stride < 1 ? 1 : stride > spans / 2 ? (spans + 1) / 2 : stride);
    status = trf_encode_tiles(&pass, head_bytes, err);
    if (status == TRF_OK)
        *bits = 8.0 * (double)pass.data_bytes / (double)pass.weights + blob_bits(e, head_bytes);
    return status;
}

/* The bits of a slab without its codes: for each lane the L bits of its first state and half a word, and the counts of
 * words and exceptions and half of the padding. */
static double bits_of_slab(const trf_header *header) {
    return TRF_LANES * (header->state_bits + 8.0) + 8.0 * (TRF_LANE_PAIRS + 4 + TRF_ALIGNMENT / 2);
}

/* A first guess of the bits a weight that the model of solve_step leaves out: 0.13 with wide slabs, mostly for the ends
 * of lanes. Narrow slabs have twice as many of these. */
static double initial_overhead(const trf_header *header) {
    return 0.13 + bits_of_slab(header) / TRF_SLAB_ROWS * (1.0 / header->slab_cols - 1.0 / TRF_MAX_SLAB_COLS);
}

/* Bits a weight for what large matrices hardly have: the head without scales, half of the tiles' padding, slabs that
 * are not full, and slivers. */
static double small_matrix_bits(const encoding *e) {
    const trf_header *header = &e->encoder.header;
    const double weights = (double)header->rows * header->cols,
                 bytes = TRF_TILES_OFFSET + (double)e->num_tiles * (sizeof(trf_tile_meta) + TRF_TILE_ALIGNMENT / 2);
    double num_slabs = 0, coded = 0;
    for (uint32_t row = 0; row * TRF_TILE_SIZE < header->rows; row++)
        for (uint32_t col = 0; col * TRF_TILE_SIZE < header->cols; col++) {
            const trf_tile_shape shape =
                trf_tile_shape_at(header->rows, header->cols, header->slab_cols, row, col, TRF_TILE_CODED);
            num_slabs += shape.num_slabs;
            coded += (double)shape.coded_rows * shape.coded_cols;
        }
    const double of_slivers = 8.0 * header->stored_element_bytes - e->options->bits;
    return (8 * bytes + bits_of_slab(header) * num_slabs + of_slivers * (weights - coded)) / weights -
           bits_of_slab(header) / (TRF_SLAB_ROWS * header->slab_cols);
}

/* Bits a weight for the scales that were asked for: those of whole scale groups or blocks, of F16. Groups and blocks
 * that the matrix cuts have more for each weight; if it is narrower than a group, as many as it has rows. */
static double asked_scale_bits(const encoding *e) {
    const double size = e->encoder.extension.scale_group_size;
    if (e->encoder.extension.scale_group_size == 0)
        return 0;
    return 16 / (e->encoder.extension.granularity == TRF_GRANULARITY_SCALE_BLOCK ? size * size : size);
}

/* The largest step that the search may take. If a matrix has much of what large ones hardly have, it is the step that
 * leaves its codes all but kSmallMatrixShare of the bits. */
static double largest_step(const encoding *e) {
    const double most = kSmallMatrixShare * e->options->bits, asked_for = asked_scale_bits(e),
                 scales = blob_bits(e, head_sections(e).scales_bytes);
    if (small_matrix_bits(e) + scales - asked_for <= most)
        return trf_quantizer_max_step(e->quantizer);
    return solve_step(e, initial_overhead(&e->encoder.header) + asked_for + most);
}

/* Searches the step, up to max_step. The best one goes to *found, and the quantizer and the encoder stay set to it.
 * correction: the bits by which trials fell short of finished blobs. */
static trf_status search_step(encoding *e, double correction, double max_step, double *found, trf_error *err) {
    const double target = e->options->bits - correction, min_step = trf_quantizer_min_step(e->quantizer);
    double step = fmin(solve_step(e, initial_overhead(&e->encoder.header) + correction), max_step), low = 0,
           high = INFINITY, best_step = step, best_off = INFINITY, tried = 0, bits;
    for (int i = 0; i < MAX_TRIALS; i++) {
        tried = step;
        trf_status status = try_step(e, step, &bits, err);
        if (status != TRF_OK)
            return status;
        if (fabs(bits - target) < best_off)
            best_off = fabs(bits - target), best_step = step;
        if (best_off < kTrialTolerance * target)
            break;
        if (bits > target)
            low = step;
        else
            high = step;
        /* A bit is a factor of two in the step; if that leaves the bracket, the bracket is halved. */
        step *= trf_exp2(bits - target);
        if (step <= low || step >= high)
            step = isfinite(high) && low > 0 ? sqrt(low * high) : step;
        step = step < min_step ? min_step : step > max_step ? max_step : step;
        if (step == tried)
            break;
    }
    *found = best_step;
    return best_step == tried ? TRF_OK : try_step(e, best_step, &bits, err);
}

/* ---- the whole ---- */

static trf_status write_layer(encoding *e, trf_tile_pass *pass, uint64_t *blob_bytes, trf_error *err) {
    uint64_t head_bytes;
    head_bytes = lay_out_sections(e);
    *pass = make_pass(e);
    pass->sink = e->sink;
    pass->progress = e->progress;
    pass->verify = e->options->verify;
    pass->metas = e->metas;
    trf_status status = trf_encode_tiles(pass, head_bytes, err);
    /* Where no tile was worth coding, nothing uses the offsets; the head must not promise them. */
    if (status == TRF_OK && pass->predictor_modes != e->encoder.header.predictor_modes) {
        e->encoder.header.predictor_modes = 0;
        e->encoder.extension.exponent_offset = 0;
        status = analyze(e, 0, err);
        return status == TRF_OK ? write_layer(e, pass, blob_bytes, err) : status;
    }
    if (status == TRF_OK)
        status = write_head(e, pass, head_bytes, err);
    *blob_bytes = head_bytes + pass->data_bytes;
    return status;
}

static trf_status encode_to_rate(encoding *e, trf_tile_pass *pass, uint64_t *blob_bytes, trf_error *err) {
    const double max_step = largest_step(e);
    double correction = 0, step;
    for (int i = 0; i < MAX_FULL_PASSES; i++) {
        trf_status status = search_step(e, correction, max_step, &step, err);
        if (status == TRF_OK)
            status = write_layer(e, pass, blob_bytes, err);
        double off = status == TRF_OK ? blob_bits(e, *blob_bytes) - e->options->bits : 0;
        if (status != TRF_OK || fabs(off) <= kFinalTolerance * e->options->bits || (off > 0 && step == max_step))
            return status;
        correction += off;
    }
    return TRF_OK;
}

static trf_status encode(encoding *e, trf_tile_pass *pass, uint64_t *blob_bytes, trf_error *err) {
    if (e->quantizer && e->options->bits != 0)
        return encode_to_rate(e, pass, blob_bytes, err);
    if (e->quantizer)
        trf_quantizer_set_step(e->quantizer, trf_quantizer_int8_step(e->quantizer));
    trf_status status = analyze(e, 1, err);
    return status == TRF_OK ? write_layer(e, pass, blob_bytes, err) : status;
}

static void fill_report(const encoding *e, const trf_tile_pass *pass, uint64_t blob_bytes, trf_layer_report *report) {
    report->weights = (uint64_t)e->source->rows * e->source->cols;
    report->source_bytes = report->weights * trf_dtype_bytes(e->source->dtype);
    report->blob_bytes = blob_bytes;
    report->exceptions = pass->exceptions;
    report->entropy_bits = e->entropy_bits;
    report->relative_rms_error = pass->energy.weights > 0 ? sqrt(pass->energy.error / pass->energy.weights) : 0;
    report->weight_energy = pass->energy.weights;
    report->predictor_modes = pass->predictor_modes;
}

/* Looks whether BF16 weights are scaled FP8, if the options leave that open or demand it, and makes *codec E4M3 if so.
 */
static trf_status look_for_fp8(encoding *e, trf_codec *codec, trf_error *err) {
    int found;
    const int demanded = e->options->codec == TRF_CODEC_E4M3;
    if (e->source->dtype != TRF_DTYPE_BF16 || (!demanded && e->options->codec != TRF_CODEC_AUTO))
        return TRF_OK;
    trf_status status = trf_find_fp8(e->source, e->options->threads, &e->scales, &found, err);
    if (status != TRF_OK)
        return status;
    if (!found && demanded)
        return trf_fail(err, TRF_ERR_ARGUMENT, TRF_NO_OFFSET,
                        "codec %s takes BF16 weights that are FP8 codes times scales, and these are not",
                        trf_codec_name(TRF_CODEC_E4M3));
    *codec = found ? TRF_CODEC_E4M3 : *codec;
    return TRF_OK;
}

/* Encodes with a codec that takes the source. */
static trf_status encode_as(encoding *e, trf_codec codec, trf_encoded *encoded, trf_layer_report *report,
                            trf_error *err) {
    trf_tile_pass pass;
    trf_status status = TRF_OK;
    if (codec == TRF_CODEC_INT && e->source->dtype != TRF_DTYPE_I8)
        status = trf_quantizer_create(e->source, e->options, &e->quantizer, err);
    if (status != TRF_OK)
        return status;
    e->from = (trf_element_source){e->source, codec, e->quantizer, e->scales.values ? &e->scales : NULL};
    start_encoder(e, codec);
    *encoded = (trf_encoded){.codec = codec,
                             .granularity = (trf_granularity)e->encoder.extension.granularity,
                             .scale_group_size = e->encoder.extension.scale_group_size};
    status = encode(e, &pass, &encoded->blob_bytes, err);
    if (status == TRF_OK && report)
        fill_report(e, &pass, encoded->blob_bytes, report);
    return status;
}

/* Encodes with a codec that takes the source. scales: of scaled FP8, if they are known, and then the caller's; or NULL.
 */
static trf_status encode_source(const trf_source *source, trf_codec codec, const trf_fp8_scales *scales,
                                const trf_encode_options *options, const trf_sink *sink, const trf_progress *progress,
                                trf_encoded *encoded, trf_layer_report *report, trf_error *err) {
    trf_status status = TRF_OK;
    encoding *e = calloc(1, sizeof *e);
    if (!e)
        return trf_fail(err, TRF_ERR_MEMORY, TRF_NO_OFFSET, "no memory to encode a layer");
    e->source = source;
    e->options = options;
    e->sink = sink;
    e->progress = progress;
    e->num_tiles = (uint64_t)((source->rows + TRF_TILE_SIZE - 1) / TRF_TILE_SIZE) *
                   ((source->cols + TRF_TILE_SIZE - 1) / TRF_TILE_SIZE);
    e->metas = malloc(e->num_tiles * sizeof *e->metas);
    if (!e->metas)
        status = trf_fail(err, TRF_ERR_MEMORY, TRF_NO_OFFSET, "no memory for the metadata of %llu tiles",
                          (unsigned long long)e->num_tiles);
    if (scales)
        e->scales = *scales;
    else if (status == TRF_OK)
        status = look_for_fp8(e, &codec, err);
    if (status == TRF_OK)
        status = encode_as(e, codec, encoded, report, err);
    free_offsets(&e->encoder);
    if (!scales)
        trf_fp8_scales_free(&e->scales);
    trf_quantizer_free(e->quantizer);
    free(e->metas);
    free(e);
    return status;
}

trf_status trf_encode_source(const trf_source *source, const trf_encode_options *options, const trf_sink *sink,
                             const trf_progress *progress, trf_encoded *encoded, trf_layer_report *report,
                             trf_error *err) {
    trf_codec codec = TRF_CODEC_AUTO;
    trf_status status = check_options(source, options, err);
    if (status == TRF_OK)
        status = choose_codec(source, options, &codec, err);
    return status == TRF_OK ? encode_source(source, codec, NULL, options, sink, progress, encoded, report, err)
                            : status;
}

trf_status trf_encode_scaled_fp8(const trf_source *source, const trf_fp8_scales *scales,
                                 const trf_encode_options *options, const trf_sink *sink, const trf_progress *progress,
                                 trf_encoded *encoded, trf_layer_report *report, trf_error *err) {
    assert(source->dtype == TRF_DTYPE_BF16);
    trf_status status = check_options(source, options, err);
    return status == TRF_OK
               ? encode_source(source, TRF_CODEC_E4M3, scales, options, sink, progress, encoded, report, err)
               : status;
}
