/* SPDX-License-Identifier: Apache-2.0 */
#include "bench_files.h"

#include "cli_json.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

/* ---- JSON ---- */

/* JSON has no word for what is not a number. */
static json_t *real_json(double value) { return isfinite(value) ? json_real(value) : json_null(); }

static json_t *field_json(const bench_field *field) {
    switch (field->type) {
    case BENCH_INTEGER:
        return json_integer((json_int_t)field->integer);
    case BENCH_REAL:
        return real_json(field->real);
    default:
        return field->text[0] ? cli_json_text(field->text) : json_null();
    }
}

static void set_fields(json_t *object, const bench_fields *fields) {
    for (int i = 0; i < fields->count; i++)
        if (!fields->list[i].csv_only)
            json_object_set_new(object, fields->list[i].key, field_json(&fields->list[i]));
}

/* @return the object's list of that name; it is made if there is none. */
static json_t *list_of(json_t *object, const char *name) {
    json_t *list = json_object_get(object, name);
    if (!list) {
        list = json_array();
        json_object_set_new(object, name, list);
    }
    return list;
}

static void set_figure(json_t *object, const bench_style *style, const bench_subject *subject,
                       const bench_figure *figure) {
    set_fields(object, &figure->labels);
    if (figure->reason) {
        json_object_set_new(object, "reason", json_string(figure->reason));
        return;
    }
    set_fields(object, &figure->details);
    if (figure->against[0]) {
        json_object_set_new(object, "against", json_string(figure->against));
        json_object_set_new(object, "ratio", real_json(bench_ratio(subject, figure)));
    }
    if (!figure->num_values)
        return;
    if (style->json_has_median)
        json_object_set_new(object, "median_seconds", real_json(figure->median));
    json_t *values = json_array();
    for (int i = 0; i < figure->num_values; i++)
        json_array_append_new(values, json_real(figure->values[i]));
    json_object_set_new(object, figure->json_key, values);
}

static void append_flattened(json_t *list, const bench_style *style, const bench_subject *subject) {
    for (size_t i = 0; i < subject->num_figures; i++) {
        json_t *object = json_object();
        set_fields(object, &subject->labels);
        set_figure(object, style, subject, subject->figures[i]);
        json_array_append_new(list, object);
    }
}

static void append_subject(json_t *list, const bench_style *style, const bench_subject *subject) {
    json_t *object = json_object();
    set_fields(object, &subject->labels);
    for (size_t i = 0; i < subject->num_figures; i++) {
        const bench_figure *figure = subject->figures[i];
        json_t *own = figure->json_list ? json_object() : object;
        set_figure(own, style, subject, figure);
        if (figure->json_list)
            json_array_append_new(list_of(object, figure->json_list), own);
    }
    json_array_append_new(list, object);
}

trf_status bench_write_json(const bench_style *style, const bench_record *record, FILE *file) {
    cli_json_begin();
    json_t *root = json_object();
    set_fields(root, &record->environment);
    for (const char *const *name = style->json_lists; *name; name++)
        list_of(root, *name);
    for (size_t i = 0; i < record->num_subjects; i++) {
        const bench_subject *subject = record->subjects[i];
        if (!subject->is_finished)
            continue;
        if (style->json_flattens)
            append_flattened(list_of(root, subject->json_list), style, subject);
        else
            append_subject(list_of(root, subject->json_list), style, subject);
    }
    return cli_json_write(root, JSON_INDENT(1) | JSON_REAL_PRECISION(9), file);
}

/* ---- CSV: one row for each value, `run` counting from 0 ---- */

typedef struct csv_row {
    const bench_style *style;
    const bench_record *record;
    const bench_subject *subject;
    const bench_figure *figure;
    FILE *file;
} csv_row;

static void write_quoted(FILE *file, const char *text) {
    fputc('"', file);
    for (; *text; text++) {
        if (*text == '"')
            fputc('"', file);
        fputc(*text, file);
    }
    fputc('"', file);
}

static void write_field(FILE *file, const bench_field *field) {
    switch (field->type) {
    case BENCH_INTEGER:
        fprintf(file, "%" PRIu64, field->integer);
        break;
    case BENCH_REAL:
        fprintf(file, "%.9g", field->real);
        break;
    case BENCH_NAME:
        write_quoted(file, field->text);
        break;
    default:
        fputs(field->text, file);
        break;
    }
}

/* @return the field that a column shows; NULL if the row leaves it empty. */
static const bench_field *find_cell(const csv_row *row, const char *key) {
    const bench_fields *const places[] = {&row->figure->labels, &row->figure->details, &row->subject->labels,
                                          &row->record->environment};
    for (size_t i = 0; i < sizeof places / sizeof places[0]; i++) {
        const bench_field *field = bench_find_field(places[i], key);
        if (field)
            return field;
    }
    return NULL;
}

static void write_row(const csv_row *row, const char *quantity, int run, double value) {
    const bench_style *style = row->style;
    for (int i = 0; i < style->num_csv_columns; i++) {
        const char *key = style->csv_columns[i].key;
        const bench_field *cell = find_cell(row, key);
        if (i > 0)
            fputc(',', row->file);
        if (strcmp(key, BENCH_CSV_QUANTITY) == 0)
            fputs(quantity, row->file);
        else if (strcmp(key, BENCH_CSV_RUN) == 0)
            fprintf(row->file, "%d", run);
        else if (strcmp(key, BENCH_CSV_VALUE) == 0)
            fprintf(row->file, "%.*g", style->csv_digits, value);
        else if (cell)
            write_field(row->file, cell);
    }
    fputc('\n', row->file);
}

static void write_figure(const csv_row *row) {
    const bench_figure *figure = row->figure;
    if (figure->reason)
        return;
    for (const char *const *key = row->style->csv_details; *key; key++) {
        const bench_field *field = bench_find_field(&figure->details, *key);
        if (field)
            write_row(row, *key, 0, field->type == BENCH_INTEGER ? (double)field->integer : field->real);
    }
    for (int i = 0; i < figure->num_values; i++)
        write_row(row, figure->quantity, i, figure->values[i]);
}

static void write_list(const bench_style *style, const bench_record *record, const char *list, FILE *file) {
    for (size_t i = 0; i < record->num_subjects; i++) {
        const bench_subject *subject = record->subjects[i];
        if (!subject->is_finished || strcmp(subject->json_list, list) != 0)
            continue;
        for (size_t k = 0; k < subject->num_figures; k++)
            write_figure(&(csv_row){style, record, subject, subject->figures[k], file});
    }
}

trf_status bench_write_csv(const bench_style *style, const bench_record *record, FILE *file) {
    for (int i = 0; i < style->num_csv_columns; i++)
        fprintf(file, "%s%s", i ? "," : "", style->csv_columns[i].name);
    fputc('\n', file);
    for (const char *const *name = style->json_lists; *name; name++)
        write_list(style, record, *name, file);
    return ferror(file) ? TRF_ERR_IO : TRF_OK;
}
