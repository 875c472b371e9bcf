/* SPDX-License-Identifier: Apache-2.0 */
/* Scales of the int codec and of scaled FP8: FORMAT.md section 3. */
#ifndef TRF_SCALE_H
#define TRF_SCALE_H

#include "trf_number_formats.h"
#include "trf_validate.h"

/* Whether the layer is scaled FP8, whose elements have their scales in them. */
static inline int trf_has_scaled_fp8(const trf_blob_view *view) {
    return trf_is_scaled_fp8(view->header.codec, view->header.source_dtype);
}

/* Whether weights are elements times scales: codes of the int codec. */
static inline int trf_elements_have_scales(const trf_blob_view *view) {
    return view->num_scales && !trf_has_scaled_fp8(view);
}

/* The scale of an entry of the scale table, in F32. */
static inline float trf_scale_value(const trf_blob_view *view, uint64_t index) {
    if (view->extension.scale_dtype == TRF_SCALE_F32)
        return ((const float *)view->scales)[index];
    return trf_f16_scale(((const uint16_t *)view->scales)[index], view->extension.scale_exponent);
}

/* First column of the tile, from `col` on, that has another scale than column col has; at most shape->cols. */
static inline uint32_t trf_scale_end(const trf_blob_view *view, const trf_tile_shape *shape, uint32_t col) {
    uint32_t granularity = view->extension.granularity, scale_group_size = view->extension.scale_group_size;
    if (granularity != TRF_GRANULARITY_SCALE_GROUP && granularity != TRF_GRANULARITY_SCALE_BLOCK)
        return shape->cols;
    uint32_t left = scale_group_size - (shape->col + col) % scale_group_size;
    return left < shape->cols - col ? col + left : shape->cols;
}

#endif
