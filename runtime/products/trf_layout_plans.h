/* SPDX-License-Identifier: Apache-2.0 */
/* What plans of plain and of packed layers have in common on every kind of device. */
#ifndef TRF_LAYOUT_PLANS_H
#define TRF_LAYOUT_PLANS_H

#include "trf_plan.h"

/* Sets the path and reason of a plain layer's plan. Errors: TRF_ERR_UNSUPPORTED (another path was asked for). */
trf_status trf_plain_take_path(trf_plan *plan, trf_path path, trf_error *err);

/* Does the same for a packed layer, whose path is the packed one. Errors: TRF_ERR_UNSUPPORTED (another path was asked
 * for). */
trf_status trf_packed_take_path(trf_plan *plan, trf_path path, trf_error *err);

/* Sets the fields of a plan on a GPU that follow from its partition. */
void trf_packed_set_partition(trf_plan *plan, const trf_packed_partition *partition);

/* Sets the partition of a plan on a GPU that has the packed path. If the context's tuning has a kernel and a cut, and
 * these run, the plan uses them and its reason says so; otherwise it uses those that should be the fastest. Errors:
 * TRF_ERR_UNSUPPORTED (too many rows of x). */
trf_status trf_packed_choose_partition(trf_plan *plan, trf_error *err);

#endif
