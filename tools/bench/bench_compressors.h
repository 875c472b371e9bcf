/* SPDX-License-Identifier: Apache-2.0 */
/* General-purpose compressors on the same bytes: LZ4 and zstd at their default levels, in one thread. */
#ifndef BENCH_COMPRESSORS_H
#define BENCH_COMPRESSORS_H

#include <stdint.h>

typedef struct bench_compressor bench_compressor;

/* name: "lz4" or "zstd". source: outlives it. @return NULL after a message. */
bench_compressor *bench_compressor_open(const char *name, const void *source, uint64_t source_bytes);
void bench_compressor_close(bench_compressor *compressor); /* NULL is allowed */

/* For both functions: compressor is a bench_compressor. @return 0, or -1 after a message. Compressing must come
 * first. */
int bench_compress(void *compressor);
int bench_decompress(void *compressor);

/* @return the bytes to which the source was compressed. */
uint64_t bench_compressor_output_bytes(const bench_compressor *compressor);

/* "1.9.4". */
const char *bench_lz4_version(void);
const char *bench_zstd_version(void);

#endif
