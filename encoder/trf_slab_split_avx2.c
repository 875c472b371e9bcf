/* SPDX-License-Identifier: Apache-2.0 */
#define TRF_SPLIT_SLAB trf_split_slab_avx2
#include "trf_slab_split_body.h"
