/* SPDX-License-Identifier: Apache-2.0 */
#include "trf_packed_group_partition.h"

#include "trf_packed_estimate.h"
#include "trf_planning.h"

/* Launches of their own must take so many times the group's estimated time. */
static const double kLeastGain = 1.05;

int trf_packed_group_takes(const trf_packed_group_product *product) {
    return product->m <= TRF_PACKED_GROUP_MAX_M && product->alone->shape != TRF_PACKED_GENERAL;
}

int trf_packed_group_fits(const trf_packed_group_product *product, const trf_packed_group_product *other) {
    return product->fp8 ? other->fp8 != NULL : other->fp8 == NULL && product->view->zeroing == other->view->zeroing;
}

/* Returns what a product takes in a launch of its own. */
static double alone_ns(const trf_packed_group_product *product, const trf_device_limits *limits) {
    if (product->fp8) {
        const trf_packed_costs costs = trf_packed8_sm_90_costs(product->fp8->flags);
        return trf_packed_estimate(&costs, TRF_PACKED8_SLAB_BYTES, &product->fp8->packed, limits, product->m,
                                   product->alone);
    }
    return trf_packed_estimate(&trf_packed_sm_90_costs, TRF_PACKED_SLAB_BYTES, product->view, limits, product->m,
                               product->alone);
}

/* Returns what the products take one after the other. A launch that starts early begins while the one before it
 * ends. */
static double in_a_row_ns(const trf_packed_group_product *products, uint32_t count, const trf_device_limits *limits) {
    double ns = trf_packed_sm_90_costs.bulk_start;
    for (uint32_t i = 0; i < count; i++)
        ns += alone_ns(&products[i], limits) - trf_packed_sm_90_costs.bulk_start;
    return ns;
}

static int choose_member(const trf_packed_group_product *product, const trf_device_limits *limits, int shape,
                         uint32_t cluster_size, trf_packed_partition *member) {
    return product->fp8 ? trf_packed8_choose_shape(product->fp8, limits, product->m, shape, cluster_size, member)
                        : trf_packed_choose_shape(product->view, limits, product->m, shape, cluster_size, member);
}

/* Returns what the products take in one launch, whose members are set. The kernel is the same for all of them. */
static double group_ns(const trf_packed_group_product *products, uint32_t count, const trf_device_limits *limits,
                       const trf_packed_group_partition *made) {
    const trf_packed_view *views[TRF_PACKED_GROUP_MAX_LAYERS];
    uint32_t m[TRF_PACKED_GROUP_MAX_LAYERS], flags = TRF_PACKED8_HAS_LOW;
    for (uint32_t i = 0; i < count; i++) {
        views[i] = products[i].view;
        m[i] = products[i].m;
        flags |= products[i].fp8 ? products[i].fp8->flags : 0;
    }
    const trf_packed_costs costs = products[0].fp8 ? trf_packed8_sm_90_costs(flags) : trf_packed_sm_90_costs;
    return trf_packed_estimate_group(&costs, products[0].fp8 ? TRF_PACKED8_SLAB_BYTES : TRF_PACKED_SLAB_BYTES, views,
                                     limits, m, made->members, count);
}

/* Sets a partition with this kernel and clusters of so many blocks. @return 0 if a product does not allow it, or if not
 * all clusters run at once. */
static int cut_group(const trf_packed_group_product *products, uint32_t count, const trf_device_limits *limits,
                     int shape, uint32_t cluster_size, trf_packed_group_partition *made) {
    uint64_t tiles = 0;
    *made = (trf_packed_group_partition){.shape = shape, .cluster_size = cluster_size};
    for (uint32_t i = 0; i < count; i++) {
        if (!choose_member(&products[i], limits, shape, cluster_size, &made->members[i]))
            return 0;
        made->x_tiles = trf_max_u32(made->x_tiles, made->members[i].x_tiles);
        made->x_offset[i] = made->workspace_bytes;
        made->workspace_bytes += trf_padded_x_bytes(products[i].view->cols, products[i].m);
        tiles += made->members[i].tiles;
    }
    if (tiles > limits->clusters_of[cluster_size])
        return 0;
    made->blocks = (uint32_t)tiles * cluster_size;
    for (uint32_t i = 0; i < count; i++)
        made->members[i].x_tiles = made->x_tiles;
    made->group_ns = group_ns(products, count, limits, made);
    return 1;
}

int trf_packed_group_choose(const trf_packed_group_product *products, uint32_t count, const trf_device_limits *limits,
                            trf_packed_group_partition *partition) {
    int found = 0;
    if (count < 2 || count > TRF_PACKED_GROUP_MAX_LAYERS)
        return 0;
    for (int shape = 0; shape < TRF_PACKED_BULK_SHAPES; shape++)
        for (uint32_t cluster_size = 1; cluster_size <= TRF_MAX_CLUSTER; cluster_size++) {
            trf_packed_group_partition made;
            if (trf_packed_bulk_is_stream_k(shape) || !cut_group(products, count, limits, shape, cluster_size, &made) ||
                (found && made.group_ns >= partition->group_ns))
                continue;
            *partition = made;
            found = 1;
        }
    if (!found)
        return 0;
    partition->alone_ns = in_a_row_ns(products, count, limits);
    return kLeastGain * partition->group_ns < partition->alone_ns;
}
