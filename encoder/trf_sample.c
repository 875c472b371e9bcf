/* The sample that an encoding is planned from. */
#include "trf_analyze.h"

#include <stdlib.h>
#include <string.h>

enum {
    SAMPLE_WEIGHTS =
        1 << 19, /* a table of 107 symbols (pairs, Gaussian) then costs 0.0003 bit a weight more than the true one */
    MIN_UNITS = 4,
    MAX_UNIT_COLS = 1 << 18,
};

void trf_sample_free(trf_sample *sample) {
    free(sample->row);
    free(sample->col);
    free(sample->element);
    memset(sample, 0, sizeof *sample);
}

trf_status trf_sample_read(trf_sample *sample, const trf_element_source *from, trf_error *err) {
    const trf_source *source = from->source;
    uint64_t blocks = source->rows / TRF_BLOCK_ROWS, cols = source->cols / TRF_BLOCK_ROWS * TRF_BLOCK_ROWS;
    memset(sample, 0, sizeof *sample);
    sample->full_width = cols <= MAX_UNIT_COLS;
    sample->unit_cols = (uint32_t)(sample->full_width ? cols : MAX_UNIT_COLS);
    if (!blocks || !cols) {
        sample->unit_cols = 0;
        return TRF_OK;
    }
    uint64_t across = cols / sample->unit_cols, all = blocks * across;
    uint64_t unit_weights = (uint64_t)TRF_BLOCK_ROWS * sample->unit_cols, units = SAMPLE_WEIGHTS / unit_weights;
    units = units < MIN_UNITS ? MIN_UNITS : units;
    units = units > all ? all : units;
    sample->num_units = (uint32_t)units;
    sample->row = malloc(units * sizeof *sample->row);
    sample->col = malloc(units * sizeof *sample->col);
    sample->element = malloc(units * unit_weights * sizeof *sample->element);
    void *scratch = malloc(unit_weights * trf_dtype_bytes(source->dtype));
    trf_status status = TRF_OK;
    trf_energy ignored = {0, 0};
    if (!sample->row || !sample->col || !sample->element || !scratch)
        status = trf_fail(err, TRF_ERR_MEMORY, TRF_NO_OFFSET, "no memory for a sample of %llu weights",
                          (unsigned long long)(units * unit_weights));
    for (uint64_t u = 0; u < units && status == TRF_OK; u++) {
        uint64_t at = (2 * u + 1) * all / (2 * units); /* the middle of each share */
        sample->row[u] = (uint32_t)(at / across) * TRF_BLOCK_ROWS;
        sample->col[u] = (uint32_t)(at % across) * sample->unit_cols;
        status = trf_read_elements(from, sample->row[u], TRF_BLOCK_ROWS, sample->col[u], sample->unit_cols, scratch,
                                   sample->element + u * unit_weights, &ignored, err);
    }
    free(scratch);
    if (status != TRF_OK)
        trf_sample_free(sample);
    return status;
}
