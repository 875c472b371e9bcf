/* SPDX-License-Identifier: Apache-2.0 */
#include "trf_product_request.h"

#include "trf_fused_variant.h"
#include "trf_planning.h"

/* Why products do not take a layer of scaled FP8, or NULL. Kernels have one scale pair for a slab's 128
 * columns. */
static const char *scaled_fp8_refusal(const trf_device_view *view, const trf_layer_traits *traits, trf_dtype x_dtype) {
    if (x_dtype != TRF_DTYPE_BF16)
        return "its weights are BF16 numbers, and x is not BF16";
    if (view->granularity == TRF_GRANULARITY_SCALE_BLOCK && view->scale_group_size % 128)
        return "its scale blocks are not multiples of 128";
    if (!traits->exceptions_fit_fragments)
        return "an exception is not exact when it is as small as its fragment";
    if (!traits->scales_have_pairs)
        return "a scale is not between 2^-80 and 2^7";
    return NULL;
}

const char *trf_fragment_refusal(const trf_device_view *view, const trf_layer_traits *traits, trf_dtype x_dtype) {
    if (traits->predictor_modes & TRF_PREDICT_COL)
        return "the layer has column offsets";
    if (traits->mixed_predictor_modes)
        return "the tiles differ in their row offsets";
    if (traits->max_abs_offset + (uint32_t)trf_fragment_exponent(view->codec) > 126)
        return "its exponent offsets are larger than 126";
    if (trf_is_scaled_fp8(view->codec, view->source_dtype))
        return scaled_fp8_refusal(view, traits, x_dtype);
    if (!traits->exceptions_fit_fragments)
        return "an exception is not exact under the layer's exponent offset";
    if (view->codec == TRF_CODEC_INT) {
        if (view->class_bits + view->raw_bits > 8)
            return "its codes are wider than 8 bits";
        if (x_dtype == TRF_DTYPE_BF16 && traits->max_abs_code > 256)
            return "its codes are not exact in BF16";
        if (trf_has_scale_groups(view) && view->scale_group_size % 32)
            return "its scale groups are not multiples of 32";
    }
    return NULL;
}
