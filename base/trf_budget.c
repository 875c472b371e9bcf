/* SPDX-License-Identifier: Apache-2.0 */
#include "trf_budget.h"

#include "trf_struct.h"

#include <inttypes.h>

void trf_limits_init(trf_limits *limits) { *limits = (trf_limits){.struct_bytes = sizeof *limits}; }

trf_status trf_take_limits(const trf_limits *limits, trf_limits *taken, trf_error *err) {
    static const trf_struct_type type = {"trf_limits", sizeof *taken, TRF_STRUCT_BYTES(trf_limits, max_device_bytes)};
    trf_limits_init(taken);
    return limits ? trf_take_struct(&type, taken, limits, err) : TRF_OK;
}

trf_status trf_budget_check(const trf_budget *budget, uint64_t bytes, const char *what, trf_error *err) {
    if (!budget || !budget->max_bytes ||
        (budget->held_bytes <= budget->max_bytes && bytes <= budget->max_bytes - budget->held_bytes))
        return TRF_OK;
    return trf_fail(err, TRF_ERR_LIMIT, TRF_NO_OFFSET,
                    "max_memory_bytes is %" PRIu64 ", of which %" PRIu64 " are taken, and %s may take %" PRIu64
                    " bytes",
                    budget->max_bytes, budget->held_bytes, what, bytes);
}

trf_status trf_budget_take(trf_budget *budget, uint64_t bytes, const char *what, trf_error *err) {
    trf_status status = trf_budget_check(budget, bytes, what, err);
    if (budget && status == TRF_OK)
        budget->held_bytes += bytes;
    return status;
}

void trf_budget_give(trf_budget *budget, uint64_t bytes) {
    if (budget)
        budget->held_bytes -= bytes < budget->held_bytes ? bytes : budget->held_bytes;
}

trf_status trf_quota_check(const trf_quota *quota, uint64_t file_bytes, const char *path, trf_error *err) {
    uint64_t total;
    if (!quota || !quota->max_bytes)
        return TRF_OK;
    if (!__builtin_add_overflow(quota->done_bytes, file_bytes, &total) && total <= quota->max_bytes)
        return TRF_OK;
    return trf_fail(err, TRF_ERR_LIMIT, TRF_NO_OFFSET,
                    "%s: max_output_bytes is %" PRIu64 ", and the file would have %" PRIu64 " bytes, after %" PRIu64
                    " of other files",
                    path, quota->max_bytes, file_bytes, quota->done_bytes);
}
