/* What the outputs of the CPU's and the GPU's measurements have in common. */
#ifndef BENCH_OUTPUT_H
#define BENCH_OUTPUT_H

#include "bench.h"
#include "cli_json.h"

const char *bench_favor_name(trf_favor favor);
double bench_bits_per_weight(uint64_t bytes, uint64_t weights);

/* "4096x4096". @return buffer. */
const char *bench_shape_text(cli_shape shape, char *buffer, size_t buffer_bytes);

json_t *bench_times_json(const bench_times *times);

/* An object with shape, sigma, codec and source. */
json_t *bench_subject_json(const bench_subject *subject);

/* A field of a CSV file, in quotes. */
void bench_write_text(FILE *file, const char *text);

#endif
