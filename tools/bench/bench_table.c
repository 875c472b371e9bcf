/* SPDX-License-Identifier: Apache-2.0 */
#include "bench_table.h"

#include "cli_terminal.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    kIndent = 4 /* of a row's further lines */
};

/* Where the printing of a row has arrived. */
typedef struct row_position {
    int at, columns;
} row_position;

/* A row takes several lines if a terminal or $COLUMNS is narrower, but in a pipe it is one line, as programs expect. */
static row_position begin_row(void) {
    int may_cut;
    const int columns = cli_table_columns(&may_cut);
    return (row_position){.columns = may_cut ? columns : INT_MAX};
}

static void print_padded(row_position *position, int width, const char *text) {
    const int length = (int)strlen(text), taken = length > abs(width) ? length : abs(width);
    int gap = position->at > 0;
    if (gap && position->at + gap + taken > position->columns) {
        printf("\n%*s", kIndent, "");
        position->at = kIndent;
        gap = 0;
    }
    position->at += gap + taken;
    printf("%*s%*s", gap, "", width, text);
}

void bench_print_heading(const bench_style *style, const bench_record *record) {
    row_position position = begin_row();
    style->print_heading(record);
    for (int i = 0; i < style->num_columns; i++)
        print_padded(&position, style->columns[i].width, style->columns[i].title);
    for (int i = 0; style->batch_column && i < record->num_batches; i++) {
        char title[64];
        snprintf(title, sizeof title, "%s %6u", style->batch_column->title, record->batches[i]);
        print_padded(&position, style->batch_column->width, title);
    }
    putchar('\n');
    fflush(stdout);
}

/* @return whether the row goes on. */
static int print_cell(const bench_row *row, const bench_column *column, row_position *position) {
    char buffer[128];
    const char *text = column->cell(row, buffer, sizeof buffer);
    if (text)
        print_padded(position, column->width, text);
    return text != NULL;
}

static void print_row(const bench_style *style, bench_row *row) {
    const char *reason = row->figure ? row->figure->reason : NULL;
    const int count = reason ? style->num_label_columns : style->num_columns;
    row_position position = begin_row();
    int goes_on = 1;
    for (int i = 0; goes_on && i < count; i++)
        goes_on = print_cell(row, &style->columns[i], &position);
    for (int i = 0; goes_on && style->batch_column && i < row->record->num_batches; i++) {
        row->batch = row->record->batches[i];
        goes_on = print_cell(row, style->batch_column, &position);
    }
    if (reason)
        printf(" (%s)", reason);
    putchar('\n');
    if (row->figure && row->figure->note[0])
        printf("    %s\n", row->figure->note);
}

void bench_print_subject(const bench_style *style, const bench_record *record, bench_subject *subject) {
    bench_finish_subject(subject);
    if (style->batch_column) {
        print_row(style, &(bench_row){.record = record, .subject = subject});
    } else {
        for (size_t i = 0; i < subject->num_figures; i++) {
            const bench_figure *figure = subject->figures[i];
            if (figure->num_values || figure->reason)
                print_row(style, &(bench_row){.record = record, .subject = subject, .figure = figure});
        }
    }
    fflush(stdout);
}
