/* SPDX-License-Identifier: Apache-2.0 */
#include "trf_layout.h"

#include "trf_context.h"

trf_status trf_find_layout(const trf_context *context, trf_layout layout, const trf_layout_ops **ops, trf_error *err) {
    for (const trf_layout_ops *const *found = context->ops->layouts; *found; found++)
        if ((*found)->layout == layout) {
            *ops = *found;
            return TRF_OK;
        }
    return trf_fail(err, TRF_ERR_UNSUPPORTED, TRF_NO_OFFSET, "the device '%s' has no layout '%s'", context->name,
                    trf_layout_name(layout));
}
