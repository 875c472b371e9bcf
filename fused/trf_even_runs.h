/* How the warps of a block share its units evenly: the units' columns, one unit behind the other, are cut into one run a warp. C and CUDA.
 *
 * A warp finishes the units that it has all columns of. Of the unit that its run begins inside of, and of the one that it ends inside of, it leaves its sums; whoever has the
 * first boundary between runs inside a unit adds them up, in the order of warps. */
#ifndef TRF_EVEN_RUNS_H
#define TRF_EVEN_RUNS_H

#include "trf_blob.h"

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
    return runs->each * warp + (warp < runs->more ? warp : runs->more);
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

/* Whether the boundary in front of warp `next`'s run, 1 and up, is the first one inside a unit, which is *unit; it is shared by warps next - 1 to *last. */
TRF_HD int trf_run_boundary(const trf_even_runs *runs, uint32_t warps, uint32_t next, uint32_t *unit, uint32_t *last) {
    const uint32_t boundary = trf_run_begin(runs, next), first = boundary / runs->cols * runs->cols;
    if (boundary >= runs->all || boundary == first || trf_run_begin(runs, next - 1) > first)
        return 0;
    *unit = boundary / runs->cols;
    *last = next;
    while (*last + 1 < warps && trf_run_begin(runs, *last + 1) < first + runs->cols &&
           trf_run_begin(runs, *last + 1) < runs->all)
        ++*last;
    return 1;
}

#endif
