/* SPDX-License-Identifier: Apache-2.0 */
/* What planning begins with in the fused and in the wide family: the product that is asked for, and what keeps a layer
 * from either family. Plain C: nothing here touches a device. */
#ifndef TRF_PRODUCT_REQUEST_H
#define TRF_PRODUCT_REQUEST_H

#include "trf_device_limits.h"
#include "trf_product.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct trf_product_request {
    const trf_device_view *view;
    const trf_layer_traits *traits;
    const trf_device_limits *limits;
    uint32_t m;
} trf_product_request;

/* Checks whether a layer's weights can be decoded to exact fragments for x of a type, whatever the kernel family.
 * @return NULL if they can, else why not: a static string. */
const char *trf_fragment_refusal(const trf_device_view *view, const trf_layer_traits *traits, trf_dtype x_dtype);

#ifdef __cplusplus
}
#endif

#endif
