/* SPDX-License-Identifier: Apache-2.0 */
/* How many layers one grouped launch takes. */
#ifndef TRF_GROUP_SIZES_H
#define TRF_GROUP_SIZES_H

enum {
    TRF_GROUP_MAX_LAYERS = 8, /* as many as fit into a kernel's arguments */
    TRF_GROUP_MAX_M = 8       /* rows of x */
};

#endif
