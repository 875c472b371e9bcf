/* SPDX-License-Identifier: Apache-2.0 */
/* How a record is shown: which labels and figures are columns of the table and of the CSV file, and where they stand in
 * JSON. A mode names one constant style; the printer and the writers follow it. Here are also the cells that several
 * modes have. */
#ifndef BENCH_COLUMNS_H
#define BENCH_COLUMNS_H

#include "bench_figure.h"

/* A row of the table, or a place in it. */
typedef struct bench_row {
    const bench_record *record;
    const bench_subject *subject;
    const bench_figure *figure; /* NULL where a row is a subject */
    uint32_t batch;             /* of a column for a batch */
} bench_row;

/* @return the text, which may be in buffer; NULL if the row ends before this column. */
typedef const char *bench_cell_fn(const bench_row *row, char *buffer, size_t buffer_bytes);

typedef struct bench_column {
    const char *title;
    int width; /* negative: to the left, as printf has it */
    bench_cell_fn *cell;
} bench_column;

/* key: a field's, or one of the special keys. */
typedef struct bench_csv_column {
    const char *name, *key;
} bench_csv_column;
#define BENCH_CSV_QUANTITY "(quantity)"
#define BENCH_CSV_RUN "(run)"
#define BENCH_CSV_VALUE "(value)"

typedef struct bench_style {
    void (*print_heading)(const bench_record *record); /* the lines above the table */
    const bench_column *columns;
    int num_columns;
    /* How many of these, from the first on, stand in front of the reason of a figure that has one. Such a row has no
     * others. */
    int num_label_columns;
    /* If a row is a subject: follows the other columns, once for each batch. NULL: a row is a figure. */
    const bench_column *batch_column;

    const char *const *json_lists; /* of the root, NULL-terminated */
    int json_flattens;             /* an object of such a list is a figure, with its subject's labels in front */
    int json_has_median;
    int names_mode; /* the mode's name belongs to the environment */

    const bench_csv_column *csv_columns;
    int num_csv_columns;
    const char *const *csv_details; /* details that have rows of their own, NULL-terminated */
    int csv_digits;                 /* significant ones of a value */
} bench_style;

/* ---- texts ---- */

const char *bench_favor_name(int favor); /* a trf_favor */

/* "812.3 (790.1-830.0)": a figure's times in microseconds. @return buffer. */
const char *bench_microseconds_text(const bench_figure *figure, int digits, char *buffer, size_t buffer_bytes);

/* "%.3f", or "-" for 0. */
const char *bench_ratio_text(double ratio, char *buffer, size_t buffer_bytes);

/* Prints what the environment says about a GPU, in two lines. */
void bench_print_device(const bench_record *record);

/* ---- cells: of a layer, and of a figure ---- */

bench_cell_fn bench_cell_shape, bench_cell_sigma, bench_cell_codec;
bench_cell_fn bench_cell_batch, bench_cell_what;

/* ---- modes that compare times of a few cases ---- */

extern const bench_style bench_figures_style;

/* The same with one column more: how much of a figure's time is its limit, the detail "limit_seconds". */
extern const bench_style bench_limits_style;

/* A subject with the labels subject and batch (0 where there is no x). @return NULL after a message. */
bench_subject *bench_add_figures_subject(bench_record *record, const char *subject, uint32_t batch);

/* The figure of a case. against: the case that it is compared with, or "". bytes: how many a call moves. @return NULL
 * after a message. */
bench_figure *bench_add_time(bench_subject *subject, const char *what, const char *against, uint64_t bytes);

#endif
