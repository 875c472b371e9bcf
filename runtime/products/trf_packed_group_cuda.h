/* SPDX-License-Identifier: Apache-2.0 */
/* Packed members of groups on a GPU. */
#ifndef TRF_PACKED_GROUP_CUDA_H
#define TRF_PACKED_GROUP_CUDA_H

#include "trf_layer_group.h"

/* Adds launches of packed members to the group, where these should be faster than launches of their own. Members that
 * are in a launch already stay there. */
void trf_cuda_choose_packed_launches(trf_layer_group *group);

/* Enqueues such a launch. x, y: of its members. workspace: as trf_linear_group takes it. @return a cudaError_t. */
int trf_cuda_launch_packed_group(const trf_layer_group *group, const trf_shared_launch *launch, const void *const *x,
                                 void *const *y, void *workspace, trf_stream stream);

#endif
