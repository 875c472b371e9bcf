/* SPDX-License-Identifier: Apache-2.0 */
#include "bench_figure.h"

#include "bench_memory.h"
#include "cli_messages.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

/* ---- fields ---- */

static bench_field *add_field(bench_fields *fields, const char *key, bench_field_type type) {
    assert(fields->count < BENCH_MAX_FIELDS);
    bench_field *field = &fields->list[fields->count++];
    *field = (bench_field){.key = key, .type = type};
    return field;
}

bench_field *bench_add_bare_text(bench_fields *fields, const char *key, const char *text) {
    bench_field *field = add_field(fields, key, BENCH_BARE_TEXT);
    snprintf(field->text, sizeof field->text, "%s", text);
    return field;
}

bench_field *bench_add_name(bench_fields *fields, const char *key, const char *text) {
    bench_field *field = bench_add_bare_text(fields, key, text);
    field->type = BENCH_NAME;
    return field;
}

bench_field *bench_add_integer(bench_fields *fields, const char *key, uint64_t value) {
    bench_field *field = add_field(fields, key, BENCH_INTEGER);
    field->integer = value;
    return field;
}

bench_field *bench_add_real(bench_fields *fields, const char *key, double value) {
    bench_field *field = add_field(fields, key, BENCH_REAL);
    field->real = value;
    return field;
}

const bench_field *bench_find_field(const bench_fields *fields, const char *key) {
    for (int i = 0; i < fields->count; i++)
        if (strcmp(fields->list[i].key, key) == 0)
            return &fields->list[i];
    return NULL;
}

const char *bench_text_of(const bench_fields *fields, const char *key) {
    const bench_field *field = bench_find_field(fields, key);
    return field ? field->text : "";
}

uint64_t bench_integer_of(const bench_fields *fields, const char *key) {
    const bench_field *field = bench_find_field(fields, key);
    return field ? field->integer : 0;
}

/* ---- figures ---- */

int bench_figure_begin(bench_figure *figure, int repeats) {
    free(figure->values);
    figure->num_values = 0;
    figure->values = bench_alloc_zeros((uint64_t)repeats, sizeof *figure->values);
    return figure->values ? 0 : -1;
}

void bench_figure_take(bench_figure *figure, double value) { figure->values[figure->num_values++] = value; }

static int compare_doubles(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

void bench_figure_finish(bench_figure *figure) {
    double sorted[CLI_MAX_REPEATS];
    const int count = figure->num_values, middle = count / 2;
    if (!count)
        return;
    assert(count <= CLI_MAX_REPEATS);
    memcpy(sorted, figure->values, (size_t)count * sizeof *sorted);
    qsort(sorted, (size_t)count, sizeof *sorted, compare_doubles);
    figure->median = count % 2 ? sorted[middle] : (sorted[middle - 1] + sorted[middle]) / 2;
    figure->min = sorted[0];
    figure->max = sorted[count - 1];
}

void bench_figure_clear(bench_figure *figure) {
    free(figure->values);
    *figure = (bench_figure){0};
}

/* ---- subjects and records ---- */

/* Appends an element of zeros to the list. @return the element; NULL after a message. */
static void *append(void ***list, size_t *count, size_t element_bytes) {
    void **grown = realloc(*list, (*count + 1) * sizeof *grown);
    void *element = grown ? calloc(1, element_bytes) : NULL;
    if (grown)
        *list = grown;
    if (element)
        grown[(*count)++] = element;
    else
        cli_fail(TRF_ERR_MEMORY, "bench: out of memory for results");
    return element;
}

bench_figure *bench_add_figure(bench_subject *subject, const char *json_list, const char *quantity) {
    bench_figure *figure = append((void ***)&subject->figures, &subject->num_figures, sizeof *figure);
    if (figure) {
        figure->json_list = json_list;
        figure->quantity = figure->json_key = quantity;
    }
    return figure;
}

bench_subject *bench_add_subject(bench_record *record, const char *json_list) {
    bench_subject *subject = append((void ***)&record->subjects, &record->num_subjects, sizeof *subject);
    if (subject)
        subject->json_list = json_list;
    return subject;
}

void bench_finish_subject(bench_subject *subject) {
    for (size_t i = 0; i < subject->num_figures; i++)
        bench_figure_finish(subject->figures[i]);
    subject->is_finished = 1;
}

const bench_figure *bench_find_figure(const bench_subject *subject, const char *what, uint32_t batch) {
    for (size_t i = 0; i < subject->num_figures; i++) {
        const bench_fields *labels = &subject->figures[i]->labels;
        const bench_field *found = bench_find_field(labels, "batch");
        if (strcmp(bench_text_of(labels, "what"), what) == 0 && (!found || found->integer == batch))
            return subject->figures[i];
    }
    return NULL;
}

double bench_ratio(const bench_subject *subject, const bench_figure *figure) {
    const uint32_t batch = (uint32_t)bench_integer_of(&figure->labels, "batch");
    const bench_figure *other = figure->against[0] ? bench_find_figure(subject, figure->against, batch) : NULL;
    return other && !other->reason && figure->median > 0 ? other->median / figure->median : 0;
}

void bench_record_free(bench_record *record) {
    for (size_t i = 0; i < record->num_subjects; i++) {
        bench_subject *subject = record->subjects[i];
        for (size_t k = 0; k < subject->num_figures; k++) {
            bench_figure_clear(subject->figures[k]);
            free(subject->figures[k]);
        }
        free(subject->figures);
        free(subject);
    }
    free(record->subjects);
    *record = (bench_record){0};
}
