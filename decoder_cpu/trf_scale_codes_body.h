/* SPDX-License-Identifier: Apache-2.0 */
/* Each decoder includes this, so that the loop is compiled for its instruction set. */
#include "trf_number_formats.h"

/* A trf_scale_codes_fn. */
static void scale_codes(uint16_t *elements, uint32_t count, float scale) {
    for (uint32_t i = 0; i < count; i++) /* without branches, so that it vectorizes */
        elements[i] = trf_scale_fp8(elements[i], scale);
}
