/* SPDX-License-Identifier: Apache-2.0 */
/* What a caller's trf_limits allow, and how much of it is taken. */
#ifndef TRF_BUDGET_H
#define TRF_BUDGET_H

#include "trf_error.h"

#include "transfuse/checkpoints.h"

/* Host memory that is held at a time for what files say. Whoever allocates takes it before and gives it back after. One
 * thread at a time uses a budget. */
typedef struct trf_budget {
    uint64_t max_bytes; /* 0: no limit */
    uint64_t held_bytes;
} trf_budget;

/* Reads the caller's limits, NULL for none. Errors: as trf_take_struct. */
trf_status trf_take_limits(const trf_limits *limits, trf_limits *taken, trf_error *err);

/* Takes bytes for `what`, such as "the head of a blob". budget: NULL: there is no limit. Errors: TRF_ERR_LIMIT, and
 * nothing is taken. */
trf_status trf_budget_take(trf_budget *budget, uint64_t bytes, const char *what, trf_error *err);
void trf_budget_give(trf_budget *budget, uint64_t bytes);

/* Checks that so many bytes could be taken. */
trf_status trf_budget_check(const trf_budget *budget, uint64_t bytes, const char *what, trf_error *err);

/* @return whether a status says that there is too little memory, or that no more is allowed. It says nothing of the
 * file then, and is never taken for a fault of it. */
static inline int trf_lacks_memory(trf_status status) { return status == TRF_ERR_MEMORY || status == TRF_ERR_LIMIT; }

/* What an output's files may take together. */
typedef struct trf_quota {
    uint64_t max_bytes;  /* 0: no limit */
    uint64_t done_bytes; /* files that are complete */
} trf_quota;

/* Checks that the file at work may grow to file_bytes. quota: NULL: there is no limit. Errors: TRF_ERR_LIMIT. */
trf_status trf_quota_check(const trf_quota *quota, uint64_t file_bytes, const char *path, trf_error *err);

#endif
