/* SPDX-License-Identifier: Apache-2.0 */
/* Converts layers on the device to another layout: the public functions. */
#include "trf_context.h"
#include "trf_device_layer.h"
#include "trf_layer_feed.h"

#include <stdlib.h>

/* Finds the table of the layout that a layer is converted to. */
static trf_status find_target(const trf_device_layer *layer, trf_layout layout, const trf_layout_ops **ops,
                              trf_error *err) {
    if (layout < TRF_LAYOUT_CODED || layout > TRF_LAYOUT_PACKED8)
        return trf_fail(err, TRF_ERR_UNSUPPORTED, TRF_NO_OFFSET, "this version has no layout %d", (int)layout);
    if (layer->layout->layout == layout || (layer->layout->layout == TRF_LAYOUT_PACKED8 && layout == TRF_LAYOUT_PACKED))
        return trf_fail(err, TRF_ERR_ARGUMENT, TRF_NO_OFFSET, "the layer is %s already",
                        trf_layout_name(layer->layout->layout));
    if (layer->is_of_stack)
        return trf_fail(err, TRF_ERR_UNSUPPORTED, TRF_NO_OFFSET, "a stack's layer is not converted");
    trf_status status = trf_find_layout(layer->context, layout, ops, err);
    if (status == TRF_OK && !(*ops)->convert)
        return trf_fail(err, TRF_ERR_UNSUPPORTED, TRF_NO_OFFSET,
                        "no layer is converted to be %s: trf_device_layer_encode gives a blob to load",
                        trf_layout_name(layout));
    return status;
}

trf_status trf_device_layer_get_converted_size(const trf_device_layer *layer, trf_layout layout, trf_layer_size *size,
                                               trf_error *err) {
    const trf_layout_ops *ops;
    trf_layer_size found;
    if (!layer || !size)
        return trf_fail(err, TRF_ERR_ARGUMENT, TRF_NO_OFFSET, "a layer's size needs a layer");
    trf_status status = find_target(layer, layout, &ops, err);
    if (status == TRF_OK)
        status = ops->get_converted_size(layer, &found, err);
    if (status == TRF_OK)
        *size = found;
    return status;
}

/* Checks that there is enough memory, if the caller supplies it. */
static trf_status check_memory(const trf_device_layer *layer, const trf_layout_ops *ops, const trf_layer_memory *memory,
                               trf_error *err) {
    const trf_given_buffer from = {layer->view.buffer, layer->view.buffer_bytes};
    trf_layer_size size;
    trf_status status = ops->get_converted_size(layer, &size, err);
    if (status != TRF_OK || !trf_has_memory(memory))
        return status;
    return trf_check_layer_memory(memory, &size, &from, layer->context->ops->alignment, 0, err);
}

trf_status trf_device_layer_convert(const trf_device_layer *layer, trf_layout layout, const trf_layer_memory *memory,
                                    trf_device_layer **converted, trf_error *err) {
    const trf_layer_memory given = memory ? *memory : (trf_layer_memory){0};
    const trf_layout_ops *ops;
    trf_device_layer *made;
    if (!layer || !converted)
        return trf_fail(err, TRF_ERR_ARGUMENT, TRF_NO_OFFSET, "converting needs a layer, and a place for the new one");
    trf_status status = find_target(layer, layout, &ops, err);
    if (status == TRF_OK)
        status = check_memory(layer, ops, &given, err);
    if (status == TRF_OK)
        status = trf_begin_device_layer(layer->context, ops, &made, err);
    if (status != TRF_OK)
        return status;
    made->info = layer->info;
    made->header = layer->header;
    trf_forget_scaled_fp8(made);
    if (layer->layout->layout != TRF_LAYOUT_CODED) /* the caller's work may still be writing another one over it */
        status = layer->layout->check(layer, err);
    if (status == TRF_OK)
        status = ops->convert(made, layer, &given, err);
    if (status == TRF_OK)
        *converted = made;
    else
        free(made);
    return status;
}
