/* SPDX-License-Identifier: Apache-2.0 */
/* Groups: products that do not depend on each other, such as q, k and v, or gate and up, in shared launches. They are
 * for small batches of small layers, which alone do not fill a GPU. transfuse.h has the conventions. */
#ifndef TRANSFUSE_GROUPS_H
#define TRANSFUSE_GROUPS_H

#include "../transfuse.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct trf_layer_group trf_layer_group;

/* One product of a group. m, the types and y_stride (0: the layer's rows) are as in trf_plan_options. */
typedef struct trf_group_member {
    size_t struct_bytes;
    trf_device_layer *layer;
    uint32_t m;
    trf_dtype x_dtype, y_dtype;
    uint64_t y_stride;
} trf_group_member;

TRF_API void trf_group_member_init(trf_group_member *member);

/* Prepares a group, and does not touch the device. members is an array [count] in host memory, with layers of one
 * context. The layers must outlive the group, which counts as a plan of each; one layer may be there more than once. On
 * a GPU those that allow it (docs/guide.md says which) share launches, up to 8 in each, where that is estimated to be
 * faster than one after another; all others run as trf_linear would. Errors: those of trf_plan_create; TRF_ERR_ARGUMENT
 * for layers of several contexts. */
TRF_API trf_status trf_layer_group_create(const trf_group_member *members, uint32_t count, trf_layer_group **group,
                                          trf_error *err);
TRF_API void trf_layer_group_destroy(trf_layer_group *group); /* waits for nothing */

typedef struct trf_layer_group_info {
    uint64_t workspace_bytes; /* that trf_linear_group needs */
    uint32_t members;
    uint32_t sharing;  /* members that share launches with others ... */
    uint32_t launches; /* ... in so many of these */
} trf_layer_group_info;

TRF_API void trf_layer_group_get_info(const trf_layer_group *group, trf_layer_group_info *info);

/* Computes y[i] = x[i] . W^T for each member i, in any order or at once. x and y are arrays [members] in host memory,
 * of pointers as in trf_operands, which only the call reads. No element of y is another's or any x; members may have
 * the same x; else it is TRF_ERR_ARGUMENT, before anything is written. workspace, stream, corrupt slabs and errors are
 * those of trf_linear. Every run of a group with one alignment of x and y gives the same bits; where members share a
 * launch they need not be those of trf_linear, whose sums are added in another order. On the CPU all of y are computed
 * before a corrupt layer is reported. */
TRF_API trf_status trf_linear_group(const trf_layer_group *group, const void *const *x, void *const *y, void *workspace,
                                    trf_stream stream, trf_error *err);

#ifdef __cplusplus
}
#endif
#endif
