/* SPDX-License-Identifier: Apache-2.0 */
#include "bench_columns.h"

#include "cli_messages.h"

#include <inttypes.h>
#include <string.h>

/* ---- texts ---- */

const char *bench_favor_name(int favor) { return favor == TRF_FAVOR_SIZE ? "size" : "speed"; }

const char *bench_microseconds_text(const bench_figure *figure, int digits, char *buffer, size_t buffer_bytes) {
    snprintf(buffer, buffer_bytes, "%.*f (%.*f-%.*f)", digits, 1e6 * figure->median, digits, 1e6 * figure->min, digits,
             1e6 * figure->max);
    return buffer;
}

const char *bench_ratio_text(double ratio, char *buffer, size_t buffer_bytes) {
    if (ratio <= 0)
        return "-";
    snprintf(buffer, buffer_bytes, "%.3f", ratio);
    return buffer;
}

void bench_print_device(const bench_record *record) {
    const bench_fields *e = &record->environment;
    const char *commit = bench_text_of(e, "commit");
    printf("transfuse %s%s%s on %s (%" PRIu64 " multiprocessors, L2 %" PRIu64 " MiB), %s\n",
           bench_text_of(e, "version"), commit[0] ? " " : "", commit, bench_text_of(e, "gpu"),
           bench_integer_of(e, "multiprocessors"), bench_integer_of(e, "l2_bytes") >> 20, bench_text_of(e, "date"));
    printf("Driver %s (CUDA %s), runtime %s, cuBLASLt %" PRIu64 ". Weights: %s.\n", bench_text_of(e, "driver"),
           bench_text_of(e, "driver_cuda_version"), bench_text_of(e, "cuda_runtime_version"),
           bench_integer_of(e, "cublaslt_version"), bench_text_of(e, "distribution"));
}

/* ---- cells ---- */

const char *bench_cell_shape(const bench_row *row, char *buffer, size_t buffer_bytes) {
    const bench_fields *labels = &row->subject->labels;
    snprintf(buffer, buffer_bytes, "%" PRIu64 "x%" PRIu64, bench_integer_of(labels, "rows"),
             bench_integer_of(labels, "cols"));
    return buffer;
}

const char *bench_cell_sigma(const bench_row *row, char *buffer, size_t buffer_bytes) {
    snprintf(buffer, buffer_bytes, "%g", bench_find_field(&row->subject->labels, "sigma")->real);
    return buffer;
}

const char *bench_cell_codec(const bench_row *row, char *buffer, size_t buffer_bytes) {
    (void)buffer, (void)buffer_bytes;
    return bench_text_of(&row->subject->labels, "codec");
}

/* The batch of the figure, or of its subject. */
const char *bench_cell_batch(const bench_row *row, char *buffer, size_t buffer_bytes) {
    const uint64_t own = bench_integer_of(&row->figure->labels, "batch"),
                   batch = own ? own : bench_integer_of(&row->subject->labels, "batch");
    if (!batch)
        return "-";
    snprintf(buffer, buffer_bytes, "%" PRIu64, batch);
    return buffer;
}

const char *bench_cell_what(const bench_row *row, char *buffer, size_t buffer_bytes) {
    (void)buffer, (void)buffer_bytes;
    return bench_text_of(&row->figure->labels, "what");
}

/* ---- times of a few cases ---- */

static const char *cell_subject(const bench_row *row, char *buffer, size_t buffer_bytes) {
    (void)buffer, (void)buffer_bytes;
    return bench_text_of(&row->subject->labels, "subject");
}

static const char *cell_microseconds(const bench_row *row, char *buffer, size_t buffer_bytes) {
    return bench_microseconds_text(row->figure, 1, buffer, buffer_bytes);
}

static const char *cell_bytes_a_second(const bench_row *row, char *buffer, size_t buffer_bytes) {
    const uint64_t bytes = bench_integer_of(&row->figure->details, "bytes");
    if (!bytes || row->figure->median <= 0)
        return "-";
    snprintf(buffer, buffer_bytes, "%.1f", 1e-9 * (double)bytes / row->figure->median);
    return buffer;
}

static const char *cell_ratio(const bench_row *row, char *buffer, size_t buffer_bytes) {
    return bench_ratio_text(bench_ratio(row->subject, row->figure), buffer, buffer_bytes);
}

static const char *cell_error(const bench_row *row, char *buffer, size_t buffer_bytes) {
    const bench_field *error = bench_find_field(&row->figure->details, "error");
    if (!error)
        return "-";
    snprintf(buffer, buffer_bytes, "%.2e", error->real);
    return buffer;
}

static const char *cell_against(const bench_row *row, char *buffer, size_t buffer_bytes) {
    (void)buffer, (void)buffer_bytes;
    return row->figure->against;
}

static const char *cell_limit(const bench_row *row, char *buffer, size_t buffer_bytes) {
    const bench_field *limit = bench_find_field(&row->figure->details, "limit_seconds");
    if (!limit || row->figure->median <= 0)
        return "-";
    snprintf(buffer, buffer_bytes, "%.0f %%", 100 * limit->real / row->figure->median);
    return buffer;
}

static const bench_column kColumns[] = {
    {"what it is done to", -36, cell_subject},
    {"batch", 6, bench_cell_batch},
    {"how", -24, bench_cell_what},
    {"us", 27, cell_microseconds},
    {"GB/s", 8, cell_bytes_a_second},
    {"ratio", 7, cell_ratio},
    {"error", 9, cell_error},
    {"compared with", 0, cell_against},
};

static const bench_column kLimitColumns[] = {
    {"what it is done to", -40, cell_subject},
    {"batch", 6, bench_cell_batch},
    {"how", -24, bench_cell_what},
    {"us", 27, cell_microseconds},
    {"GB/s", 8, cell_bytes_a_second},
    {"limit", 6, cell_limit},
    {"ratio", 7, cell_ratio},
    {"error", 9, cell_error},
    {"compared with", 0, cell_against},
};

static const bench_csv_column kCsvColumns[] = {
    {"gpu", "gpu"},       {"driver", "driver"}, {"date", "date"},       {"version", "version"},
    {"commit", "commit"}, {"mode", "mode"},     {"subject", "subject"}, {"batch", "batch"},
    {"what", "what"},     {"bytes", "bytes"},   {"run", BENCH_CSV_RUN}, {"seconds", BENCH_CSV_VALUE},
};

static const bench_csv_column kLimitCsvColumns[] = {
    {"gpu", "gpu"},
    {"driver", "driver"},
    {"date", "date"},
    {"version", "version"},
    {"commit", "commit"},
    {"mode", "mode"},
    {"subject", "subject"},
    {"batch", "batch"},
    {"what", "what"},
    {"bytes", "bytes"},
    {"limit_seconds", "limit_seconds"},
    {"run", BENCH_CSV_RUN},
    {"seconds", BENCH_CSV_VALUE},
};

static const char *const kJsonLists[] = {"figures", NULL}, *const kNoDetails[] = {NULL};

static void print_heading(const bench_record *record) {
    bench_print_device(record);
    printf("%s: median (min-max) of %" PRIu64 " runs. ratio: the time of what a row is compared with by its own.\n\n",
           bench_text_of(&record->environment, "mode"), bench_integer_of(&record->environment, "runs"));
}

const bench_style bench_figures_style = {
    .print_heading = print_heading,
    .columns = kColumns,
    .num_columns = sizeof kColumns / sizeof kColumns[0],
    .num_label_columns = 3,
    .json_lists = kJsonLists,
    .json_flattens = 1,
    .json_has_median = 1,
    .names_mode = 1,
    .csv_columns = kCsvColumns,
    .num_csv_columns = sizeof kCsvColumns / sizeof kCsvColumns[0],
    .csv_details = kNoDetails,
    .csv_digits = 12,
};

static void print_limits_heading(const bench_record *record) {
    bench_print_device(record);
    printf("%s: median (min-max) of %" PRIu64
           " runs. ratio: the time of what a row is compared with by its own. limit: "
           "the\nlonger of its bytes over the rate of reading and its operations over that of cuBLASLt's product, by "
           "its time.\n\n",
           bench_text_of(&record->environment, "mode"), bench_integer_of(&record->environment, "runs"));
}

const bench_style bench_limits_style = {
    .print_heading = print_limits_heading,
    .columns = kLimitColumns,
    .num_columns = sizeof kLimitColumns / sizeof kLimitColumns[0],
    .num_label_columns = 3,
    .json_lists = kJsonLists,
    .json_flattens = 1,
    .json_has_median = 1,
    .names_mode = 1,
    .csv_columns = kLimitCsvColumns,
    .num_csv_columns = sizeof kLimitCsvColumns / sizeof kLimitCsvColumns[0],
    .csv_details = kNoDetails,
    .csv_digits = 12,
};

bench_subject *bench_add_figures_subject(bench_record *record, const char *subject, uint32_t batch) {
    bench_subject *added = bench_add_subject(record, kJsonLists[0]);
    if (added) {
        bench_add_name(&added->labels, "subject", subject);
        bench_add_integer(&added->labels, "batch", batch);
    }
    return added;
}

bench_figure *bench_add_time(bench_subject *subject, const char *what, const char *against, uint64_t bytes) {
    bench_figure *figure = bench_add_figure(subject, NULL, "seconds");
    if (figure) {
        bench_add_name(&figure->labels, "what", what);
        bench_add_integer(&figure->details, "bytes", bytes)->csv_only = bytes == 0;
        snprintf(figure->against, sizeof figure->against, "%s", against);
    }
    return figure;
}
