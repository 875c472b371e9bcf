/* SPDX-License-Identifier: Apache-2.0 */
#include "trf_product_request.h"

#include "trf_fused_variant.h"
#include "trf_planning.h"

const char *trf_fragment_refusal(const trf_device_view *view, const trf_layer_traits *traits, trf_dtype x_dtype) {
    if (trf_is_scaled_fp8(view->codec, view->source_dtype))
        return "its weights are FP8 codes with scales, rounded to BF16";
    if (traits->predictor_modes & TRF_PREDICT_COL)
        return "the layer has column offsets";
    if (traits->mixed_predictor_modes)
        return "the tiles differ in their row offsets";
    if (traits->max_abs_offset + (uint32_t)trf_fragment_exponent(view->codec) > 126)
        return "its exponent offsets are larger than 126";
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
