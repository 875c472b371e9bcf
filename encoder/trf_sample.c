/* SPDX-License-Identifier: Apache-2.0 */
/* The sample from which an encoding's choices are made. */
#include "trf_analyze.h"

#include <stdlib.h>
#include <string.h>

enum {
    SAMPLE_WEIGHTS =
        1 << 19, /* a table of 107 symbols (pairs, Gaussian) then costs 0.0003 bit a weight more than the true one */
    MIN_BLOCKS = 4,
    MAX_BLOCK_COLS = 1 << 18,
};

void trf_sample_free(trf_sample *sample) {
    free(sample->row);
    free(sample->col);
    free(sample->element);
    memset(sample, 0, sizeof *sample);
}

trf_status trf_sample_read(trf_sample *sample, const trf_element_source *from, trf_error *err) {
    const trf_source *source = from->source;
    uint64_t row_blocks = source->rows / TRF_FRAGMENT_SIZE, cols = source->cols / TRF_FRAGMENT_SIZE * TRF_FRAGMENT_SIZE;
    memset(sample, 0, sizeof *sample);
    sample->full_width = cols <= MAX_BLOCK_COLS;
    sample->excerpt_cols = (uint32_t)(sample->full_width ? cols : MAX_BLOCK_COLS);
    if (!row_blocks || !cols) {
        sample->excerpt_cols = 0;
        return TRF_OK;
    }
    uint64_t across = cols / sample->excerpt_cols, all = row_blocks * across;
    uint64_t block_weights = (uint64_t)TRF_FRAGMENT_SIZE * sample->excerpt_cols, taken = SAMPLE_WEIGHTS / block_weights;
    taken = taken < MIN_BLOCKS ? MIN_BLOCKS : taken;
    taken = taken > all ? all : taken;
    sample->num_excerpts = (uint32_t)taken;
    sample->row = malloc(taken * sizeof *sample->row);
    sample->col = malloc(taken * sizeof *sample->col);
    sample->element = malloc(taken * block_weights * sizeof *sample->element);
    void *scratch = malloc(block_weights * trf_dtype_bytes(source->dtype));
    trf_status status = TRF_OK;
    trf_energy ignored = {0, 0};
    if (!sample->row || !sample->col || !sample->element || !scratch)
        status = trf_fail(err, TRF_ERR_MEMORY, TRF_NO_OFFSET, "no memory for a sample of %llu weights",
                          (unsigned long long)(taken * block_weights));
    for (uint64_t u = 0; u < taken && status == TRF_OK; u++) {
        uint64_t at = (2 * u + 1) * all / (2 * taken); /* the middle of each share */
        sample->row[u] = (uint32_t)(at / across) * TRF_FRAGMENT_SIZE;
        sample->col[u] = (uint32_t)(at % across) * sample->excerpt_cols;
        status = trf_read_codes(from, sample->row[u], TRF_FRAGMENT_SIZE, sample->col[u], sample->excerpt_cols, scratch,
                                sample->element + u * block_weights, &ignored, err);
    }
    free(scratch);
    if (status != TRF_OK)
        trf_sample_free(sample);
    return status;
}
