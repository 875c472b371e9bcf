/* How the warps of a block share its units evenly: the units' columns, one unit behind the other, are cut into one run a warp. C and CUDA.
 *
 * A warp finishes the units that it has all columns of. Of the unit that its run begins in, and of the one that it ends in, it may have some, and leaves its sums; those who share a unit add them
 * up, each another part of y, in the order of warps. */
#ifndef TRF_EVEN_RUNS_H
#define TRF_EVEN_RUNS_H

#include "trf_blob.h"

/* Where the i-th share of things begins that are cut as evenly as may be: `each` a share, one more in the first `more`. */
TRF_HD uint32_t trf_share_begin(uint32_t each, uint32_t more, uint32_t i) { return each * i + (i < more ? i : more); }

/* Which share the thing at `at` is in. */
TRF_HD uint32_t trf_share_of(uint32_t each, uint32_t more, uint32_t at) {
    const uint32_t longer = more * (each + 1);
    return at < longer ? at / (each + 1) : more + (at - longer) / each;
}

typedef struct trf_even_runs {
    uint32_t cols;       /* of a unit, at least 1 */
    uint32_t all;        /* columns of all units */
    uint32_t each, more; /* a run's columns, one more in the first `more` runs */
} trf_even_runs;

TRF_HD trf_even_runs trf_even_runs_of(uint32_t units, uint32_t cols, uint32_t warps) {
    trf_even_runs runs;
    runs.cols = cols;
    runs.all = units * cols;
    runs.each = runs.all / warps;
    runs.more = runs.all % warps;
    return runs;
}

/* The first column of a warp's run, counted through all units; the run ends where the next warp's begins. */
TRF_HD uint32_t trf_run_begin(const trf_even_runs *runs, uint32_t warp) {
    return trf_share_begin(runs->each, runs->more, warp);
}

/* Whether a unit that the warp's run touches is all its own. */
TRF_HD int trf_run_has_unit(const trf_even_runs *runs, uint32_t warp, uint32_t unit) {
    const uint32_t first = unit * runs->cols;
    return trf_run_begin(runs, warp) <= first && trf_run_begin(runs, warp + 1) >= first + runs->cols;
}

/* Whether a unit that the warp shares is the one that its run begins in; else it ends there. */
TRF_HD int trf_run_begins_in(const trf_even_runs *runs, uint32_t warp, uint32_t unit) {
    return trf_run_begin(runs, warp) >= unit * runs->cols;
}

/* The warp whose run has a column; there is one. */
TRF_HD uint32_t trf_run_of(const trf_even_runs *runs, uint32_t col) {
    return trf_share_of(runs->each, runs->more, col);
}

/* The warps that share a unit: *first to *last. */
TRF_HD void trf_run_sharers(const trf_even_runs *runs, uint32_t unit, uint32_t *first, uint32_t *last) {
    *first = trf_run_of(runs, unit * runs->cols);
    *last = trf_run_of(runs, (unit + 1) * runs->cols - 1);
}

#endif
