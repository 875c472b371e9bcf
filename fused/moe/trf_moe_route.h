/* SPDX-License-Identifier: Apache-2.0 */
/* Routes of a mixture of experts. A *route* is one expert of one token: token t has the routes t * top_k to
 * t * top_k + top_k - 1. A *slot* is a route's place when routes are sorted by expert, and by their number within an
 * expert; so an expert's slots follow each other. Routes to experts that are not here have no slot. C and CUDA. */
#ifndef TRF_MOE_ROUTE_H
#define TRF_MOE_ROUTE_H

#include "trf_blob.h"
#include "trf_divisor.h"

enum {
    TRF_MOE_NO_EXPERT = 0xFFFF /* of a route */
};
#define TRF_MOE_NO_SLOT 0xFFFFFFFFu

typedef struct trf_moe_routes {
    const void *ids;    /* device, [count]: numbers of experts, signed, of id_bytes each */
    const int32_t *map; /* device, [num_ids]: the number that an expert has here, or -1 if it is not; NULL: itself */
    uint32_t id_bytes;  /* 4 or 8 */
    uint32_t count, num_ids, experts;
    trf_divisor top_k;
} trf_moe_routes;

/* The expert of a route, or TRF_MOE_NO_EXPERT, as for routes that there are not. Ids and the map are data: with an
 * invalid number the route goes to no expert. */
TRF_HD uint32_t trf_moe_expert_of_route(const trf_moe_routes *routes, uint32_t route) {
    if (route >= routes->count)
        return TRF_MOE_NO_EXPERT;
    int64_t id = routes->id_bytes == 8 ? ((const int64_t *)routes->ids)[route] : ((const int32_t *)routes->ids)[route];
    if (id < 0 || id >= routes->num_ids)
        return TRF_MOE_NO_EXPERT;
    if (routes->map)
        id = routes->map[id];
    return id < 0 || id >= routes->experts ? (uint32_t)TRF_MOE_NO_EXPERT : (uint32_t)id;
}

#endif
