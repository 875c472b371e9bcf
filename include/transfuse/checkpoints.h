/* SPDX-License-Identifier: Apache-2.0 */
/* Texts for what a trf_checkpoint_report counts. Conventions: transfuse.h. */
#ifndef TRANSFUSE_CHECKPOINTS_H
#define TRANSFUSE_CHECKPOINTS_H

#include "../transfuse.h"

#ifdef __cplusplus
extern "C" {
#endif

/* @return why a tensor stayed as it was, such as "F32 without a lossless codec"; "?" for a value that is none. Never
 * NULL. */
TRF_API const char *trf_left_reason_text(trf_left_reason reason);

#ifdef __cplusplus
}
#endif
#endif
