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

/* Why a packed layer's plan has the kernel of the context's tuning. */
extern const char trf_packed_tuned_reason[];

/* Finds the partition of a packed FP8 layer's plan on a GPU. *is_tuned says whether it is the tuning's. @return why the
 * packed path does not take the product, a static text; NULL if it does. */
const char *trf_packed8_choose_partition(const trf_plan *plan, int *is_tuned, trf_packed_partition *partition);

#endif
