/* SPDX-License-Identifier: Apache-2.0 */
/* What a bench command has measured, for all modes: a record of subjects, each with its figures.
 *
 * A *subject* is what is measured: a layer with codec and sigma, or a mode's own text such as "2 x 14336x4096 bf16". A
 * *figure* is one thing that was found out about it: a time with all of its repeats, or single numbers alone. Both have
 * labels, which tell them from their neighbours. bench_columns.h says how they are shown. */
#ifndef BENCH_FIGURE_H
#define BENCH_FIGURE_H

#include <stddef.h>
#include <stdint.h>

enum {
    BENCH_MAX_FIELDS = 16
};

typedef enum bench_field_type {
    BENCH_BARE_TEXT, /* text that needs no quotes in CSV */
    BENCH_NAME,      /* text that may */
    BENCH_INTEGER,
    BENCH_REAL
} bench_field_type;

/* A name and a value, as files have them. */
typedef struct bench_field {
    const char *key; /* a static string */
    bench_field_type type;
    int csv_only;   /* not in JSON */
    char text[128]; /* "": null in JSON */
    uint64_t integer;
    double real; /* not finite: null in JSON */
} bench_field;

typedef struct bench_fields {
    bench_field list[BENCH_MAX_FIELDS];
    int count;
} bench_fields;

typedef struct bench_figure {
    /* A list of its subject's JSON object, such as "measurements"; NULL: the subject's object itself. */
    const char *json_list;
    const char *quantity; /* of its values, as CSV names it: "seconds", "encode_seconds" */
    const char *json_key; /* the same in JSON */
    bench_fields labels;  /* what tells it from its neighbours: what, favor, batch */
    bench_fields details; /* what came with it: calls, copies, bytes_read, algorithm, error */
    double *values;       /* one a repeat, in the order of measuring */
    int num_values;
    double median, min, max; /* of the values; set by bench_figure_finish */
    char against[48];        /* label `what` of the subject's figure that bench_ratio compares with; "": none */
    const char *reason;      /* why there are no values: a static string; NULL */
    char note[160];          /* a line below its row in the table, or "" */
} bench_figure;

typedef struct bench_subject {
    const char *json_list; /* of the root: "results", "baselines", "figures" */
    bench_fields labels;   /* rows, cols, sigma, codec, source, favor; or subject, batch */
    bench_figure **figures;
    size_t num_figures;
    uint64_t weights; /* for rates; 0 if no rates are wanted */
    int is_finished;  /* files hold it */
} bench_subject;

typedef struct bench_record {
    const uint32_t *batches; /* those that the options ask for */
    int num_batches;
    bench_fields environment;
    bench_subject **subjects;
    size_t num_subjects;
} bench_record;

/* ---- fields: each adds one and returns it; key: a static string ---- */

bench_field *bench_add_bare_text(bench_fields *fields, const char *key, const char *text);
bench_field *bench_add_name(bench_fields *fields, const char *key, const char *text);
bench_field *bench_add_integer(bench_fields *fields, const char *key, uint64_t value);
bench_field *bench_add_real(bench_fields *fields, const char *key, double value);

/* @return NULL if there is none. */
const bench_field *bench_find_field(const bench_fields *fields, const char *key);

/* @return a field's value; "" or 0 if there is none. */
const char *bench_text_of(const bench_fields *fields, const char *key);
uint64_t bench_integer_of(const bench_fields *fields, const char *key);

/* ---- figures ---- */

/* Empties the values and makes room for so many. @return 0, or -1 after a message. */
int bench_figure_begin(bench_figure *figure, int repeats);
void bench_figure_take(bench_figure *figure, double value);

/* Computes median, min and max. */
void bench_figure_finish(bench_figure *figure);

/* Frees a figure's values; also for figures that are in no record. */
void bench_figure_clear(bench_figure *figure);

/* ---- subjects and records: what is added stays where it is until bench_record_free ---- */

/* quantity: as in CSV and JSON. @return NULL after a message. */
bench_figure *bench_add_figure(bench_subject *subject, const char *json_list, const char *quantity);

/* @return NULL after a message. */
bench_subject *bench_add_subject(bench_record *record, const char *json_list);

/* Finishes all figures of a subject. Nothing may be added afterwards. */
void bench_finish_subject(bench_subject *subject);

/* @return the first figure with this label `what` and, if it has a batch, this batch; NULL if there is none. */
const bench_figure *bench_find_figure(const bench_subject *subject, const char *what, uint32_t batch);

/* @return how many times faster the figure is than what it is compared with; 0 if it is compared with nothing. */
double bench_ratio(const bench_subject *subject, const bench_figure *figure);

void bench_record_free(bench_record *record);

#endif
